//! Ranges of activations, from their statistics.

use super::{BINS, InputStatistics};
use std::fmt;
use std::str::FromStr;

/// How the range of an input is chosen. Integers of `bits` bits stand for `-(2^(bits - 1) - 1)` to `2^(bits - 1) - 1` steps of
/// `clip / (2^(bits - 1) - 1)`; what lies beyond `clip` becomes `clip`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RangeMethod {
    /// The largest absolute value.
    MinMax,
    /// The absolute value that this share of all numbers does not exceed, such as 0.9999.
    Percentile(f64),
    /// The best one for numbers with the distribution of Laplace of the same mean absolute value (ACIQ, Banner et al. 2019,
    /// arXiv:1810.05723).
    AciqLaplace,
    /// The best one for a normal distribution of the same mean square (ACIQ).
    AciqGaussian,
    /// That of the smallest mean squared error over the histogram.
    Mse,
}

impl RangeMethod {
    /// All, with the usual share of [`RangeMethod::Percentile`].
    pub const ALL: [RangeMethod; 5] = [
        RangeMethod::MinMax,
        RangeMethod::Percentile(0.9999),
        RangeMethod::AciqLaplace,
        RangeMethod::AciqGaussian,
        RangeMethod::Mse,
    ];
}

impl fmt::Display for RangeMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeMethod::MinMax => f.write_str("minmax"),
            RangeMethod::Percentile(share) => write!(f, "percentile:{share}"),
            RangeMethod::AciqLaplace => f.write_str("aciq-laplace"),
            RangeMethod::AciqGaussian => f.write_str("aciq-gaussian"),
            RangeMethod::Mse => f.write_str("mse"),
        }
    }
}

impl FromStr for RangeMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "minmax" => RangeMethod::MinMax,
            "percentile" => RangeMethod::Percentile(0.9999),
            "aciq-laplace" => RangeMethod::AciqLaplace,
            "aciq-gaussian" => RangeMethod::AciqGaussian,
            "mse" => RangeMethod::Mse,
            _ => {
                let share = text.strip_prefix("percentile:").and_then(|share| share.parse::<f64>().ok());
                match share.filter(|share| *share > 0.0 && *share <= 1.0) {
                    Some(share) => RangeMethod::Percentile(share),
                    None => {
                        return Err(format!(
                            "{text}: expected minmax, percentile:SHARE, aciq-laplace, aciq-gaussian or mse"
                        ));
                    }
                }
            }
        })
    }
}

/// The range of an input.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Range {
    /// The largest absolute value that is kept.
    pub clip: f64,
    /// The step between two integers.
    pub scale: f64,
}

impl InputStatistics {
    /// The range for integers of `bits` bits, of 2 to 16.
    pub fn range(&self, method: RangeMethod, bits: u32) -> Range {
        let largest = f64::from(self.largest());
        let clip = match method {
            RangeMethod::MinMax => largest,
            RangeMethod::Percentile(share) => self.percentile(share),
            RangeMethod::AciqLaplace => laplace_clip(bits) * self.mean_abs(),
            RangeMethod::AciqGaussian => gaussian_clip(bits) * self.root_mean_square(),
            RangeMethod::Mse => {
                let clips =
                    (1..BINS).map(|bin| f64::from(Self::bin_start(bin))).filter(|clip| *clip <= largest);
                let error = |clip: f64| self.squared_error(clip, bits);
                clips.chain([largest]).min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(largest)
            }
        };
        // No value lies beyond.
        let clip = clip.min(largest);
        Range { clip, scale: clip / steps(bits) }
    }

    /// The absolute value that `share` of the numbers do not exceed; between the bounds of a bin, in proportion.
    fn percentile(&self, share: f64) -> f64 {
        let wanted = share * self.histogram.iter().sum::<u64>() as f64;
        let mut below = 0.0;
        for (bin, &count) in self.histogram.iter().enumerate() {
            let count = count as f64;
            if below + count >= wanted && count > 0.0 {
                let (start, end) = bounds(bin);
                return start + (end - start) * ((wanted - below) / count).clamp(0.0, 1.0);
            }
            below += count;
        }
        f64::from(self.largest())
    }

    /// The mean squared error of integers of `bits` bits with this largest value, relative to the mean square.
    pub fn relative_error(&self, clip: f64, bits: u32) -> f64 {
        let squares: f64 = self.sum_squares.iter().sum();
        if squares == 0.0 { 0.0 } else { (self.squared_error(clip, bits) / squares).sqrt() }
    }

    /// The sum of squared errors: of rounding, a twelfth of the squared step, and of what lies beyond `clip`. The numbers
    /// of a bin are taken to be in its middle.
    fn squared_error(&self, clip: f64, bits: u32) -> f64 {
        let rounding = (clip / steps(bits)).powi(2) / 12.0;
        let of_bin = |(bin, &count): (usize, &u64)| {
            let (start, end) = bounds(bin);
            let middle = 0.5 * (start + end);
            // A value is never off by more than itself.
            let error = if middle > clip { (middle - clip).powi(2) } else { rounding.min(middle * middle) };
            count as f64 * error
        };
        self.histogram.iter().enumerate().map(of_bin).sum()
    }
}

