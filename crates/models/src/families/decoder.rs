//! The decoder that all families share, and what each does differently.

use super::GraphSpec;
use super::context::{Context, LayerRef};
use super::error::FamilyError;
use super::feed_forward::Extras;
use super::model::{InputKind, ModelGraph};
use super::spec::Part;
use crate::gguf::Gguf;
use crate::hparams::{Architecture, HParams, LayerId, RopeScaling};
use loadmaster_graph::{ColumnOrder, IdVec, Op, TensorId};

/// How a family departs from the plain decoder.
struct Recipe {
    embeddings: Embeddings,
    head_norms: HeadNorms,
    factors: RopeFactors,
    query_scale: QueryScale,
    attention_bias: AttentionBias,
    residual: Residual,
    feed_forward: FeedForward,
    output_bias: OutputBias,
}

enum Embeddings {
    Plain,
    /// Times the square root of their width (Gemma).
    Scaled,
}

#[derive(PartialEq, Eq)]
enum HeadNorms {
    None,
    /// Queries and keys are normed, head by head.
    QueriesAndKeys,
}

enum RopeFactors {
    None,
    /// `rope_freqs`, or the pair for long contexts where the file is scaled so.
    PerFrequency,
    /// `rope_factors_long` or `rope_factors_short`.
    ByContext,
}

enum QueryScale {
    /// Attention scales its scores.
    InAttention,
    /// Queries are scaled before.
    Before(&'static str),
}

enum AttentionBias {
    None,
    Optional,
}

enum Residual {
    /// `x + f(norm(x))`.
    Plain(AttentionNames),
    /// `x + norm(f(norm(x)))` (Gemma).
    PostNorms,
}

/// Names of what attention puts out, and of the sum with its input.
struct AttentionNames {
    output: Option<&'static str>,
    sum: Option<&'static str>,
}

#[derive(Clone, Copy)]
enum FeedForward {
    Gated(Op, Extras),
    Fused,
}

enum OutputBias {
    None,
    /// With a name for the product without bias, where llama.cpp gives one.
    Optional(Option<&'static str>),
}

fn recipe(params: &HParams) -> Recipe {
    let plain = Recipe {
        embeddings: Embeddings::Plain,
        head_norms: HeadNorms::None,
        factors: RopeFactors::None,
        query_scale: QueryScale::InAttention,
        attention_bias: AttentionBias::None,
        residual: Residual::Plain(AttentionNames { output: None, sum: Some("ffn_inp") }),
        feed_forward: FeedForward::Gated(Op::Swiglu, Extras::None),
        output_bias: OutputBias::None,
    };
    match params.arch {
        Architecture::Llama => Recipe {
            factors: RopeFactors::PerFrequency,
            attention_bias: AttentionBias::Optional,
            residual: Residual::Plain(AttentionNames { output: Some("attn_out"), sum: Some("ffn_inp") }),
            feed_forward: FeedForward::Gated(Op::Swiglu, Extras::BiasesAndScales),
            ..plain
        },
        Architecture::Qwen2 => Recipe { output_bias: OutputBias::Optional(None), ..plain },
        Architecture::Qwen3 => Recipe {
            head_norms: HeadNorms::QueriesAndKeys,
            feed_forward: FeedForward::Gated(Op::Swiglu, Extras::Scales),
            ..plain
        },
        Architecture::Qwen3Moe => Recipe { head_norms: HeadNorms::QueriesAndKeys, ..plain },
        Architecture::Gemma3 => Recipe {
            embeddings: Embeddings::Scaled,
            head_norms: HeadNorms::QueriesAndKeys,
            query_scale: QueryScale::Before(""),
            residual: Residual::PostNorms,
            feed_forward: FeedForward::Gated(Op::Geglu, Extras::None),
            ..plain
        },
        Architecture::Phi3 => Recipe {
            factors: RopeFactors::ByContext,
            query_scale: QueryScale::Before("Qcur"),
            attention_bias: AttentionBias::Optional,
            residual: Residual::Plain(AttentionNames { output: None, sum: None }),
            feed_forward: FeedForward::Fused,
            output_bias: OutputBias::Optional(Some("result_output_no_bias")),
            ..plain
        },
    }
}

pub(super) fn build(file: &Gguf, params: &HParams, spec: &GraphSpec) -> Result<ModelGraph, FamilyError> {
    let recipe = recipe(params);
    let mut c = Context::new(file, params, spec)?;
    let mut cur = c.embeddings(&recipe)?;
    for (i, layer) in params.layers.iter().enumerate() {
        let layer = LayerRef::new(LayerId::new(i), layer);
        cur = c.layer(cur, &recipe, layer)?;
    }
    let logits = c.output(cur, &recipe)?;
    finish(c, logits)
}

/// Numbers the graph as files are numbered, and everything that refers to its tensors with it.
fn finish(c: Context<'_>, logits: TensorId) -> Result<ModelGraph, FamilyError> {
    let (inputs, weights, shares_weights) = (c.inputs(), c.weights(), c.shares_weights());
    let (graph, ids) = c.b.finish_numbered(c.params.arch.name())?;
    let ids: IdVec<TensorId, Option<TensorId>> = ids;
    let of = |id: TensorId| ids[id];
    let mut out = ModelGraph {
        inputs: inputs.into_iter().filter_map(|i| Some(super::Input { tensor: of(i.tensor)?, ..i })).collect(),
        weights: weights.into_iter().filter_map(|w| Some(super::WeightUse { tensor: of(w.tensor)?, ..w })).collect(),
        caches: c.caches.into_iter().filter_map(|u| Some(super::CacheUse { tensor: of(u.tensor)?, ..u })).collect(),
        norms: c.norms.into_iter().filter_map(|(id, layer)| Some((of(id)?, layer))).collect(),
        attention_outputs: c.attention_outputs.into_iter().filter_map(|(id, l)| Some((of(id)?, l))).collect(),
        // The logits were expanded last.
        logits: of(logits).unwrap_or(logits),
        graph,
        shares_weights,
    };
    out.inputs.sort_by_key(|i| i.tensor);
    out.weights.sort_by_key(|w| w.tensor);
    out.caches.sort_by_key(|u| u.tensor);
    Ok(out)
}

impl Context<'_> {
    fn embeddings(&mut self, recipe: &Recipe) -> Result<TensorId, FamilyError> {
        let ne = [self.embedding(), self.params.vocab.into()];
        let table = self.weight("token_embd.weight", Part::Input, &ne)?;
        let tokens = self.input(InputKind::Tokens)?;
        let rows = self.b.get_rows(table, tokens)?;
        // llama.cpp takes tokens or embeddings, and keeps both ways in the graph so that it is the same for both.
        let given = self.input(InputKind::Embeddings)?;
        self.b.expand(rows)?;
        self.b.expand(given)?;
        self.b.set_name(rows, "embd")?;
        match recipe.embeddings {
            Embeddings::Plain => Ok(rows),
            Embeddings::Scaled => {
                let scaled = self.b.scale(rows, (self.params.embedding as f32).sqrt())?;
                self.b.set_name(scaled, "inp_scaled")?;
                Ok(scaled)
            }
        }
    }

