//! Losses of a row of logits, with their gradients, and the contrastive loss of pooled hidden states.
//!
//! Below, `z` are a row's `N` logits, `t` those of the teacher, `y` the token that follows, `p = softmax(z)`, and `[i = y]` is 1
//! for the token and 0 otherwise.
//!
//! Exponentials are [`exp`]'s; sums are sixteen running sums in f64, added in order. A row's loss and gradient therefore
//! have the same bits on every machine. What nearly cancels in the formulas, such as `p_y - 1` of a token that is all but
//! certain, is computed from what remains (the sum of the others), so that small losses and gradients are as accurate as large
//! ones.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use shohin_core::Error;
use shohin_core::cpu::Isa;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::error::Name;

/// What a row should have been.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The token that follows.
    pub token: u32,
    /// The teacher's logits; empty without a teacher.
    pub teacher: &'a [f32],
}

/// What is minimized, for each row of logits.
///
/// ```
/// use shohin_train::loss::Loss;
///
/// let loss: Loss = "distillation:2:0.5".parse()?;
/// assert_eq!(loss, Loss::Distillation { temperature: 2.0, hard: 0.5 });
/// assert!(loss.needs_teacher());
/// assert_eq!(loss.to_string(), "distillation:2:0.5");
/// # Ok::<(), shohin_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// The cross entropy with labels that are smoothed by `s` (Szegedy et al. 2016, arXiv:1512.00567):
    ///
    /// ```text
    /// L = -sum_i q_i log p_i        q_i = (1 - s) [i = y] + s / N        dL/dz_i = p_i - q_i
    /// ```
    CrossEntropy {
        /// `s`, in `[0, 1)`.
        smoothing: f32,
    },
    /// The cross entropy, with less weight on what is predicted well (Lin et al. 2017, arXiv:1708.02002):
    ///
    /// ```text
    /// L = -(1 - p_y)^g log p_y
    /// dL/dz_i = ((1 - p_y)^g - g p_y (1 - p_y)^(g - 1) log p_y) (p_i - [i = y])
    /// ```
    Focal {
        /// `g`, at least 0, which gives the cross entropy.
        gamma: f32,
    },
    /// The divergence of the teacher's distribution `q = softmax(t)` from the model's (Kullback and Leibler 1951):
    ///
    /// ```text
    /// L = sum_i q_i (log q_i - log p_i)        dL/dz_i = p_i - q_i
    /// ```
    Kl,
    /// The divergence from the teacher at a temperature `T`, and the cross entropy of the token (Hinton et al. 2015,
    /// arXiv:1503.02531). `T^2` makes up for the gradients of the divergence, which shrink with it.
    ///
    /// ```text
    /// L = (1 - h) T^2 KL(softmax(t / T) || softmax(z / T)) - h log p_y
    /// dL/dz_i = (1 - h) T (softmax(z / T)_i - softmax(t / T)_i) + h (p_i - [i = y])
    /// ```
    Distillation {
        /// `T`, above 0.
        temperature: f32,
        /// `h`, the share of the cross entropy, in `[0, 1]`.
        hard: f32,
    },
    /// The mean squared difference from the teacher's logits:
    ///
    /// ```text
    /// L = sum_i (z_i - t_i)^2 / N        dL/dz_i = 2 (z_i - t_i) / N
    /// ```
    Mse,
    /// The mean of squares of small differences from the teacher's logits, and of magnitudes of large ones (Huber 1964):
    ///
    /// ```text
    /// L = sum_i f(z_i - t_i) / N        f(x) = x^2 / 2 where |x| <= d, otherwise d (|x| - d / 2)
    /// dL/dz_i = clamp(z_i - t_i, -d, d) / N
    /// ```
    Huber {
        /// `d`, above 0.
        delta: f32,
    },
}

impl Loss {
    /// Whether it reads the teacher's logits.
    pub fn needs_teacher(&self) -> bool {
        !matches!(self, Loss::CrossEntropy { .. } | Loss::Focal { .. })
    }

