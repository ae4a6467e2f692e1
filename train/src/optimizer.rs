//! Optimizers: what turns gradients into changes of weights.
//!
//! They compute what `torch.optim` does with tensors of f32 (`_single_tensor_sgd` and `_single_tensor_adam` of PyTorch 2.x), in
//! its order: weights, moments and gradients are f32, and everything that is the same for all weights, such as the corrections
//! of the moments' bias, is computed in f64 and rounded to f32 once.
//!
//! In the formulas `w` are the weights, `g` their gradients, `t` the number of the step from 1, `l` the learning rate and `d`
//! the decay of weights, which is 0 for tensors that do not decay.
#![forbid(unsafe_code)]

use core::fmt;
use core::str::FromStr;

use shohin_core::cpu::Isa;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::error::Name;
use shohin_core::{Error, Result};

use crate::text::{Number, check, value};

/// What turns gradients into changes of weights.
///
/// The text of an optimizer has all of its numbers, and parses to the same optimizer:
///
/// | text | without the numbers |
/// |---|---|
/// | `sgd:MOMENTUM[:nesterov]:WEIGHT_DECAY` | `sgd:0:0` |
/// | `adam:BETA1:BETA2:EPS:WEIGHT_DECAY` | `adam:0.9:0.999:1e-8:0` |
/// | `adamw:BETA1:BETA2:EPS:WEIGHT_DECAY` | `adamw:0.9:0.95:1e-8:0.1` |
///
/// Words at the end can be left out.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// Stochastic gradient descent.
    ///
    /// ```text
    /// g <- g + d w
    /// m <- momentum m + g            m <- g in the first step
    /// w <- w - l m                   w <- w - l (g + momentum m) with Nesterov's momentum
    /// ```
    /// Without momentum there is no `m`, and `w <- w - l g`.
    Sgd {
        /// How much of `m` is kept: at least 0, less than 1.
        momentum: f64,
        /// Nesterov's momentum (Sutskever et al. 2013), which needs a momentum over 0.
        nesterov: bool,
        /// `d`, at least 0.
        weight_decay: f64,
    },
    /// Adam (Kingma and Ba 2014, arXiv:1412.6980), whose decay is a part of the gradient.
    ///
    /// ```text
    /// g <- g + d w
    /// m <- m + (1 - beta1) (g - m)            v <- beta2 v + (1 - beta2) g^2
    /// w <- w - l / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
    /// ```
    Adam {
        /// How much of `m` and `v` is kept: at least 0, less than 1.
        betas: [f64; 2],
        /// What keeps the divisor over 0: at least 0.
        eps: f64,
        /// `d`, at least 0.
        weight_decay: f64,
    },
    /// Adam with a decay that is independent of the gradients (Loshchilov and Hutter 2017, arXiv:1711.05101): that of
    /// [`Optimizer::Adam`], but `w <- (1 - l d) w` before it in place of `g <- g + d w`.
    AdamW {
        /// How much of `m` and `v` is kept: at least 0, less than 1.
        betas: [f64; 2],
        /// What keeps the divisor over 0: at least 0.
        eps: f64,
        /// `d`, at least 0.
        weight_decay: f64,
    },
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, [beta1, beta2], eps, weight_decay) = match *self {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                let nesterov = if nesterov { ":nesterov" } else { "" };
                return write!(f, "sgd:{}{nesterov}:{}", Number(momentum), Number(weight_decay));
            }
            Optimizer::Adam { betas, eps, weight_decay } => ("adam", betas, eps, weight_decay),
            Optimizer::AdamW { betas, eps, weight_decay } => ("adamw", betas, eps, weight_decay),
        };
        let [beta1, beta2, eps, weight_decay] = [beta1, beta2, eps, weight_decay].map(Number);
        write!(f, "{name}:{beta1}:{beta2}:{eps}:{weight_decay}")
    }
}

impl FromStr for Optimizer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let optimizer = parse(text).ok_or(Error::Unsupported {
            key: Name::new("optimizer"),
            found: Name::new(text),
            expected: "sgd[:MOMENTUM[:nesterov][:WEIGHT_DECAY]], or adam or adamw[:BETA1[:BETA2[:EPS[:WEIGHT_DECAY]]]]",
        })?;
        optimizer.check()?;
        Ok(optimizer)
    }
}

fn parse(text: &str) -> Option<Optimizer> {
    let mut words = text.split(':');
    let optimizer = match words.next()? {
        "sgd" => {
            let momentum = value(words.next(), 0.0)?;
            let mut word = words.next();
            let nesterov = word == Some("nesterov");
            if nesterov {
                word = words.next();
            }
            Optimizer::Sgd { momentum, nesterov, weight_decay: value(word, 0.0)? }
        }
        "adam" => Optimizer::Adam {
            betas: [value(words.next(), 0.9)?, value(words.next(), 0.999)?],
            eps: value(words.next(), 1e-8)?,
            weight_decay: value(words.next(), 0.0)?,
        },
        "adamw" => Optimizer::AdamW {
            betas: [value(words.next(), 0.9)?, value(words.next(), 0.95)?],
            eps: value(words.next(), 1e-8)?,
            weight_decay: value(words.next(), 0.1)?,
        },
        _ => return None,
    };
    words.next().is_none().then_some(optimizer)
}

