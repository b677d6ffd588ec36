//! Pre-tokenizers: how byte-level BPE cuts a text into words before it merges.
//!
//! Each is a list of patterns, applied in turn to the pieces that the one before left: what a pattern matches becomes a
//! piece of its own, and so does what lies between. The patterns are those that the models' own tokenizer files
//! publish; the names are the values of `tokenizer.ggml.pre`.

/// Whether a word that is a token as it stands skips the merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WholeWords {
    /// Such a word is that token (tiktoken's behaviour).
    First,
    /// Merges decide alone.
    ByMerges,
}

/// Whether texts begin with the BOS token where the file does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BosDefault {
    Added,
    NotAdded,
}

/// The rules of one pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    pub(super) patterns: &'static [&'static str],
    pub(super) whole_words: WholeWords,
    pub(super) bos: BosDefault,
}

const CONTRACTIONS_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const GPT2: &[&str] = &[CONTRACTIONS_WORDS];
const SINGLE_DIGITS: &[&str] = &[r"\p{N}", CONTRACTIONS_WORDS];
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", CONTRACTIONS_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", CONTRACTIONS_WORDS, r"[0-9][0-9][0-9]"];
const LLAMA3: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const QWEN2: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const QWEN35: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const SEED_CODER: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const BAILING: &[&str] =
    &[r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"];
const TEKKEN: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const GPT4O: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
const DEEPSEEK_CODER: &[&str] = &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const BLOOM: &[&str] = &[r" ?[^(\s|.,!?…。，、।۔،)]+"];
const VIKING: &[&str] = &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"];

/// Rows of names that share patterns.
const TABLE: &[(&[&str], &[&str], WholeWords, BosDefault)] = {
    use BosDefault::{Added, NotAdded};
    use WholeWords::{ByMerges, First};
    &[
        (&["default"], DEFAULT, ByMerges, NotAdded),
        (
            &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
            LLAMA3,
            First,
            Added,
        ),
        (&["dbrx", "smaug-bpe", "chatglm-bpe"], LLAMA3, ByMerges, NotAdded),
        (&["glm4", "glm5"], LLAMA3, First, NotAdded),
        (
            &[
                "gpt-2",
                "phi-2",
                "jina-es",
                "jina-de",
                "jina-v1-en",
                "jina-v2-es",
                "jina-v2-de",
                "jina-v2-code",
                "roberta-bpe",
                "gigachat",
                "a.x-4.0",
                "mellum",
                "modern-bert",
                "exaone4",
                "mpt",
                "olmo",
                "jais",
                "trillion",
                "granite-docling",
            ],
            GPT2,
            ByMerges,
            NotAdded,
        ),
        (
            &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
            SINGLE_DIGITS,
            ByMerges,
            NotAdded,
        ),
        (
            &[
                "qwen2",
                "deepseek-r1-qwen",
                "kormo",
                "f2llmv2",
                "megrez",
                "stablelm2",
                "hunyuan",
                "solar-open",
                "grok-2",
            ],
            QWEN2,
            ByMerges,
            NotAdded,
        ),
        (&["qwen35"], QWEN35, ByMerges, NotAdded),
        (&["seed-coder"], SEED_CODER, ByMerges, NotAdded),
        (&["bailingmoe", "bailingmoe2", "llada-moe"], BAILING, ByMerges, NotAdded),
        (&["tekken"], TEKKEN, First, Added),
        (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], GPT4O, ByMerges, NotAdded),
        (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK3, ByMerges, NotAdded),
        (&["deepseek-coder"], DEEPSEEK_CODER, ByMerges, NotAdded),
        (&["falcon"], FALCON, ByMerges, NotAdded),
        (&["bloom", "poro-chat", "gpt3-finnish"], BLOOM, ByMerges, NotAdded),
        (&["viking"], VIKING, ByMerges, NotAdded),
    ]
};

/// The pre-tokenizer of that name.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    let row = TABLE.iter().find(|(names, ..)| names.contains(&name))?;
    Some(PreTokenizer { patterns: row.1, whole_words: row.2, bos: row.3 })
}

/// All names, for messages.
pub(super) fn known_names() -> String {
    TABLE.iter().flat_map(|(names, ..)| names.iter().copied()).collect::<Vec<_>>().join(", ")
}
