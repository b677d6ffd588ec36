//! Tokenizers against the ids that llama.cpp gives, and against files that do not fit.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_models::gguf::{Gguf, MetaValue, Writer};
use loadmaster_models::tokenizer::{Ends, Specials, TokenId, Tokenizer, TokenizerError, Utf8Stream};
use serde_json::Value;
use std::sync::Arc;
use support::{fetched_model, golden_json, golden_model};

fn ids(value: &Value) -> Vec<TokenId> {
    let id = |v: &Value| TokenId::new(v.as_u64().expect("an id") as usize);
    value.as_array().expect("ids").iter().map(id).collect()
}

fn check_tokens(name: &str, tokenizer: &Tokenizer) {
    let golden = golden_json("text/tokens.json");
    let texts = golden["texts"].as_array().expect("texts");
    let expected = golden["models"][name].as_array().expect("ids of each text");
    assert_eq!(texts.len(), expected.len());
    for (text, expected) in texts.iter().zip(expected) {
        let text = text.as_str().expect("text");
        let got = tokenizer.encode(text, Specials::Recognised, Ends::AsModelAsks).expect("encodes");
        assert_eq!(got, ids(expected), "{name}: {text:?}");
    }
}

/// Prompts give the golden ids, and the golden continuation gives the golden text.
fn check_texts(name: &str, tokenizer: &Tokenizer) {
    let golden = golden_json(&format!("text/{name}.json"));
    for case in golden["cases"].as_array().expect("cases") {
        let prompt = case["prompt"].as_str().expect("prompt");
        let got = tokenizer.encode(prompt, Specials::Recognised, Ends::AsModelAsks).expect("encodes");
        assert_eq!(got, ids(&case["prompt_tokens"]), "{prompt:?}");
        let mut stream = Utf8Stream::new();
        let mut text = String::new();
        for id in ids(&case["tokens"]) {
            text += &stream.push(&tokenizer.piece(id).expect("in the vocabulary"));
        }
        text += &stream.finish();
        assert_eq!(text, case["text"].as_str().expect("text"), "{prompt:?}");
    }
}

#[test]
fn the_embedded_model_gives_the_golden_ids_and_texts() {
    let tokenizer = Tokenizer::from_gguf(&golden_model("alice-Q8_0.gguf")).expect("builds");
    check_tokens("alice", &tokenizer);
    check_texts("alice", &tokenizer);
}

#[test]
fn smollm2_gives_the_golden_ids_and_texts() {
    let Some(model) = fetched_model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let tokenizer = Tokenizer::from_gguf(&model).expect("builds");
    check_tokens("smollm2", &tokenizer);
    check_texts("smollm2", &tokenizer);
    let end = tokenizer.find("<|im_end|>").expect("a token");
    assert!(tokenizer.ends_generation(end));
    assert!(!tokenizer.ends_generation(TokenId::new(100)));
}

#[test]
fn gemma3_gives_the_golden_ids_and_texts() {
    let Some(model) = fetched_model("gemma3", "gemma-3-270m-q4_k_m.gguf") else { return };
    let tokenizer = Tokenizer::from_gguf(&model).expect("builds");
    check_tokens("gemma3", &tokenizer);
    check_texts("gemma3", &tokenizer);
}

/// Every golden text survives the way there and back, but for special tokens.
#[test]
fn decoding_what_was_encoded_gives_the_text() {
    let tokenizer = Tokenizer::from_gguf(&golden_model("alice-Q8_0.gguf")).expect("builds");
    for text in golden_json("text/tokens.json")["texts"].as_array().expect("texts") {
        let text = text.as_str().expect("text");
        let tokens = tokenizer.encode(text, Specials::AsText, Ends::Bare).expect("encodes");
        assert_eq!(tokenizer.decode(&tokens).expect("decodes"), text);
    }
}

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// A small SentencePiece-style vocabulary: control tokens, bytes, pieces with scores.
fn spm_writer(pieces: &[(&str, f32)]) -> Writer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut kinds = vec![2, CONTROL, CONTROL];
    let mut scores = vec![0.0; 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(6);
        scores.push(0.0);
    }
    for (text, score) in pieces {
        tokens.push((*text).into());
        kinds.push(NORMAL);
        scores.push(*score);
    }
    Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("llama".into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings(tokens))
        .with("tokenizer.ggml.token_type", MetaValue::I32s(kinds))
        .with("tokenizer.ggml.scores", MetaValue::F32s(scores))
}