fn bounds(bin: usize) -> (f64, f64) {
    let start = f64::from(InputStatistics::bin_start(bin));
    let end = if bin + 1 < BINS { f64::from(InputStatistics::bin_start(bin + 1)) } else { start };
    (start, end)
}

/// Steps from 0 to the largest integer.
fn steps(bits: u32) -> f64 {
    ((1u32 << (bits.clamp(2, 16) - 1)) - 1).into()
}

/// The best range over `b` for a distribution of Laplace with the scale `b`, its mean absolute value: the minimum of
/// `2 b^2 e^(-a / b) + a^2 / (3 4^bits)`.
fn laplace_clip(bits: u32) -> f64 {
    let weight = 1.0 / (3.0 * 4f64.powi(bits as i32));
    minimum(|a| 2.0 * (-a).exp() + a * a * weight)
}

/// The same over sigma for a normal distribution: the minimum of
/// `(a^2 + 1) erfc(a / sqrt(2)) - a sqrt(2 / pi) e^(-a^2 / 2) + a^2 / (3 4^bits)`.
fn gaussian_clip(bits: u32) -> f64 {
    let weight = 1.0 / (3.0 * 4f64.powi(bits as i32));
    let density = (2.0 / std::f64::consts::PI).sqrt();
    minimum(|a| {
        (a * a + 1.0) * erfc(a / std::f64::consts::SQRT_2) - a * density * (-a * a / 2.0).exp()
            + a * a * weight
    })
}

/// The minimum of a function with one, between 0 and 40, by golden section.
fn minimum(of: impl Fn(f64) -> f64) -> f64 {
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (0.0, 40.0);
    while high - low > 1e-9 {
        let (a, b) = (high - ratio * (high - low), low + ratio * (high - low));
        if of(a) <= of(b) { high = b } else { low = a }
    }
    0.5 * (low + high)
}

/// `1 - erf(x)` of `x >= 0`: Abramowitz & Stegun 7.1.26 is too coarse for a minimum, so by its continued fraction or series.
fn erfc(x: f64) -> f64 {
    if x < 2.0 {
        // erf(x) = 2 / sqrt(pi) sum (-1)^n x^(2n + 1) / (n! (2n + 1))
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..60).rev().fold(0.0, |rest, n| f64::from(n) / 2.0 / (x + rest));
        (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors of the paper's table: 2.83, 3.89, 5.03 for Laplace, 1.71, 2.15, 2.55, 2.93, 3.28, 3.61, 3.92 for Gauss.
    #[test]
    fn clips_are_those_of_aciq() {
        for (bits, expected) in [(2, 2.83), (3, 3.89), (4, 5.03)] {
            assert!((laplace_clip(bits) - expected).abs() < 0.01, "{bits}: {}", laplace_clip(bits));
        }
        for (bits, expected) in [(2, 1.71), (3, 2.15), (4, 2.55), (5, 2.93), (6, 3.28), (7, 3.61), (8, 3.92)]
        {
            assert!((gaussian_clip(bits) - expected).abs() < 0.01, "{bits}: {}", gaussian_clip(bits));
        }
    }

    #[test]
    fn the_methods_agree_on_what_they_should() {
        let mut inputs = InputStatistics::new(1, 1000);
        // Even between -1 and 1, and one outlier.
        let mut row: Vec<f32> = (0..1000).map(|i| (i as f32 - 499.5) / 499.5).collect();
        inputs.add(0, &row);
        row[3] = 100.0;
        inputs.add(0, &row);
        assert_eq!(inputs.range(RangeMethod::MinMax, 8).clip, 100.0);
        assert_eq!(inputs.range(RangeMethod::MinMax, 8).scale, 100.0 / 127.0);
        let percentile = inputs.range(RangeMethod::Percentile(0.5), 8).clip;
        assert!((percentile - 0.5).abs() < 0.02, "{percentile}");
        let almost = inputs.range(RangeMethod::Percentile(0.99), 8).clip;
        assert!((almost - 0.99).abs() < 0.03, "{almost}");
        // 2 bits: the outlier alone, whose loss of 99^2 outweighs all others' rounding to 0.
        let clip = inputs.range(RangeMethod::Mse, 2).clip;
        assert!(clip > 95.0, "{clip}");
        let by_range = |clip| inputs.relative_error(clip, 8);
        let best = inputs.range(RangeMethod::Mse, 8).clip;
        assert!((1..400).all(|i| by_range(best) <= by_range(f64::from(i) / 4.0) * 1.02));
    }

    #[test]
    fn methods_are_read_as_they_are_written() {
        for method in RangeMethod::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("percentile:2".parse::<RangeMethod>().unwrap_err().contains("expected minmax"));
    }
}
