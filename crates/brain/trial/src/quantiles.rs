//! Quantiles of the normal and of Student's distribution, for the power of a trial.

/// The `p`-quantile of the normal distribution: Acklam's rational approximation, whose relative
/// error is below 1.2e-9.
pub fn normal(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416, 1.0];
    let at = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    match p {
        p if !(p > 0.0 && p < 1.0) => f64::NAN,
        p if p > 0.5 => -normal(1.0 - p),
        p if p < 0.024_25 => {
            let q = (-2.0 * p.ln()).sqrt();
            at(&C, q) / at(&D, q)
        }
        p => {
            let q = p - 0.5;
            q * at(&A, q * q) / at(&B, q * q)
        }
    }
}

/// The `p`-quantile of Student's distribution with `n` degrees of freedom, 5 or more: the expansion
/// of Cornish and Fisher, within 0.5 %.
pub fn student(p: f64, n: f64) -> f64 {
    let z = normal(p);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_tables() {
        for (p, z) in [(0.975, 1.959_964), (0.8, 0.841_621), (0.5, 0.0), (0.01, -2.326_348), (0.999, 3.090_232)] {
            assert!((normal(p) - z).abs() < 1e-5, "{p}: {}", normal(p));
        }
        for (p, n, t) in [(0.975, 5.0, 2.5706), (0.98, 14.0, 2.2638), (0.8, 5.0, 0.9195), (0.975, 29.0, 2.0452)] {
            assert!((student(p, n) / t - 1.0).abs() < 0.005, "{p} {n}: {}", student(p, n));
        }
        assert!(normal(0.0).is_nan() && normal(1.5).is_nan());
    }
}
