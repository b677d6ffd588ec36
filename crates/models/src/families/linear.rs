//! Products with weights, norms.

use super::context::{Context, LayerRef};
use super::error::FamilyError;
use loadmaster_graph::TensorId;

impl Context<'_> {
    /// The product with a weight, and the weight's scale where the file has one.
    pub(super) fn linear(
        &mut self,
        weight: TensorId,
        cur: TensorId,
        scale: Option<TensorId>,
    ) -> Result<TensorId, FamilyError> {
        let out = self.b.mul_mat(weight, cur)?;
        Ok(match scale {
            Some(scale) => self.b.mul(out, scale)?,
            None => out,
        })
    }

    /// RMS norm, then its weight. The norm of a layer is what llama.cpp pins to the layer's device.
    pub(super) fn norm(
        &mut self,
        cur: TensorId,
        weight: TensorId,
        layer: Option<LayerRef>,
    ) -> Result<TensorId, FamilyError> {
        let norm = self.b.rms_norm(cur, self.params.norm_epsilon)?;
        match layer {
            Some(layer) => {
                self.name(norm, "norm", layer)?;
                self.norms.push((norm, layer.id));
            }
            None => self.b.set_name(norm, "norm")?,
        }
        Ok(self.b.mul(norm, weight)?)
    }

    /// The norm that `name` is the weight of.
    pub(super) fn layer_norm(
        &mut self,
        cur: TensorId,
        name: &str,
        width: u64,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let weight = self.layer_weight(layer, name, &[width])?;
        self.norm(cur, weight, Some(layer))
    }
}
