//! Feed-forward layers: gated, fused, and mixtures of experts.

use super::context::{Context, LayerRef};
use super::error::FamilyError;
use crate::hparams::Experts;
use loadmaster_graph::builder::{GluHalves, SoftMax};
use loadmaster_graph::{Op, TensorId};

/// Smallest positive normal number of F16: sums of expert weights are not let below it.
const LEAST_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// Which optional tensors a family's feed-forward layers may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extras {
    /// None.
    None,
    /// Scales.
    Scales,
    /// Biases, then scales.
    BiasesAndScales,
}

impl Context<'_> {
    /// `down(glu(gate(cur), up(cur)))`.
    pub(super) fn gated(
        &mut self,
        cur: TensorId,
        glu: Op,
        extras: Extras,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let (width, inner) = (self.embedding(), layer.feed_forward);
        let up = self.ffn_linear(cur, "ffn_up", [width, inner], extras, layer)?;
        let gate = self.ffn_linear(cur, "ffn_gate", [width, inner], extras, layer)?;
        let cur = self.b.glu_split(glu, gate, up)?;
        let name = if glu == Op::Geglu { "ffn_geglu" } else { "ffn_swiglu" };
        self.name(cur, name, layer)?;
        self.ffn_down(cur, [inner, width], extras, layer)
    }

    /// `down(swiglu(up(cur)))`, where one weight gives both halves (Phi 3).
    pub(super) fn fused_gated(&mut self, cur: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let (width, inner) = (self.embedding(), layer.feed_forward);
        let cur = self.ffn_linear(cur, "ffn_up", [width, 2 * inner], Extras::None, layer)?;
        let cur = self.b.glu(Op::Swiglu, cur, GluHalves::GateFirst)?;
        self.name(cur, "ffn_swiglu", layer)?;
        self.ffn_down(cur, [inner, width], Extras::None, layer)
    }

    fn ffn_linear(
        &mut self,
        cur: TensorId,
        name: &str,
        ne: [u64; 2],
        extras: Extras,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let w = self.layer_weight(layer, &format!("{name}.weight"), &ne)?;
        let mut out = self.b.mul_mat(w, cur)?;
        self.name(out, name, layer)?;
        if let Some(bias) = self.ffn_bias(name, ne[1], extras, layer)? {
            out = self.b.add(out, bias)?;
            self.name(out, &format!("{name}_b"), layer)?;
        }
        if let Some(scale) = self.ffn_scale(name, extras, layer)? {
            out = self.b.mul(out, scale)?;
            self.name(out, &format!("{name}_s"), layer)?;
        }
        Ok(out)
    }

    fn ffn_down(
        &mut self,
        cur: TensorId,
        ne: [u64; 2],
        extras: Extras,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let w = self.layer_weight(layer, "ffn_down.weight", &ne)?;
        let mut out = self.b.mul_mat(w, cur)?;
        if let Some(bias) = self.ffn_bias("ffn_down", ne[1], extras, layer)? {
            self.name(out, "ffn_down", layer)?;
            out = self.b.add(out, bias)?;
        }
        if let Some(scale) = self.ffn_scale("ffn_down", extras, layer)? {
            out = self.b.mul(out, scale)?;
        }
        Ok(out)
    }

    fn ffn_bias(
        &mut self,
        name: &str,
        width: u64,
        extras: Extras,
        layer: LayerRef,
    ) -> Result<Option<TensorId>, FamilyError> {
        if extras != Extras::BiasesAndScales {
            return Ok(None);
        }
        self.layer_optional(layer, &format!("{name}.bias"), &[width])
    }

    fn ffn_scale(&mut self, name: &str, extras: Extras, layer: LayerRef) -> Result<Option<TensorId>, FamilyError> {
        if extras == Extras::None {
            return Ok(None);
        }
        self.layer_optional(layer, &format!("{name}.scale"), &[1])
    }

    /// A mixture of experts: the router's soft-max, the best experts, their weights normalised to 1.
    pub(super) fn experts(
        &mut self,
        cur: TensorId,
        experts: Experts,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let (width, tokens) = (self.b.tensor(cur)?.ne[0], self.b.tensor(cur)?.ne[1]);
        let (chosen, weights) = self.route(cur, experts, layer)?;
        // Early, so that devices can fuse the routing.
        self.b.expand(weights)?;
        let cur = self.b.reshape(cur, &[width, 1, tokens, 1])?;
        let inner = u64::from(experts.feed_forward);
        let up = self.expert_linear(cur, chosen, ("ffn_up_exps", "ffn_moe_up"), [width, inner], experts, layer)?;
        let gate =
            self.expert_linear(cur, chosen, ("ffn_gate_exps", "ffn_moe_gate"), [width, inner], experts, layer)?;
        let cur = self.b.swiglu_split(gate, up)?;
        self.name(cur, "ffn_moe_swiglu", layer)?;
        let down = ("ffn_down_exps", "ffn_moe_down");
        let cur = self.expert_linear(cur, chosen, down, [inner, width], experts, layer)?;
        let cur = self.b.mul(cur, weights)?;
        self.name(cur, "ffn_moe_weighted", layer)?;
        self.b.expand(cur)?;
        self.sum_experts(cur, experts, layer)
    }

    /// The chosen experts `[used, tokens]` and their weights `[1, used, tokens]`.
    fn route(&mut self, cur: TensorId, experts: Experts, layer: LayerRef) -> Result<(TensorId, TensorId), FamilyError> {
        let (count, used) = (u64::from(experts.count), u64::from(experts.used));
        let tokens = self.b.tensor(cur)?.ne[1];
        let router = self.layer_weight(layer, "ffn_gate_inp.weight", &[self.embedding(), count])?;
        let logits = self.b.mul_mat(router, cur)?;
        self.name(logits, "ffn_moe_logits", layer)?;
        let probs = self.b.soft_max(logits, SoftMax::default())?;
        self.name(probs, "ffn_moe_probs", layer)?;
        let chosen = self.b.argsort_top_k(probs, used)?;
        if let Some(sorted) = self.b.tensor(chosen)?.src.first().copied().flatten() {
            self.name(sorted, "ffn_moe_argsort", layer)?;
        }
        self.name(chosen, "ffn_moe_topk", layer)?;
        let probs = self.b.reshape(probs, &[1, count, tokens, 1])?;
        let weights = self.b.get_rows(probs, chosen)?;
        self.name(weights, "ffn_moe_weights", layer)?;
        let weights = self.b.reshape(weights, &[used, tokens, 1, 1])?;
        let sum = self.b.sum_rows(weights)?;
        self.name(sum, "ffn_moe_weights_sum", layer)?;
        let sum = self.b.clamp(sum, LEAST_WEIGHT_SUM, f32::INFINITY)?;
        self.name(sum, "ffn_moe_weights_sum_clamped", layer)?;
        let weights = self.b.div(weights, sum)?;
        self.name(weights, "ffn_moe_weights_norm", layer)?;
        Ok((chosen, self.b.reshape(weights, &[1, used, tokens, 1])?))
    }

    fn expert_linear(
        &mut self,
        cur: TensorId,
        chosen: TensorId,
        (weight, name): (&str, &str),
        ne: [u64; 2],
        experts: Experts,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let count = u64::from(experts.count);
        let tokens = self.b.tensor(cur)?.ne[2];
        let w = self.layer_weight(layer, &format!("{weight}.weight"), &[ne[0], ne[1], count])?;
        let out = self.b.mul_mat_id(w, cur, chosen)?;
        let Some(scale) = self.layer_optional(layer, &format!("{weight}.scale"), &[count])? else {
            self.name(out, name, layer)?;
            return Ok(out);
        };
        let scale = self.b.reshape(scale, &[1, count, 1, 1])?;
        let scale = self.b.repeat(scale, [1, count, tokens, 1])?;
        let scale = self.b.get_rows(scale, chosen)?;
        let out = self.b.mul(out, scale)?;
        self.name(out, &format!("{name}_scaled"), layer)?;
        Ok(out)
    }

    /// Adds up the experts of each token: views first, then the sums.
    fn sum_experts(&mut self, cur: TensorId, experts: Experts, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let t = self.b.tensor(cur)?;
        let (width, tokens, nb) = (t.ne[0], t.ne[2], t.nb);
        let mut views = Vec::with_capacity(experts.used as usize);
        for i in 0..u64::from(experts.used) {
            let view = self.view(cur, &[width, tokens], &[nb[2]], i * nb[1])?;
            self.b.expand(view)?;
            views.push(view);
        }
        let mut sum = views[0];
        for &view in &views[1..] {
            sum = self.b.add(sum, view)?;
            self.b.expand(sum)?;
        }
        if views.len() == 1 {
            sum = self.b.cont(sum)?;
        }
        self.name(sum, "ffn_moe_out", layer)?;
        Ok(sum)
    }
}
