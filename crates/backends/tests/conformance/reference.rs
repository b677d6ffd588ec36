//! Every operation in double precision, one result element at a time.

use crate::tensor::{Host, indices};
use loadmaster_graph::Op;

/// A node to be computed.
pub struct Node<'a> {
    pub op: Op,
    pub params: &'a [u32],
    pub src: &'a [Option<Host>],
}

impl Node<'_> {
    fn src(&self, i: usize) -> &Host {
        self.src[i].as_ref().unwrap()
    }
    fn maybe(&self, i: usize) -> Option<&Host> {
        self.src.get(i).and_then(Option::as_ref)
    }
    fn int(&self, i: usize) -> i64 {
        i64::from(self.params.get(i).copied().unwrap_or(0) as i32)
    }
    fn float(&self, i: usize) -> f64 {
        f64::from(f32::from_bits(self.params.get(i).copied().unwrap_or(0)))
    }

    /// The values of the result, in index order. `dst` gives its extents and what stood there before.
    pub fn expected(&self, dst: &Host) -> Vec<f64> {
        match self.op {
            Op::SetRows => self.set_rows(dst),
            Op::Dup | Op::Cpy | Op::Cont => self.src(0).values(),
            Op::Argsort => self.argsort(dst),
            Op::FlashAttnExt => {
                indices([1, dst.ne[1], dst.ne[2], dst.ne[3]]).flat_map(|at| self.attention(at)).collect()
            }
            Op::MulMat | Op::MulMatId => {
                let sums = |terms: Vec<f64>| terms.iter().sum();
                self.products(dst, sums)
            }
            _ => indices(dst.ne).map(|at| self.element(at, dst)).collect(),
        }
    }

    fn element(&self, at: [u64; 4], dst: &Host) -> f64 {
        let [i, j, k, l] = at;
        match self.op {
            Op::Add => self.src(0).at(at) + self.src(1).wrapped(at),
            Op::Sub => self.src(0).at(at) - self.src(1).wrapped(at),
            Op::Mul => self.src(0).at(at) * self.src(1).wrapped(at),
            Op::Div => self.src(0).at(at) / self.src(1).wrapped(at),
            Op::AddId => {
                let row = self.src(2).at([j, k, 0, 0]) as u64;
                self.src(0).at(at) + self.src(1).at([i, row, 0, 0])
            }
            Op::Scale => self.src(0).at(at) * self.float(0) + self.float(1),
            Op::Clamp => self.src(0).at(at).max(self.float(0)).min(self.float(1)),
            Op::Fill => self.float(0),
            Op::Repeat => self.src(0).wrapped(at),
            Op::Concat => self.concat(at),
            Op::GetRows => self.src(0).at([i, self.src(1).at([j, k, l, 0]) as u64, k, l]),
            Op::Norm | Op::RmsNorm | Op::L2Norm => self.norm(at),
            Op::SumRows => self.row(0, [0, j, k, l]).iter().sum(),
            Op::Mean => self.row(0, [0, j, k, l]).iter().sum::<f64>() / self.src(0).ne[0] as f64,
            Op::Sum => self.src(0).values().iter().sum(),
            Op::Argmax => {
                argmax(&self.src(0).values()[(i * self.src(0).ne[0]) as usize..][..self.src(0).ne[0] as usize])
            }
            Op::SoftMax => self.soft_max(at),
            Op::Rope => self.rope(at),
            op if op.kind() == loadmaster_graph::OpKind::Glu => self.glu(at, dst),
            op => unary(op, self.src(0).at(at)),
        }
    }

    /// A number for each element of a product, from the terms that are added up to it.
    fn products(&self, dst: &Host, from: impl Fn(Vec<f64>) -> f64) -> Vec<f64> {
        let (w, x) = (self.src(0), self.src(1));
        let (weights, activations) = (w.values(), x.values());
        let start = |t: &Host, [j, k, l]: [u64; 3]| (t.ne[0] * (j + t.ne[1] * (k + t.ne[2] * l))) as usize;
        let n = w.ne[0] as usize;
        let element = |[i, j, k, l]: [u64; 4]| {
            let (matrix, column) = if self.op == Op::MulMat {
                let (r2, r3) = (x.ne[2] / w.ne[2], x.ne[3] / w.ne[3]);
                ([k / r2, l / r3], [j, k, l])
            } else {
                ([self.src(2).at([j, k, 0, 0]) as u64, 0], [j % x.ne[1], k, 0])
            };
            let row = &weights[start(w, [i, matrix[0], matrix[1]])..][..n];
            let column = &activations[start(x, column)..][..n];
            from(row.iter().zip(column).map(|(w, x)| w * x).collect())
        };
        indices(dst.ne).map(element).collect()
    }

    /// Sum of the squares of all terms of all elements of a product.
    pub fn squared_terms(&self, dst: &Host) -> f64 {
        self.products(dst, |terms| terms.iter().map(|t| t * t).sum()).iter().sum()
    }

    fn row(&self, src: usize, at: [u64; 4]) -> Vec<f64> {
        let t = self.src(src);
        (0..t.ne[0]).map(|i| t.at([i, at[1], at[2], at[3]])).collect()
    }

    fn concat(&self, at: [u64; 4]) -> f64 {
        let (a, b, dim) = (self.src(0), self.src(1), self.int(0) as usize);
        if at[dim] < a.ne[dim] {
            return a.at(at);
        }
        let mut inner = at;
        inner[dim] -= a.ne[dim];
        b.at(inner)
    }

    fn norm(&self, at: [u64; 4]) -> f64 {
        let (row, eps) = (self.row(0, at), self.float(0));
        let n = row.len() as f64;
        let squares: f64 = row.iter().map(|v| v * v).sum();
        let x = row[at[0] as usize];
        match self.op {
            Op::RmsNorm => x / (squares / n + eps).sqrt(),
            Op::L2Norm => x / squares.sqrt().max(eps),
            _ => {
                let mean = row.iter().sum::<f64>() / n;
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                (x - mean) / (variance + eps).sqrt()
            }
        }
    }

    fn argsort(&self, dst: &Host) -> Vec<f64> {
        let mut all = Vec::new();
        for at in indices([1, dst.ne[1], dst.ne[2], dst.ne[3]]) {
            let row = self.row(0, at);
            let mut order: Vec<usize> = (0..row.len()).collect();
            match self.int(0) {
                0 => order.sort_by(|&a, &b| row[a].partial_cmp(&row[b]).unwrap()),
                _ => order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap()),
            }
            all.extend(order.iter().map(|&i| i as f64));
        }
        all
    }

    fn set_rows(&self, dst: &Host) -> Vec<f64> {
        let (src, ids) = (self.src(0), self.src(1));
        let mut values = dst.values();
        for [i, j, k, l] in indices(src.ne) {
            let row = ids.at([j, k % ids.ne[1], l % ids.ne[2], 0]) as u64;
            let place = i + dst.ne[0] * (row + dst.ne[1] * (k + dst.ne[2] * l));
            values[place as usize] = src.at([i, j, k, l]);
        }
        values
    }

    fn soft_max(&self, at: [u64; 4]) -> f64 {
        let [_, j, k, l] = at;
        let slope = slope(self.float(1), k, self.src(0).ne[2]);
        let row = self.row(0, at);
        let bias = |i: u64| self.maybe(1).map_or(0.0, |m| slope * m.at([i, j, k % m.ne[2], l % m.ne[3]]));
        let scores: Vec<f64> = row.iter().zip(0..).map(|(x, i)| x * self.float(0) + bias(i)).collect();
        let sink = self.maybe(2).map_or(f64::NEG_INFINITY, |s| s.at([k, 0, 0, 0]));
        let max = scores.iter().copied().fold(sink, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        (scores[at[0] as usize] - max).exp() / (sum + (sink - max).exp())
    }

    /// The result of one head and query.
    fn attention(&self, [_, h, q, l]: [u64; 4]) -> Vec<f64> {
        let (query, key, value) = (self.src(0), self.src(1), self.src(2));
        let heads = query.ne[2];
        let (scale, cap) = (self.float(0), self.float(2));
        let place = |t: &Host, n: u64| [n, h / (heads / t.ne[2]), l / (query.ne[3] / t.ne[3])];
        let score = |n: u64| {
            let [a, b, c] = place(key, n);
            let dot: f64 = (0..key.ne[0]).map(|e| key.at([e, a, b, c]) * query.at([e, q, h, l])).sum();
            let capped = if cap == 0.0 { dot * scale } else { cap * (dot * scale / cap).tanh() };
            let slope = slope(self.float(1), h, heads);
            capped + self.maybe(3).map_or(0.0, |m| slope * m.at([n, q, h % m.ne[2], l % m.ne[3]]))
        };
        let scores: Vec<f64> = (0..key.ne[1]).map(score).collect();
        let sink = self.maybe(4).map_or(f64::NEG_INFINITY, |s| s.at([h, 0, 0, 0]));
        let max = scores.iter().copied().fold(sink, f64::max);
        if max == f64::NEG_INFINITY {
            return vec![0.0; value.ne[0] as usize];
        }
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (sink - max).exp();
        let one = |i: u64| {
            let seen = weights.iter().zip(0..).filter(|(w, _)| **w != 0.0);
            let weighted = seen.map(|(w, n)| {
                let [a, b, c] = place(value, n);
                w * value.at([i, a, b, c])
            });
            weighted.sum::<f64>() / sum
        };
        (0..value.ne[0]).map(one).collect()
    }

    fn rope(&self, at: [u64; 4]) -> f64 {
        let (x, pos) = (self.src(0), self.src(1));
        let (dims, neox, offset) = (self.int(1) as u64, self.int(2) == 2, self.int(15) as u64);
        if at[0] < offset || at[0] >= offset + dims {
            return x.at(at);
        }
        let i = at[0] - offset;
        let (pair, second) = if neox { (i % (dims / 2), i >= dims / 2) } else { (i / 2, i % 2 == 1) };
        let (first_at, step) = if neox { (offset + pair, dims / 2) } else { (offset + 2 * pair, 1) };
        let a = x.at([first_at, at[1], at[2], at[3]]);
        let b = x.at([first_at + step, at[1], at[2], at[3]]);
        let factor = self.maybe(2).map_or(1.0, |f| f.at([pair, 0, 0, 0]));
        let base = self.float(5);
        let theta = pos.at([at[2], 0, 0, 0]) * base.powf(-2.0 * pair as f64 / dims as f64) / factor;
        let (angle, magnitude) = self.yarn(theta, pair as f64, dims as f64, base);
        let (sin, cos) = angle.sin_cos();
        magnitude * if second { a * sin + b * cos } else { a * cos - b * sin }
    }

    fn yarn(&self, theta: f64, pair: f64, dims: f64, base: f64) -> (f64, f64) {
        let (freq_scale, ext, attn) = (self.float(6), self.float(7), self.float(8));
        if ext == 0.0 {
            return (theta * freq_scale, attn);
        }
        let dim = |rotations: f64| {
            dims * (self.int(4) as f64 / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
        };
        let low = dim(self.float(9)).floor().max(0.0);
        let high = dim(self.float(10)).ceil().min(dims - 1.0);
        let ramp = ext * (1.0 - ((pair - low) / (high - low).max(0.001)).clamp(0.0, 1.0));
        (theta * freq_scale * (1.0 - ramp) + theta * ramp, attn * (1.0 + 0.1 * (1.0 / freq_scale).ln()))
    }

    fn glu(&self, at: [u64; 4], dst: &Host) -> f64 {
        let shifted = |by: u64| [at[0] + by, at[1], at[2], at[3]];
        let (x, g) = match self.maybe(1) {
            Some(g) => (self.src(0).at(at), g.at(at)),
            None => {
                let halves = (self.src(0).at(at), self.src(0).at(shifted(dst.ne[0])));
                if self.int(1) == 0 { halves } else { (halves.1, halves.0) }
            }
        };
        let (alpha, limit) = (self.float(2), self.float(3));
        match self.op {
            Op::Reglu => x.max(0.0) * g,
            Op::Geglu => unary(Op::Gelu, x) * g,
            Op::GegluErf => unary(Op::GeluErf, x) * g,
            Op::GegluQuick => unary(Op::GeluQuick, x) * g,
            Op::Swiglu => unary(Op::Silu, x) * g,
            Op::SwigluOai => {
                let x = x.min(limit);
                x / (1.0 + (-alpha * x).exp()) * (g.clamp(-limit, limit) + 1.0)
            }
            Op::SwigluClamp => unary(Op::Silu, x.min(limit)) * g.clamp(-limit, limit),
            op => panic!("{op} has no reference"),
        }
    }
}

fn slope(max_bias: f64, head: u64, heads: u64) -> f64 {
    if max_bias == 0.0 {
        return 1.0;
    }
    let whole = 1u64 << heads.ilog2();
    let exponent =
        if head < whole { max_bias * (head + 1) as f64 } else { max_bias / 2.0 * (2 * (head - whole) + 1) as f64 };
    2f64.powf(-exponent / whole as f64)
}

fn argmax(row: &[f64]) -> f64 {
    (0..row.len()).rev().max_by(|&a, &b| row[a].partial_cmp(&row[b]).unwrap()).unwrap() as f64
}

/// Integral of the Gauss function by Simpson's rule: slow and independent.
fn erf(x: f64) -> f64 {
    let n = 2000;
    let f = |t: f64| (-t * t).exp();
    let h = x / f64::from(n);
    let inner: f64 = (1..n).map(|i| f(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (f(0.0) + inner + f(x)) * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
}

fn unary(op: Op, x: f64) -> f64 {
    match op {
        Op::Abs => x.abs(),
        Op::Sgn => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        Op::Neg => -x,
        Op::Step => f64::from(u8::from(x > 0.0)),
        Op::Relu => x.max(0.0),
        Op::Sqr => x * x,
        Op::Sqrt => x.sqrt(),
        Op::Log => x.ln(),
        Op::Sin => x.sin(),
        Op::Cos => x.cos(),
        Op::Floor => x.floor(),
        Op::Ceil => x.ceil(),
        Op::Round => x.round(),
        Op::Trunc => x.trunc(),
        Op::Exp => x.exp(),
        Op::Expm1 => x.exp() - 1.0,
        Op::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Op::Silu => x / (1.0 + (-x).exp()),
        Op::Tanh => x.tanh(),
        Op::Elu => {
            if x > 0.0 {
                x
            } else {
                x.exp_m1()
            }
        }
        Op::Softplus => (1.0 + x.exp()).ln(),
        Op::Hardswish => x * ((x + 3.0) / 6.0).clamp(0.0, 1.0),
        Op::Hardsigmoid => ((x + 3.0) / 6.0).clamp(0.0, 1.0),
        Op::Gelu => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Op::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Op::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        op => panic!("{op} has no reference"),
    }
}