    /// The loss of `logits (N)`, which become its gradient times `scale`. The loss is not scaled.
    ///
    /// It is the same on every instruction set. Logits may have any size; NaN among those that it reads gives NaN.
    ///
    /// # Panics
    ///
    /// If it reads the token and this is not below `N`, or if it [needs a teacher](Loss::needs_teacher) and this does not have
    /// `N` logits.
    pub fn row(&self, isa: Isa, logits: &mut [f32], target: &Target<'_>, scale: f32) -> f64 {
        let &Target { token, teacher } = target;
        if self.needs_teacher() {
            assert_eq!(logits.len(), teacher.len(), "as many logits of a teacher as of the model");
        }
        let (token, scale) = (token as usize, f64::from(scale));
        let likelihood = |logits, smoothing: f32, gamma: f32| {
            let (smoothing, gamma) = (f64::from(smoothing), f64::from(gamma));
            dispatch(isa, Likelihood { logits, token, smoothing, gamma, scale })
        };
        let divergence = |logits, temperature: f32, hard: f32| {
            let (temperature, hard) = (f64::from(temperature), f64::from(hard));
            dispatch(isa, Divergence { logits, teacher, token, temperature, hard, scale })
        };
        match *self {
            Loss::CrossEntropy { smoothing } => likelihood(logits, smoothing, 0.0),
            Loss::Focal { gamma } => likelihood(logits, 0.0, gamma),
            Loss::Kl => divergence(logits, 1.0, 0.0),
            Loss::Distillation { temperature, hard } => divergence(logits, temperature, hard),
            Loss::Mse => {
                2.0 * dispatch(isa, Difference { logits, teacher, delta: f64::INFINITY, scale: 2.0 * scale })
            }
            Loss::Huber { delta } => {
                dispatch(isa, Difference { logits, teacher, delta: f64::from(delta), scale })
            }
        }
    }
}

/// The cross entropy, without smoothing.
impl Default for Loss {
    fn default() -> Self {
        Loss::CrossEntropy { smoothing: 0.0 }
    }
}

/// As it is parsed.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::CrossEntropy { smoothing: 0.0 } => f.write_str("cross-entropy"),
            Loss::CrossEntropy { smoothing } => write!(f, "cross-entropy:{smoothing}"),
            Loss::Focal { gamma } => write!(f, "focal:{gamma}"),
            Loss::Kl => f.write_str("kl"),
            Loss::Distillation { temperature, hard } => write!(f, "distillation:{temperature}:{hard}"),
            Loss::Mse => f.write_str("mse"),
            Loss::Huber { delta } => write!(f, "huber:{delta}"),
        }
    }
}

/// Parses `cross-entropy`, `cross-entropy:SMOOTHING`, `focal:GAMMA`, `kl`, `distillation:TEMPERATURE:HARD`, `mse` or
/// `huber:DELTA`.
impl FromStr for Loss {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| text.parse().ok().filter(|x: &f32| x.is_finite());
        let above_0 = |text: &str| number(text).filter(|x| *x > 0.0);
        let mut words = text.split(':');
        let loss = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("cross-entropy"), None, ..) => Some(Loss::default()),
            (Some("cross-entropy"), Some(smoothing), None, _) => number(smoothing)
                .filter(|s| (0.0..1.0).contains(s))
                .map(|smoothing| Loss::CrossEntropy { smoothing }),
            (Some("focal"), Some(gamma), None, _) => {
                number(gamma).filter(|g| *g >= 0.0).map(|gamma| Loss::Focal { gamma })
            }
            (Some("kl"), None, ..) => Some(Loss::Kl),
            (Some("distillation"), Some(temperature), Some(hard), None) => above_0(temperature)
                .zip(number(hard).filter(|h| (0.0..=1.0).contains(h)))
                .map(|(temperature, hard)| Loss::Distillation { temperature, hard }),
            (Some("mse"), None, ..) => Some(Loss::Mse),
            (Some("huber"), Some(delta), None, _) => above_0(delta).map(|delta| Loss::Huber { delta }),
            _ => None,
        };
        loss.ok_or(Error::Unsupported {
            key: Name::new("loss"),
            found: Name::new(text),
            expected: "cross-entropy or cross-entropy:S with 0 <= S < 1, focal:G with G >= 0, kl, \
                       distillation:T:H with T > 0 and 0 <= H <= 1, mse, or huber:D with D > 0",
        })
    }
}