    fn layer(&mut self, input: TensorId, recipe: &Recipe, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let normed = self.layer_norm(input, "attn_norm.weight", self.embedding(), layer)?;
        self.name(normed, "attn_norm", layer)?;
        let attended = self.attention_block(normed, recipe, layer)?;
        let (attended, input) = self.wanted_rows(attended, input, layer)?;
        let sum = self.attention_sum(attended, input, recipe, layer)?;
        let normed = self.layer_norm(sum, "ffn_norm.weight", self.embedding(), layer)?;
        self.name(normed, "ffn_norm", layer)?;
        let out = self.feed_forward_block(normed, recipe, layer)?;
        let out = match recipe.residual {
            Residual::Plain(_) if self.params.arch == Architecture::Phi3 => self.b.add(sum, out)?,
            Residual::Plain(_) => self.b.add(out, sum)?,
            Residual::PostNorms => {
                let weight = self.layer_weight(layer, "post_ffw_norm.weight", &[self.embedding()])?;
                let normed = self.norm(out, weight, None)?;
                self.name(normed, "ffn_post_norm", layer)?;
                self.b.add(normed, sum)?
            }
        };
        self.name(out, "l_out", layer)?;
        Ok(out)
    }

    fn attention_block(&mut self, cur: TensorId, recipe: &Recipe, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let factors = self.rope_factors(recipe, layer)?;
        let mut qkv = self.qkv(cur, layer)?;
        if recipe.head_norms == HeadNorms::QueriesAndKeys {
            qkv.q = self.layer_norm(qkv.q, "attn_q_norm.weight", self.head(), layer)?;
            self.name(qkv.q, "Qcur_normed", layer)?;
            qkv.k = self.layer_norm(qkv.k, "attn_k_norm.weight", self.head(), layer)?;
            self.name(qkv.k, "Kcur_normed", layer)?;
        }
        qkv.q = self.rope(qkv.q, factors, layer)?;
        qkv.k = self.rope(qkv.k, factors, layer)?;
        self.name(qkv.q, "Qcur", layer)?;
        self.name(qkv.k, "Kcur", layer)?;
        self.name(qkv.v, "Vcur", layer)?;
        let scale = match recipe.query_scale {
            QueryScale::InAttention => self.params.attention_scale,
            QueryScale::Before(name) => {
                qkv.q = self.b.scale(qkv.q, self.params.attention_scale)?;
                if !name.is_empty() {
                    self.name(qkv.q, name, layer)?;
                }
                1.0
            }
        };
        let mut out = self.attend(qkv, scale, layer)?;
        if matches!(recipe.attention_bias, AttentionBias::Optional)
            && let Some(bias) = self.layer_optional(layer, "attn_output.bias", &[self.embedding()])?
        {
            out = self.b.add(out, bias)?;
        }
        if let Residual::Plain(AttentionNames { output: Some(name), .. }) = recipe.residual {
            self.name(out, name, layer)?;
        }
        Ok(out)
    }

