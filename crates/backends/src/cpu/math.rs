//! Elementary functions and row reductions that give the same bits on every machine.
//!
//! They are plain Rust, written so that compilers turn them into vector code; reductions
//! keep sixteen partial sums, whatever the width of the registers.

/// Partial sums of a reduction.
pub(crate) const LANES: usize = 16;

/// eˣ within 2.5 units in the last place; 0 below −87.3 (where results would be subnormal, which is slow), infinite above
/// 88.8, NaN for NaN.
///
/// Range reduction by multiples of ln 2 in two parts, then a polynomial of degree five, in the reference's order with
/// fused multiply-add.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    const LOWEST: f32 = -87.33;
    /// ln 2 in two parts.
    const LN_2: [f32; 2] = [f32::from_bits(0x3f31_7200), f32::from_bits(0x35bf_be8e)];
    /// Of r⁵ to r.
    const COEFFICIENTS: [f32; 5] = [
        f32::from_bits(0x3c07_2010),
        f32::from_bits(0x3d2b_9f17),
        f32::from_bits(0x3e2a_af33),
        f32::from_bits(0x3eff_fedb),
        f32::from_bits(0x3f7f_fff6),
    ];
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < LOWEST { LOWEST } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let k = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let r = (-n).mul_add(LN_2[1], (-n).mul_add(LN_2[0], clamped));
    let [c5, c4, c3, c2, c1] = COEFFICIENTS;
    let square = r * r;
    let high = c5.mul_add(r, c4).mul_add(square, c3.mul_add(r, c2));
    let y = high.mul_add(square, c1.mul_add(r, 1.0));
    // Two factors, because 2ᵏ alone may be too large for a number.
    let half = k >> 1;
    let y = y * power_of_two(half) * power_of_two(k.wrapping_sub(half));
    if x < LOWEST { 0.0 } else { y }
}

#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x), as a quotient.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// tanh-approximated GELU, rounded where the reference rounds, for tables.
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const ROOT: f32 = 0.797_884_6;
    let inner = (0.044_715 * x).mul_add(x, 1.0);
    0.5 * x * (1.0 + (ROOT * x * inner).tanh())
}

/// x · sigmoid(1.702 x), rounded where the reference rounds, for tables.
pub(crate) fn gelu_sigmoid(x: f32) -> f32 {
    x * (1.0 / (1.0 + (-1.702 * x).exp()))
}

/// The error function within 2·10⁻¹⁵: Taylor series below 2, continued fraction of the complement above.
pub(crate) fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    let value = if a < 2.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a < 6.0 {
        let fraction = (1..=60).rev().fold(0.0, |f, k| f64::from(k) * 0.5 / (a + f));
        1.0 - (-a * a).exp() / ((a + fraction) * std::f64::consts::PI.sqrt())
    } else {
        1.0
    };
    value.copysign(x)
}

/// Pairwise sum of sixteen lanes: j with j + 8, then + 4, + 2, + 1.
#[inline(always)]
pub(crate) fn fold_lanes<T: Copy + std::ops::Add<Output = T>>(lanes: [T; LANES]) -> T {
    let eight: [T; 8] = std::array::from_fn(|j| lanes[j] + lanes[j + 8]);
    let four: [T; 4] = std::array::from_fn(|j| eight[j] + eight[j + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Folds a row into sixteen lanes: lane j takes elements j, j + 16, …
///
/// # Safety
/// `x` must be valid for `n` reads.
#[inline(always)]
pub(crate) unsafe fn lanes<T: Copy>(x: *const f32, n: usize, start: T, step: impl Fn(T, f32) -> T) -> [T; LANES] {
    let mut acc = [start; LANES];
    let whole = n / LANES * LANES;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + 16 <= n.
        let part = unsafe { x.add(i).cast::<[f32; LANES]>().read_unaligned() };
        for j in 0..LANES {
            acc[j] = step(acc[j], part[j]);
        }
        i += LANES;
    }
    for (j, lane) in acc[..n - whole].iter_mut().enumerate() {
        // SAFETY: whole + j < n.
        *lane = step(*lane, unsafe { x.add(whole + j).read_unaligned() });
    }
    acc
}

/// Writes `f` of each element; `y` may be `x`.
///
/// # Safety
/// `x` must be valid for `n` reads and `y` for `n` writes; they are equal or do not overlap.
#[inline(always)]
pub(crate) unsafe fn map_row(x: *const f32, y: *mut f32, n: usize, f: impl Fn(f32) -> f32) {
    // Compilers make vector code of loops whose pointers are known to be equal, or can be seen not to overlap when the
    // loop starts; so the case in place has a loop of its own.
    // SAFETY: i < n.
    unsafe {
        if std::ptr::eq(x, y) {
            for i in 0..n {
                y.add(i).write_unaligned(f(y.add(i).read_unaligned()));
            }
        } else {
            for i in 0..n {
                y.add(i).write_unaligned(f(x.add(i).read_unaligned()));
            }
        }
    }
}

/// Writes `f` of each pair; `y` may be `a` or `b` (of a type as large as `f32`).
///
/// # Safety
/// `a` and `b` must be valid for `n` reads and `y` for `n` writes; `y` equals either or overlaps neither.
#[inline(always)]
pub(crate) unsafe fn zip_rows<A: Copy, B: Copy>(
    a: *const A,
    b: *const B,
    y: *mut f32,
    n: usize,
    f: impl Fn(A, B) -> f32,
) {
    // SAFETY: i < n; an operand that stands where the result stands is read through the result's pointer.
    unsafe {
        if std::ptr::eq(a.cast(), y) {
            for i in 0..n {
                y.add(i).write_unaligned(f(y.cast::<A>().add(i).read_unaligned(), b.add(i).read_unaligned()));
            }
        } else if std::ptr::eq(b.cast(), y) {
            for i in 0..n {
                y.add(i).write_unaligned(f(a.add(i).read_unaligned(), y.cast::<B>().add(i).read_unaligned()));
            }
        } else {
            for i in 0..n {
                y.add(i).write_unaligned(f(a.add(i).read_unaligned(), b.add(i).read_unaligned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_and_a_half_ulps_and_covers_the_edges() {
        let mut x = -87.32f32;
        while x < 88.7 {
            let (found, exact) = (f64::from(exp(x)), f64::from(x).exp());
            let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
            assert!((found - exact).abs() <= 2.5 * ulp, "exp({x}) = {found}, exactly {exact}");
            x += 0.003_7;
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(-87.4), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_agrees_with_its_known_values() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9)] {
            assert!((erf(x) - y).abs() < 1e-15 && (erf(-x) + y).abs() < 1e-15);
        }
        for (x, y) in [(2.0, 0.995_322_265_018_952_7), (2.5, 0.999_593_047_982_555), (3.5, 0.999_999_256_901_627_7)] {
            assert!((erf(x) - y).abs() < 1e-14, "erf({x}) = {}", erf(x));
        }
    }
}
