//! Chat templates: real ones, and ones that fail.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_models::chat::{ChatError, ChatTemplate, MAX_TEMPLATE_LEN, Message, Next, Role};
use loadmaster_models::tokenizer::{Ends, Specials, Tokenizer};
use support::{fetched_model, golden_model};

fn conversation() -> Vec<Message> {
    vec![
        Message::new(Role::User, "Hi"),
        Message::new(Role::Assistant, "Hello <b>&amp;</b>"),
        Message::new(Role::User, "Bye"),
    ]
}

/// Llama 3's published template.
const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// Gemma's published template: refuses, and uses methods of Python's strings.
const GEMMA: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'].strip() + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";

#[test]
fn a_template_is_rendered_as_published() {
    let template = ChatTemplate::new(LLAMA3, "<|begin_of_text|>", "<|end_of_text|>").expect("parses");
    let prompt = template.render(&conversation(), Next::Assistant).expect("renders");
    let expected = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                    <|start_header_id|>assistant<|end_header_id|>\n\nHello <b>&amp;</b><|eot_id|>\
                    <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>\
                    <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(prompt.text, expected);
    assert_eq!(prompt.ends, Ends::Bare, "BOS is there already");
    let closed = template.render(&conversation(), Next::Nothing).expect("renders");
    assert!(closed.text.ends_with("Bye<|eot_id|>"));
}

#[test]
fn a_template_may_refuse_and_may_use_python_methods() {
    let template = ChatTemplate::new(GEMMA, "<bos>", "<eos>").expect("parses");
    let prompt = template.render(&[Message::new(Role::User, "  Hi \n")], Next::Assistant).expect("renders");
    assert_eq!(prompt.text, "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
    let system = [Message::new(Role::System, "Be kind")];
    let error = template.render(&system, Next::Assistant).expect_err("refused");
    assert_eq!(error, ChatError::Refused { reason: "System role not supported".into() });
}

#[test]
fn the_real_template_of_smollm2_gives_its_special_tokens() {
    let Some(model) = fetched_model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let tokenizer = Tokenizer::from_gguf(&model).expect("builds");
    let template = ChatTemplate::from_gguf(&model, &tokenizer).expect("there is one");
    let prompt = template.render(&[Message::new(Role::User, "Hi")], Next::Assistant).expect("renders");
    let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
                    <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt.text, expected);
    let tokens = tokenizer.encode(&prompt.text, Specials::Recognised, prompt.ends).expect("encodes");
    let starts = tokens.iter().filter(|&&t| tokenizer.raw_text(t) == Some("<|im_start|>")).count();
    assert_eq!(starts, 3);
}

#[test]
fn a_file_without_a_template_is_an_error() {
    let model = golden_model("alice-Q8_0.gguf");
    let tokenizer = Tokenizer::from_gguf(&model).expect("builds");
    assert_eq!(ChatTemplate::from_gguf(&model, &tokenizer).expect_err("none"), ChatError::NoTemplate);
}

#[test]
fn broken_templates_fail_with_their_line() {
    let error = ChatTemplate::new("a\n{% if %}", "", "").expect_err("a condition is missing");
    assert!(matches!(error, ChatError::Template { line: 2, .. }), "{error}");
    let template = ChatTemplate::new("a\nb\n{{ messages.nothing.at_all }}", "", "").expect("parses");
    let error = template.render(&[], Next::Nothing).expect_err("undefined");
    assert!(matches!(error, ChatError::Template { line: 3, .. }), "{error}");
    let error = ChatTemplate::new(&" ".repeat(MAX_TEMPLATE_LEN + 1), "", "").expect_err("too long");
    assert_eq!(error, ChatError::TooLong { found: MAX_TEMPLATE_LEN + 1 });
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let nested = "{% for a in range(10000) %}{% for b in range(10000) %}{% set c = a + b %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(nested, "", "").expect("parses");
    let error = template.render(&[], Next::Nothing).expect_err("too much work");
    assert!(error.to_string().contains("steps"), "{error}");
}