    /// Factors per frequency: of Llama 3.1, or of models with two sets of them. Each layer has its own copy where its
    /// device has.
    fn rope_factors(&mut self, recipe: &Recipe, layer: LayerRef) -> Result<Option<TensorId>, FamilyError> {
        let by_context = match recipe.factors {
            RopeFactors::None => return Ok(None),
            RopeFactors::PerFrequency => self.params.rope.scaling == RopeScaling::LongRope,
            RopeFactors::ByContext => true,
        };
        let long = self.layout.cells > self.params.rope.original_context;
        let name = match (by_context, long) {
            (false, _) => "rope_freqs.weight",
            (true, true) => "rope_factors_long.weight",
            (true, false) => "rope_factors_short.weight",
        };
        self.rotary_factors(name, layer, &[u64::from(self.params.rope.dims) / 2])
    }

    /// In the last layer only the rows whose logits are wanted go on.
    fn wanted_rows(
        &mut self,
        attended: TensorId,
        input: TensorId,
        layer: LayerRef,
    ) -> Result<(TensorId, TensorId), FamilyError> {
        if layer.id.index() + 1 != self.params.layers.len() {
            return Ok((attended, input));
        }
        let rows = self.input(InputKind::OutputRows)?;
        // A prompt's last token goes on alone, however many prompts end here.
        self.b.set_column_order(ColumnOrder::default());
        Ok((self.b.get_rows(attended, rows)?, self.b.get_rows(input, rows)?))
    }

    fn attention_sum(
        &mut self,
        attended: TensorId,
        input: TensorId,
        recipe: &Recipe,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        match &recipe.residual {
            Residual::Plain(names) => {
                let sum = self.b.add(attended, input)?;
                if let Some(name) = names.sum {
                    self.name(sum, name, layer)?;
                }
                Ok(sum)
            }
            Residual::PostNorms => {
                let normed = self.layer_norm(attended, "post_attention_norm.weight", self.embedding(), layer)?;
                self.name(normed, "attn_post_norm", layer)?;
                let sum = self.b.add(normed, input)?;
                self.name(sum, "sa_out", layer)?;
                Ok(sum)
            }
        }
    }

    fn feed_forward_block(&mut self, cur: TensorId, recipe: &Recipe, layer: LayerRef) -> Result<TensorId, FamilyError> {
        if let Some(experts) = self.params.experts {
            return self.experts(cur, experts, layer);
        }
        let out = match recipe.feed_forward {
            FeedForward::Gated(glu, extras) => self.gated(cur, glu, extras, layer)?,
            FeedForward::Fused => self.fused_gated(cur, layer)?,
        };
        self.name(out, "ffn_out", layer)?;
        Ok(out)
    }

    fn output(&mut self, cur: TensorId, recipe: &Recipe) -> Result<TensorId, FamilyError> {
        let weight = self.weight("output_norm.weight", Part::Output, &[self.embedding()])?;
        let normed = self.norm(cur, weight, None)?;
        self.b.set_name(normed, "result_norm")?;
        self.b.set_output(normed)?;
        let ne = [self.embedding(), self.params.vocab.into()];
        // Without an output of its own, a model uses its token embedding.
        let name = if self.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        let weight = self.weight(name, Part::Output, &ne)?;
        let scale = self.optional("output.scale", Part::Output, &[1])?;
        let mut out = self.linear(weight, normed, scale)?;
        if let OutputBias::Optional(name) = recipe.output_bias
            && let Some(bias) = self.optional("output.bias", Part::Output, &[self.params.vocab.into()])?
        {
            if let Some(name) = name {
                self.b.set_name(out, name)?;
            }
            out = self.b.add(out, bias)?;
        }
        if let Some(cap) = self.params.logit_softcap {
            out = self.b.scale(out, 1.0 / cap)?;
            out = self.b.unary(Op::Tanh, out)?;
            out = self.b.scale(out, cap)?;
        }
        self.b.set_name(out, "result_output")?;
        self.b.set_output(out)?;
        self.b.expand(out)?;
        Ok(out)
    }
}