fn gguf(writer: &Writer) -> Gguf {
    Gguf::from_bytes(Arc::new(writer.bytes())).expect("opens")
}

fn build(writer: &Writer) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&gguf(writer))
}

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let tokens = tokenizer.encode(text, Specials::Recognised, Ends::Bare).expect("encodes");
    tokens.iter().map(|&t| tokenizer.raw_text(t).expect("in range").to_string()).collect()
}

#[test]
fn sentencepiece_merges_by_score_then_from_the_left() {
    let pieces = [("▁", -1.0), ("a", -1.0), ("b", -1.0), ("ab", -2.0), ("ba", -1.5), ("aa", -3.0), ("aaa", -4.0)];
    let tokenizer = build(&spm_writer(&pieces)).expect("builds");
    // "ba" has the better score, so it wins over the "ab" that stands before it.
    assert_eq!(texts(&tokenizer, "aba"), ["▁", "a", "ba"]);
    // Equal scores: leftmost first.
    assert_eq!(texts(&tokenizer, "aaaaa"), ["▁", "aa", "aaa"]);
}

#[test]
fn sentencepiece_merges_symbols_that_are_no_tokens_and_falls_back_to_bytes() {
    let tokenizer = build(&spm_writer(&[("▁", -1.0), ("né", -2.0)])).expect("builds");
    assert_eq!(texts(&tokenizer, "né"), ["▁", "né"]);
    assert_eq!(texts(&tokenizer, "é"), ["▁", "<0xC3>", "<0xA9>"]);
    let tokens = tokenizer.encode("né é", Specials::AsText, Ends::AsModelAsks).expect("encodes");
    assert_eq!(tokens[0], TokenId::new(1), "BOS comes first by default");
    assert_eq!(tokenizer.decode(&tokens).expect("decodes"), "né é", "the space put before the text is taken off");
}

#[test]
fn a_space_comes_before_a_text_and_after_special_tokens_unless_the_file_says_no() {
    let pieces = [("▁", -1.0), ("x", -1.0), ("▁x", -2.0)];
    let tokenizer = build(&spm_writer(&pieces)).expect("builds");
    assert_eq!(texts(&tokenizer, "x</s>x"), ["▁x", "</s>", "▁x"]);
    let without = spm_writer(&pieces).with("tokenizer.ggml.add_space_prefix", MetaValue::Bool(false));
    assert_eq!(texts(&build(&without).expect("builds"), "x</s>x"), ["x", "</s>", "x"]);
}

#[test]
fn special_tokens_in_a_users_text_can_stay_text() {
    let tokenizer = build(&spm_writer(&[("▁", -1.0)])).expect("builds");
    let recognised = tokenizer.encode("</s>", Specials::Recognised, Ends::Bare).expect("encodes");
    assert_eq!(recognised, [TokenId::new(2)]);
    let plain = tokenizer.encode("</s>", Specials::AsText, Ends::Bare).expect("encodes");
    assert_eq!(plain.len(), 5, "an escaped space and four bytes");
}

fn bpe_writer(pre: &str) -> Writer {
    let tokens = ["!", "a", "b", "ab", "Ġ", "<|x|>", "<|x|>y"].map(String::from).to_vec();
    Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("gpt2".into()))
        .with("tokenizer.ggml.pre", MetaValue::String(pre.into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings(tokens))
        .with("tokenizer.ggml.token_type", MetaValue::I32s(vec![1, 1, 1, 1, 1, 3, 3]))
        .with("tokenizer.ggml.merges", MetaValue::Strings(vec!["a b".into()]))
}

#[test]
fn the_longest_special_token_wins() {
    let tokenizer = build(&bpe_writer("gpt-2")).expect("builds");
    assert_eq!(texts(&tokenizer, "ab<|x|>ya<|x|> b"), ["ab", "<|x|>y", "a", "<|x|>", "Ġ", "b"]);
}

#[test]
fn an_unknown_pre_tokenizer_is_an_error_that_names_it() {
    let error = build(&bpe_writer("quux")).expect_err("unknown");
    assert_eq!(error, TokenizerError::UnknownPreTokenizer { name: "quux".into() });
    let text = error.to_string();
    assert!(text.contains("quux") && text.contains("llama-bpe"), "{text}");
}