/// What an optimizer remembers of the gradients of some weights, each `(weights)`; zeros before the first step.
#[derive(Debug)]
pub struct Moments<'a> {
    /// The first moment or momentum; empty if [`Optimizer::moments`] is 0.
    pub m: &'a mut [f32],
    /// The second moment; empty unless [`Optimizer::moments`] is 2.
    pub v: &'a mut [f32],
}

impl Optimizer {
    /// Numbers that it remembers for each weight: 0, 1 or 2.
    pub fn moments(&self) -> usize {
        match self {
            Optimizer::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => 2,
        }
    }

    /// Checks the numbers, as parsing does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a number out of its range.
    pub fn check(&self) -> Result<()> {
        const SHARE: &str = "at least 0 and less than 1";
        const NUMBER: &str = "a number that is at least 0";
        let is_number = |x: f64| x >= 0.0 && x.is_finite();
        let weight_decay = match *self {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                check((0.0..1.0).contains(&momentum), "momentum", momentum, SHARE)?;
                let expected = "more than 0 for Nesterov's momentum";
                check(!nesterov || momentum > 0.0, "momentum", momentum, expected)?;
                weight_decay
            }
            Optimizer::Adam { betas, eps, weight_decay } | Optimizer::AdamW { betas, eps, weight_decay } => {
                for (name, beta) in ["beta1", "beta2"].into_iter().zip(betas) {
                    check((0.0..1.0).contains(&beta), name, beta, SHARE)?;
                }
                check(is_number(eps), "eps", eps, NUMBER)?;
                weight_decay
            }
        };
        check(is_number(weight_decay), "weight decay", weight_decay, NUMBER)
    }

    /// Changes `parameters (weights)` by `gradients (weights)`. Steps count from 1; weights decay if `decay` is true.
    ///
    /// # Panics
    /// If `gradients` or a moment that the optimizer has is shorter than `parameters`.
    pub fn step(
        &self,
        isa: Isa,
        parameters: &mut [f32],
        gradients: &[f32],
        moments: Moments<'_>,
        step: u64,
        learning_rate: f64,
        decay: bool,
    ) {
        let (w, g, Moments { m, v }) = (parameters, gradients, moments);
        let of = |weight_decay| if decay { weight_decay } else { 0.0 };
        match *self {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                let (rate, decay) = (learning_rate as f32, of(weight_decay) as f32);
                if momentum == 0.0 {
                    return dispatch(isa, Descent { w, g, rate, decay });
                }
                let momentum = momentum as f32;
                match (step <= 1, nesterov) {
                    (true, true) => dispatch(isa, Momentum::<true, true> { w, g, m, rate, momentum, decay }),
                    (true, false) => {
                        dispatch(isa, Momentum::<true, false> { w, g, m, rate, momentum, decay })
                    }
                    (false, true) => {
                        dispatch(isa, Momentum::<false, true> { w, g, m, rate, momentum, decay })
                    }
                    (false, false) => {
                        dispatch(isa, Momentum::<false, false> { w, g, m, rate, momentum, decay })
                    }
                }
            }
            Optimizer::Adam { betas, eps, weight_decay } => {
                let decay = of(weight_decay) as f32;
                let numbers = AdamNumbers { decay, ..AdamNumbers::new(betas, eps, step, learning_rate) };
                if decay == 0.0 {
                    dispatch(isa, Adam::<false> { w, g, m, v, numbers });
                } else {
                    dispatch(isa, Adam::<true> { w, g, m, v, numbers });
                }
            }
            Optimizer::AdamW { betas, eps, weight_decay } => {
                let shrink = (1.0 - learning_rate * of(weight_decay)) as f32;
                let numbers = AdamNumbers { shrink, ..AdamNumbers::new(betas, eps, step, learning_rate) };
                dispatch(isa, Adam::<false> { w, g, m, v, numbers });
            }
        }
    }
}

/// Gradient descent without momentum.
struct Descent<'a> {
    w: &'a mut [f32],
    g: &'a [f32],
    rate: f32,
    decay: f32,
}

impl SimdOp for Descent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Descent { w, g, rate, decay } = self;
        let g = &g[..w.len()];
        for i in 0..w.len() {
            w[i] -= rate * (g[i] + decay * w[i]);
        }
    }
}

/// Gradient descent with momentum.
struct Momentum<'a, const FIRST: bool, const NESTEROV: bool> {
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    rate: f32,
    momentum: f32,
    decay: f32,
}