/// The largest of `x`, ignoring NaN.
#[inline(always)]
fn largest(x: &[f32]) -> f64 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let parts = x.chunks_exact(16);
    let rest = parts.remainder();
    for part in parts {
        for i in 0..16 {
            lanes[i] = if part[i] > lanes[i] { part[i] } else { lanes[i] };
        }
    }
    f64::from(lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max))
}

/// The sum of `term(x_i)`.
#[inline(always)]
fn sum(x: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0.0; 16];
    let parts = x.chunks_exact(16);
    let rest = parts.remainder();
    for part in parts {
        for i in 0..16 {
            sums[i] += term(part[i]);
        }
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += term(*x));
    sums.iter().fold(0.0, |sum, lane| sum + lane)
}

/// The sum of what `f` gives for sixteen of `x` and `y` at a time, of which it replaces those of `x`. The last are followed by
/// `pad` in both.
#[inline(always)]
fn sum_and_replace(
    x: &mut [f32],
    y: &[f32],
    pad: f32,
    f: impl Fn(&mut [f32; 16], &[f32; 16]) -> [f64; 16],
) -> f64 {
    let mut sums = [0.0; 16];
    let (whole, rest) = x.as_chunks_mut::<16>();
    let (y_whole, y_rest) = y.as_chunks::<16>();
    let mut last = [[pad; 16]; 2];
    last[0][..rest.len()].copy_from_slice(rest);
    last[1][..rest.len()].copy_from_slice(y_rest);
    let [x_last, y_last] = &mut last;
    for (x, y) in whole.iter_mut().zip(y_whole).chain([(&mut *x_last, &*y_last)]) {
        let terms = f(x, y);
        for i in 0..16 {
            sums[i] += terms[i];
        }
    }
    rest.copy_from_slice(&x_last[..rest.len()]);
    sums.iter().fold(0.0, |sum, lane| sum + lane)
}

/// `e^x` of an `x <= 0` with more digits than f32 has, which matter far from 0.
#[inline(always)]
fn exp_of(x: f64) -> f32 {
    let high = x as f32;
    let low = (x - f64::from(high)) as f32;
    let e = exp(high);
    // Where it is 0, `low` may be NaN.
    if e == 0.0 { 0.0 } else { e + e * low }
}

/// The probability of a token beside that of the others.
struct Odds {
    /// The sum of `e^(z_i - max)` without the token's.
    others: f64,
    /// With the token's.
    sum: f64,
    /// The token's.
    own: f64,
    /// `-log p_y`
    nll: f64,
}

impl Odds {
    #[inline(always)]
    fn new(z: &mut [f32], token: usize, max: f64) -> Odds {
        let logit = core::mem::replace(&mut z[token], f32::NEG_INFINITY);
        let others = sum(z, |x| f64::from(exp_of(f64::from(x) - max)));
        z[token] = logit;
        let behind = f64::from(logit) - max;
        let own = libm::exp(behind);
        let sum = others + own;
        // In either way nothing cancels: the logarithm of the sum is at least 0.
        let nll = if behind > -1.0 { libm::log1p(others / own) } else { libm::log(sum) - behind };
        Odds { others, sum, own, nll }
    }
}

/// [`Loss::CrossEntropy`] and [`Loss::Focal`].
struct Likelihood<'a> {
    logits: &'a mut [f32],
    token: usize,
    smoothing: f64,
    gamma: f64,
    scale: f64,
}

