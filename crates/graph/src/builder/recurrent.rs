//! Recurrent layers: short convolutions, state-space scans, the gated delta rule.

use super::{Built, GraphBuilder, OperandFault, contiguous, params, sources};
use crate::dtype::DType;
use crate::id::TensorId;
use crate::op::Op;

impl GraphBuilder {
    /// A convolution of each channel along time. `x`: `[taps - 1 + tokens, channels, seqs]`, `kernel`: `[taps, channels]`.
    /// Result: F32 `[channels, tokens, seqs]`.
    pub fn ssm_conv(&mut self, x: TensorId, kernel: TensorId) -> Built {
        let op = Op::SsmConv;
        let (input, taps) = (self.operand(op, x)?, self.operand(op, kernel)?);
        let flat = input.ne[3] == 1 && taps.is_matrix();
        self.require(flat, op, OperandFault::TooManyDimensions, &[x, kernel])?;
        let tokens = (input.ne[0] + 1).checked_sub(taps.ne[0]);
        let fits = tokens.filter(|_| input.ne[1] == taps.ne[1]);
        self.require(fits.is_some(), op, OperandFault::ExtentsDiffer, &[x, kernel])?;
        let mut result = contiguous(op, DType::F32, [taps.ne[1], fits.unwrap_or(0), input.ne[2], 1])?;
        result.src = sources(&[Some(x), Some(kernel)]);
        self.push(result)
    }

    /// A state-space scan. `operands`, in ggml's order: state `[d_state, head_dim, heads, rs]`, x `[head_dim, heads,
    /// tokens, seqs]`, dt `[heads, tokens, seqs]`, A `[1 or d_state, heads]`, B and C `[d_state, groups, tokens, seqs]`,
    /// ids I32 `[seqs]`. `snapshots` states are kept for each sequence. Result: F32, the outputs and then the states.
    pub fn ssm_scan(&mut self, operands: [TensorId; 7], snapshots: u32) -> Built {
        let op = Op::SsmScan;
        let [s, x, dt, a, b, c, ids] = operands;
        let (s, x, dt, a) = (self.operand(op, s)?, self.operand(op, x)?, self.operand(op, dt)?, self.operand(op, a)?);
        let (b, c, ids) = (self.operand(op, b)?, self.operand(op, c)?, self.operand(op, ids)?);
        let dense = s.is_contiguous() && dt.is_contiguous() && a.is_contiguous();
        self.require(dense, op, OperandFault::NotContiguous, &operands)?;
        self.require(ids.dtype == DType::I32, op, OperandFault::WrongType, &operands)?;
        let flat = dt.ne[3] == 1 && ids.is_vector() && a.is_matrix();
        self.require(flat, op, OperandFault::TooManyDimensions, &operands)?;
        let [head_dim, heads, tokens, seqs] = x.ne;
        let states = s.ne[1] == head_dim && s.ne[2] == heads && a.ne[1] == heads && ids.ne[0] == seqs;
        let inputs = dt.ne == [heads, tokens, seqs, 1] && b.ne == c.ne && b.ne[0] == s.ne[0] && b.ne[2..] == x.ne[2..];
        let decay = a.ne[0] == 1 || a.ne[0] == s.ne[0] && snapshots == 1;
        let fits = states && inputs && decay && snapshots >= 1;
        self.require(fits, op, OperandFault::ExtentsDiffer, &operands)?;
        let state = [s.ne[0], s.ne[1], s.ne[2], ids.ne[0], u64::from(snapshots)];
        let elements = x.elements().saturating_add(state.into_iter().fold(1, u64::saturating_mul));
        let mut result = contiguous(op, DType::F32, [elements, 1, 1, 1])?;
        result.src = sources(&operands.map(Some));
        result.params = params(&[snapshots]);
        self.push(result)
    }

    /// The gated delta rule. `operands`, in ggml's order: q, k, v `[n, heads, tokens, seqs]`, gate `[1 or n, heads, tokens,
    /// seqs]`, beta `[1, heads, tokens, seqs]`, state `[n, n, heads, seqs]`. `snapshots` states are kept for each sequence.
    /// Result: F32 `[n · heads, tokens · seqs + snapshots · n · seqs]`.
    pub fn gated_delta_net(&mut self, operands: [TensorId; 6], snapshots: u32) -> Built {
        let op = Op::GatedDeltaNet;
        let [q, k, v, gate, beta, state] = operands;
        let (q, k, v) = (self.operand(op, q)?, self.operand(op, k)?, self.operand(op, v)?);
        let (gate, beta, state) = (self.operand(op, gate)?, self.operand(op, beta)?, self.operand(op, state)?);
        let rows = [q, k, v].into_iter().all(|t| t.has_contiguous_rows());
        self.require(rows, op, OperandFault::RowsNotContiguous, &operands)?;
        let dense = [gate, beta, state].into_iter().all(|t| t.is_contiguous());
        self.require(dense, op, OperandFault::NotContiguous, &operands)?;
        let floats = [q, k, v, gate, beta, state].into_iter().all(|t| t.dtype == DType::F32);
        self.require(floats, op, OperandFault::WrongType, &operands)?;
        let [n, heads, tokens, seqs] = v.ne;
        let gates = (gate.ne[0] == 1 || gate.ne[0] == n) && beta.ne[0] == 1;
        let fits = gates && state.ne == [n, n, heads, seqs] && snapshots >= 1;
        self.require(fits, op, OperandFault::ExtentsDiffer, &operands)?;
        let state_rows = [u64::from(snapshots), n, seqs].into_iter().fold(1, u64::saturating_mul);
        let all_rows = tokens.saturating_mul(seqs).saturating_add(state_rows);
        let mut result = contiguous(op, DType::F32, [n.saturating_mul(heads), all_rows, 1, 1])?;
        result.src = sources(&operands.map(Some));
        result.params = params(&[snapshots]);
        self.push(result)
    }
}