impl<const FIRST: bool, const NESTEROV: bool> SimdOp for Momentum<'_, FIRST, NESTEROV> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Momentum { w, g, m, rate, momentum, decay } = self;
        let n = w.len();
        let (g, m) = (&g[..n], &mut m[..n]);
        for i in 0..n {
            let g = g[i] + decay * w[i];
            let mean = if FIRST { g } else { m[i] * momentum + g };
            m[i] = mean;
            w[i] -= rate * if NESTEROV { g + momentum * mean } else { mean };
        }
    }
}

/// What is the same for all weights in a step of Adam.
struct AdamNumbers {
    /// What the weights are multiplied by before the step.
    shrink: f32,
    /// How much of the weights is added to the gradients.
    decay: f32,
    /// `1 - beta1`
    of_gradient: f32,
    /// `beta2`
    beta2: f32,
    /// `1 - beta2`
    of_square: f32,
    /// `l / (1 - beta1^t)`
    rate: f32,
    /// `sqrt(1 - beta2^t)`
    correction: f32,
    eps: f32,
}

impl AdamNumbers {
    fn new([beta1, beta2]: [f64; 2], eps: f64, step: u64, learning_rate: f64) -> Self {
        let correction = |beta| 1.0 - libm::pow(beta, step as f64);
        AdamNumbers {
            shrink: 1.0,
            decay: 0.0,
            of_gradient: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            of_square: (1.0 - beta2) as f32,
            rate: (learning_rate / correction(beta1)) as f32,
            correction: libm::sqrt(correction(beta2)) as f32,
            eps: eps as f32,
        }
    }
}

/// A step of Adam.
struct Adam<'a, const DECAY: bool> {
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    numbers: AdamNumbers,
}

impl<const DECAY: bool> SimdOp for Adam<'_, DECAY> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Adam { w, g, m, v, numbers } = self;
        let AdamNumbers { shrink, decay, of_gradient, beta2, of_square, rate, correction, eps } = numbers;
        let n = w.len();
        let (g, m, v) = (&g[..n], &mut m[..n], &mut v[..n]);
        for i in 0..n {
            let weight = w[i] * shrink;
            let g = if DECAY { g[i] + decay * weight } else { g[i] };
            // As torch.lerp: from the nearer end.
            let mean = if of_gradient < 0.5 {
                m[i] + of_gradient * (g - m[i])
            } else {
                g - (g - m[i]) * (1.0 - of_gradient)
            };
            let square = v[i] * beta2 + of_square * g * g;
            (m[i], v[i]) = (mean, square);
            w[i] = weight - rate * mean / (sqrt(square) / correction + eps);
        }
    }
}

/// The square root of a number that is not negative, rounded correctly. In contrast to that of `libm`, which is assembly for
/// one number on some targets, a loop of it becomes vectors.
///
/// ```text
/// y_0 = the bits of 2^-0.5 x^-0.5, roughly        y_{n+1} = y_n (3/2 - x y_n^2 / 2)
/// s = x y_3                                       sqrt(x) = s + (x - s^2) y_3 / 2     in f64
/// ```
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    // 2^-95 and below by 2^64, so that all numbers are normal.
    let is_small = x < f32::from_bits(32 << 23);
    let (up, down) = if is_small { (191 << 23, 95 << 23) } else { (127 << 23, 127 << 23) };
    let z = x * f32::from_bits(up);
    let mut y = f32::from_bits(0x5f37_5a86_u32.wrapping_sub(z.to_bits() >> 1));
    for _ in 0..3 {
        y *= 1.5 - 0.5 * z * y * y;
    }
    let s = f64::from(z * y);
    let s = s + (f64::from(z) - s * s) * (0.5 * f64::from(y));
    if x == f32::INFINITY { x } else { s as f32 * f32::from_bits(down) }
}

/// Scales gradients so that the norm of all of them together is at most about `max`, and returns the norm before:
/// `g <- g min(1, max / (norm + 1e-6))`, as `torch.nn.utils.clip_grad_norm_`.
///
/// The squares of each slice are added in f64 in sixteen running sums: the same slices have the same norm everywhere. If the
/// factor is 1, or `max` is infinite, gradients stay as they are.
pub fn clip_by_norm(gradients: &mut [&mut [f32]], max: f64) -> f64 {
    let norm = libm::sqrt(gradients.iter().map(|part| squares(part)).sum());
    let factor = max / (norm + 1e-6);
    if factor < 1.0 {
        let factor = factor as f32;
        for part in gradients {
            part.iter_mut().for_each(|g| *g *= factor);
        }
    }
    norm
}

/// The sum of squares: sixteen running sums, then halves of them added.
fn squares(numbers: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let mut sums = [0.0; 16];
    let (chunks, rest) = numbers.as_chunks::<16>();
    for chunk in chunks {
        for i in 0..16 {
            sums[i] += square(chunk[i]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += square(*x);
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// Limits each gradient to `-limit..=limit`, as `torch.nn.utils.clip_grad_value_`.
///
/// # Panics
/// If `limit` is negative or NaN.
pub fn clip_by_value(gradients: &mut [f32], limit: f32) {
    gradients.iter_mut().for_each(|g| *g = g.clamp(-limit, limit));
}