impl SimdOp for Likelihood<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Likelihood { logits: z, token, smoothing, gamma, scale } = self;
        let max = largest(z);
        let Odds { others, sum: total, own, nll } = Odds::new(z, token, max);
        let (miss, own) = (others / total, own / total);
        let (power, factor) = if gamma == 0.0 {
            (1.0, 1.0)
        } else {
            let power = libm::pow(miss, gamma);
            // -log(1 - x) / x is 1 at 0.
            let ratio = if miss == 0.0 { 1.0 } else { nll / miss };
            (power, power * (1.0 + gamma * own * ratio))
        };
        let n = z.len() as f64;
        let mut loss = (1.0 - smoothing) * power * nll;
        if smoothing != 0.0 {
            loss += smoothing * (libm::log(total) - sum(z, |x| f64::from(x) - max) / n);
        }
        let sharp = scale * (1.0 - smoothing) * factor;
        let flat = scale * smoothing;
        let (by, less) = (((sharp + flat) / total) as f32, (flat / n) as f32);
        z.iter_mut().for_each(|x| *x = exp_of(f64::from(*x) - max) * by - less);
        z[token] = (flat * (own - 1.0 / n) - sharp * miss) as f32;
        loss
    }
}

/// `(e^x - 1 - x) / x^2` for `|x| <= 1`, by its Taylor polynomial of degree 8: relative error at most 1e-7.
#[inline(always)]
fn curvature(x: f32) -> f32 {
    let mut p = 1.0 / 3_628_800.0;
    p = p * x + 1.0 / 362_880.0;
    p = p * x + 1.0 / 40_320.0;
    p = p * x + 1.0 / 5040.0;
    p = p * x + 1.0 / 720.0;
    p = p * x + 1.0 / 120.0;
    p = p * x + 1.0 / 24.0;
    p = p * x + 1.0 / 6.0;
    p * x + 0.5
}

/// Sixteen summands of the divergence of `q` from `p`, both of which sum to 1, and `p - q`, where `u = log p - log q`.
///
/// `sum -q u = sum p - q - q u = sum q (e^u - 1 - u)`, whose summands are not negative: little is lost where `p` is almost `q`.
#[inline(always)]
fn diverge(p: &[f32; 16], q: &[f32; 16], u: &[f64; 16]) -> ([f64; 16], [f32; 16]) {
    let (mut terms, mut differences) = ([0.0; 16], [0.0; 16]);
    for i in 0..16 {
        let (p, q, u) = (f64::from(p[i]), f64::from(q[i]), u[i]);
        // Where `q` is 0, `u` may be infinite.
        terms[i] = if q == 0.0 { p } else { p - q - q * u };
    }
    for i in 0..16 {
        let u = u[i] as f32;
        let square = u * u * curvature(u);
        let near = u.abs() < 1.0;
        terms[i] = if near { f64::from(q[i] * square) } else { terms[i] };
        differences[i] = if near { q[i] * (u + square) } else { p[i] - q[i] };
    }
    (terms, differences)
}

/// `softmax(x / T)`
struct Softmax {
    max: f64,
    /// `1 / T`
    cold: f64,
    /// The sum of `e^((x_i - max) / T)`.
    sum: f64,
}

impl Softmax {
    #[inline(always)]
    fn new(x: &[f32], cold: f64) -> Softmax {
        let max = largest(x);
        Softmax { max, cold, sum: sum(x, |x| f64::from(exp_of((f64::from(x) - max) * cold))) }
    }

    #[inline(always)]
    fn of(&self, x: &[f32; 16]) -> [f32; 16] {
        let by = (1.0 / self.sum) as f32;
        let mut p = [0.0; 16];
        for i in 0..16 {
            p[i] = exp_of((f64::from(x[i]) - self.max) * self.cold) * by;
        }
        p
    }
}

/// [`Loss::Kl`] and [`Loss::Distillation`].
struct Divergence<'a> {
    logits: &'a mut [f32],
    teacher: &'a [f32],
    token: usize,
    temperature: f64,
    hard: f64,
    scale: f64,
}