#[test]
fn every_known_pre_tokenizer_builds_and_cuts_nothing_away() {
    let message = build(&bpe_writer("quux")).expect_err("unknown").to_string();
    let names = message.split("known ones are ").nth(1).expect("a list").split(", ");
    let mut count = 0;
    for name in names {
        let writer = bpe_writer(name).with("tokenizer.ggml.add_bos_token", MetaValue::Bool(false));
        let tokenizer = build(&writer).unwrap_or_else(|e| unreachable!("{name}: {e}"));
        assert_eq!(texts(&tokenizer, "ab ab!").concat(), "abĠab!", "{name}");
        count += 1;
    }
    assert!(count > 40, "{count}");
}

#[test]
fn files_without_a_usable_vocabulary_are_refused_by_name() {
    let with_model = |name: &str| Writer::new().with("tokenizer.ggml.model", MetaValue::String(name.into()));
    let error = build(&with_model("no_vocab")).expect_err("none");
    assert_eq!(error, TokenizerError::NoVocabulary { model: "no_vocab".into() });
    let error = build(&with_model("bert")).expect_err("unknown");
    assert_eq!(error, TokenizerError::UnknownModel { model: "bert".into() });
    let error = build(&Writer::new()).expect_err("nothing");
    assert!(error.to_string().contains("tokenizer.ggml.model"), "{error}");
    let error = build(&with_model("llama")).expect_err("no tokens");
    assert!(error.to_string().contains("tokenizer.ggml.tokens"), "{error}");
}

#[test]
fn metadata_that_does_not_fit_the_vocabulary_is_refused() {
    let bad = spm_writer(&[]).with("tokenizer.ggml.bos_token_id", MetaValue::U32(1000));
    let expected = TokenizerError::SpecialOutOfRange { key: "tokenizer.ggml.bos_token_id", id: 1000, tokens: 259 };
    assert_eq!(build(&bad).expect_err("out of range"), expected);

    let short = Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("llama".into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings(vec!["a".into(), "b".into()]))
        .with("tokenizer.ggml.scores", MetaValue::F32s(vec![0.0]));
    let expected = TokenizerError::Length { key: "tokenizer.ggml.scores", expected: 2, found: 1 };
    assert_eq!(build(&short).expect_err("too short"), expected);

    let no_bos = bpe_writer("llama-bpe");
    assert!(matches!(build(&no_bos).expect_err("no BOS"), TokenizerError::SpecialMissing { .. }));

    let tokens = vec!["a".to_string(), "b".into()];
    let merge = Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("gpt2".into()))
        .with("tokenizer.ggml.pre", MetaValue::String("gpt-2".into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings(tokens))
        .with("tokenizer.ggml.merges", MetaValue::Strings(vec!["a b".into()]));
    assert_eq!(build(&merge).expect_err("no ab"), TokenizerError::Merge { rank: 0, merge: "a b".into() });
}

#[test]
fn a_byte_without_a_token_is_an_error() {
    let writer = Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("llama".into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings(["<unk>", "<s>", "</s>", "a"].map(String::from).to_vec()))
        .with("tokenizer.ggml.add_space_prefix", MetaValue::Bool(false));
    let tokenizer = build(&writer).expect("builds");
    let error = tokenizer.encode("ab", Specials::AsText, Ends::Bare).expect_err("no b");
    assert_eq!(error, TokenizerError::NoByteToken { byte: b'b' });
    let error = tokenizer.piece(TokenId::new(4)).expect_err("outside");
    assert_eq!(error, TokenizerError::NoSuchToken { id: TokenId::new(4), tokens: 4 });
}

#[test]
fn text_streams_out_whole_characters_however_the_bytes_come() {
    let text = "a🙂é—z";
    for size in 1..=4 {
        let mut stream = Utf8Stream::new();
        let mut out = String::new();
        for bytes in text.as_bytes().chunks(size) {
            let part = stream.push(bytes);
            assert!(!part.contains(char::REPLACEMENT_CHARACTER));
            out += &part;
        }
        assert_eq!(out, text);
        assert_eq!(stream.finish(), "");
    }
    let mut stream = Utf8Stream::new();
    assert_eq!(stream.push(b"a\xffb\xe2\x82"), "a\u{fffd}b");
    assert_eq!(stream.push(b"c"), "\u{fffd}c", "an incomplete character that ends is replaced");
    let _ = stream.push(b"\xf0\x9f");
    assert_eq!(stream.finish(), "\u{fffd}");
}