impl SimdOp for Divergence<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Divergence { logits: z, teacher, token, temperature, hard, scale } = self;
        let cold = 1.0 / temperature;
        let (p, q) = (Softmax::new(z, cold), Softmax::new(teacher, cold));
        let shift = libm::log(p.sum) - libm::log(q.sum) + (p.max - q.max) * cold;
        let soft = |x: &[f32; 16], t: &[f32; 16]| {
            let mut u = [0.0; 16];
            for i in 0..16 {
                u[i] = (f64::from(x[i]) - f64::from(t[i])) * cold - shift;
            }
            diverge(&p.of(x), &q.of(t), &u)
        };
        let by = ((1.0 - hard) * temperature * scale) as f32;
        let times = (1.0 - hard) * temperature * temperature;
        // Beyond the last logits both probabilities are 0.
        const PAD: f32 = f32::NEG_INFINITY;
        if hard == 0.0 {
            let loss = sum_and_replace(z, teacher, PAD, |x, t| {
                let (terms, differences) = soft(x, t);
                *x = differences.map(|difference| by * difference);
                terms
            });
            return times * loss;
        }
        let odds = Odds::new(z, token, p.max);
        let of_token = by * soft(&[z[token]; 16], &[teacher[token]; 16]).1[0];
        let hard_p = Softmax { max: p.max, cold: 1.0, sum: odds.sum };
        let by_hard = (hard * scale) as f32;
        let loss = sum_and_replace(z, teacher, PAD, |x, t| {
            let (terms, differences) = soft(x, t);
            let p = hard_p.of(x);
            for i in 0..16 {
                x[i] = by * differences[i] + by_hard * p[i];
            }
            terms
        });
        z[token] = (f64::from(of_token) - hard * scale * (odds.others / odds.sum)) as f32;
        times * loss + hard * odds.nll
    }
}

/// [`Loss::Huber`], and half of [`Loss::Mse`].
struct Difference<'a> {
    logits: &'a mut [f32],
    teacher: &'a [f32],
    delta: f64,
    scale: f64,
}

impl SimdOp for Difference<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Difference { logits, teacher, delta, scale } = self;
        let n = logits.len() as f64;
        let by = scale / n;
        let total = sum_and_replace(logits, teacher, 0.0, |x, t| {
            let mut terms = [0.0; 16];
            for i in 0..16 {
                let d = f64::from(x[i]) - f64::from(t[i]);
                // NaN stays NaN.
                let near = if d > delta { delta } else { d };
                let near = if near < -delta { -delta } else { near };
                terms[i] = near * (d - 0.5 * near);
                x[i] = (by * near) as f32;
            }
            terms
        });
        total / n
    }
}

/// The contrastive loss of pooled hidden states, InfoNCE (van den Oord et al. 2018, arXiv:1807.03748): each anchor `a_i` is to
/// be nearer to its own positive `b_i` than to those of the other rows.
///
/// ```text
/// s_ij = cos(a_i, b_j) / T        L = sum_i (log sum_j exp(s_ij) - s_ii) / n
/// g_ij = (softmax_j(s_ij) - [i = j]) / (n T)
/// dL/da_i = sum_j g_ij (b_j / |b_j| - cos(a_i, b_j) a_i / |a_i|) / |a_i|        and dL/db_j likewise
/// ```
/// `anchors` and `positives` are `(n, cols)`, as are the gradients, which replace `d_anchors` and `d_positives`. A row of zeros
/// is at right angles to every other, and has a gradient of zeros. Without rows the loss is 0. The same bits everywhere.
///
/// # Panics
///
/// If `cols` is 0, or the lengths are not the same multiple of it.
pub fn contrastive(
    anchors: &[f32],
    positives: &[f32],
    cols: usize,
    temperature: f32,
    d_anchors: &mut [f32],
    d_positives: &mut [f32],
) -> f64 {
    assert!(cols > 0 && anchors.len().is_multiple_of(cols), "whole rows of anchors");
    for len in [positives.len(), d_anchors.len(), d_positives.len()] {
        assert_eq!(anchors.len(), len, "as many positives and gradients as anchors");
    }
    let temperature = f64::from(temperature);
    dispatch(Isa::detect(), Contrastive { anchors, positives, cols, temperature, d_anchors, d_positives })
}

struct Contrastive<'a> {
    anchors: &'a [f32],
    positives: &'a [f32],
    cols: usize,
    temperature: f64,
    d_anchors: &'a mut [f32],
    d_positives: &'a mut [f32],
}

/// `sum_k x_k y_k`
#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f64 {
    let mut sums = [0.0; 16];
    let (x_parts, y_parts) = (x.chunks_exact(16), y.chunks_exact(16));
    let rest = x_parts.remainder().iter().zip(y_parts.remainder());
    for (x, y) in x_parts.zip(y_parts) {
        for i in 0..16 {
            sums[i] += f64::from(x[i]) * f64::from(y[i]);
        }
    }
    sums.iter_mut().zip(rest).for_each(|(sum, (x, y))| *sum += f64::from(*x) * f64::from(*y));
    sums.iter().fold(0.0, |sum, lane| sum + lane)
}

/// `1 / |x|` of each row; 0 for zeros.
#[inline(always)]
fn inverse_norms(x: &[f32], cols: usize) -> Vec<f64> {
    let inverse = |row| {
        let square = dot(row, row);
        if square == 0.0 { 0.0 } else { 1.0 / libm::sqrt(square) }
    };
    x.chunks_exact(cols).map(inverse).collect()
}

/// A row's loss, `log sum_j exp(s_j) - s_own`; `s` becomes `softmax(s)`, less 1 for `own`.
#[inline(always)]
fn own_of(s: &mut [f64], own: usize) -> f64 {
    let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let behind = s[own] - max;
    s.iter_mut().for_each(|x| *x = libm::exp(*x - max));
    let likelihood = core::mem::replace(&mut s[own], 0.0);
    let others: f64 = s.iter().sum();
    let total = others + likelihood;
    s.iter_mut().for_each(|x| *x /= total);
    s[own] = -others / total;
    if behind > -1.0 { libm::log1p(others / likelihood) } else { libm::log(total) - behind }
}

/// The gradient of a row `x` from `g` of its pair with each row `y_j`, in the rows of `others`: see [`contrastive`].
#[inline(always)]
fn pull(
    (x, inverse): (&[f32], f64),
    (others, inverses): (&[f32], &[f64]),
    g: impl Iterator<Item = f64>,
    sums: &mut [f64],
    to: &mut [f32],
) {
    sums.fill(0.0);
    let mut along = 0.0;
    for ((g, y), inverse_y) in g.zip(others.chunks_exact(x.len())).zip(inverses) {
        let by = g * inverse_y;
        along += by * (dot(x, y) * inverse);
        sums.iter_mut().zip(y).for_each(|(sum, y)| *sum += by * f64::from(*y));
    }
    for ((to, sum), x) in to.iter_mut().zip(sums).zip(x) {
        *to = ((*sum - along * inverse * f64::from(*x)) * inverse) as f32;
    }
}

impl SimdOp for Contrastive<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Contrastive { anchors, positives, cols, temperature, d_anchors, d_positives } = self;
        let n = anchors.len() / cols;
        if n == 0 {
            return 0.0;
        }
        let (inverse_a, inverse_b) = (inverse_norms(anchors, cols), inverse_norms(positives, cols));
        let mut g = vec![0.0; n * n];
        let mut loss = 0.0;
        for (i, (g, a)) in g.chunks_exact_mut(n).zip(anchors.chunks_exact(cols)).enumerate() {
            for ((s, b), inverse) in g.iter_mut().zip(positives.chunks_exact(cols)).zip(&inverse_b) {
                *s = dot(a, b) * inverse_a[i] * inverse / temperature;
            }
            loss += own_of(g, i);
        }
        let by = 1.0 / (n as f64 * temperature);
        g.iter_mut().for_each(|g| *g *= by);
        let mut sums = vec![0.0; cols];
        for (i, to) in d_anchors.chunks_exact_mut(cols).enumerate() {
            let a = (&anchors[i * cols..][..cols], inverse_a[i]);
            pull(a, (positives, &inverse_b), g[i * n..][..n].iter().copied(), &mut sums, to);
        }
        for (j, to) in d_positives.chunks_exact_mut(cols).enumerate() {
            let b = (&positives[j * cols..][..cols], inverse_b[j]);
            pull(b, (anchors, &inverse_a), g.iter().skip(j).step_by(n).copied(), &mut sums, to);
        }
        loss / n as f64
    }
}
