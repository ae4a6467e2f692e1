//! Schedules: how the learning rate changes over the steps of a training.
//!
//! A schedule is a share of the highest learning rate for each step, from 0; everything about it that is a rate is such a share,
//! too. In the formulas `t` is the step and `T` the number of steps of the whole training. Schedules with a warm-up begin with
//!
//! ```text
//! share = t / warmup                  for t < warmup, so that step 0 changes no weights
//! r = (T - t) / (T - warmup)          what remains of the steps after it
//! ```
//! and stay, from step `T` on, what they are there.
#![forbid(unsafe_code)]

use core::f64::consts::PI;
use core::fmt;
use core::str::FromStr;

use shohin_core::error::Name;
use shohin_core::{Error, Result};

use crate::text::{Number, check, value};

/// How the learning rate changes over the steps.
///
/// The text of a schedule has all of its numbers, and parses to the same schedule:
///
/// | text | without the numbers |
/// |---|---|
/// | `constant:WARMUP` | `constant:0` |
/// | `cosine:WARMUP:MIN` | `cosine:0:0` |
/// | `linear:WARMUP:MIN` | `linear:0:0` |
/// | `hold:WARMUP:DECAY:MIN` | `hold:0:0.2:0` |
/// | `onecycle:START:DIV:FINAL_DIV:cosine` (or `linear`) | `onecycle:0.3:25:10000:cosine` |
/// | `plateau:FACTOR:PATIENCE:THRESHOLD:COOLDOWN:MIN` | `plateau:0.1:10:0.0001:0:0` |
/// | `polynomial:WARMUP:POWER:END` | `polynomial:0:1:0` |
/// | `cyclic:UP:DOWN:BASE:triangular` (or `triangular2`, `exp_range:GAMMA`) | `cyclic:2000:2000:0.25:triangular` |
///
/// Words at the end can be left out; without `DOWN` it is `UP`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// 1 after the warm-up, as `get_constant_schedule_with_warmup` of transformers.
    Constant {
        /// Steps of the warm-up.
        warmup: u64,
    },
    /// A half of a cosine, as `get_cosine_schedule_with_warmup` of transformers, and with `min` as
    /// `get_cosine_with_min_lr_schedule_with_warmup` (Loshchilov and Hutter 2016, arXiv:1608.03983).
    ///
    /// ```text
    /// share = min + (1 - min) (1 + cos(pi (1 - r))) / 2
    /// ```
    Cosine {
        /// Steps of the warm-up.
        warmup: u64,
        /// The share at the end, 0 to 1.
        min: f64,
    },
    /// A line, as `get_linear_schedule_with_warmup` of transformers if `min` is 0.
    ///
    /// ```text
    /// share = min + (1 - min) r
    /// ```
    Linear {
        /// Steps of the warm-up.
        warmup: u64,
        /// The share at the end, 0 to 1.
        min: f64,
    },
    /// 1 after the warm-up, and a line at the end (Hu et al. 2024, arXiv:2404.06395), as `get_wsd_schedule` of transformers with
    /// a linear decay.
    ///
    /// ```text
    /// D = round(decay T), at most T - warmup
    /// share = 1                                   for t <= T - D
    /// share = min + (1 - min) (T - t) / D         for t > T - D
    /// ```
    Hold {
        /// Steps of the warm-up.
        warmup: u64,
        /// The share of all steps in which the rate decreases, 0 to 1.
        decay: f64,
        /// The share of the rate at the end, 0 to 1.
        min: f64,
    },
    /// Up to the highest rate, then down far below where it began, as `torch.optim.lr_scheduler.OneCycleLR` with two phases
    /// (Smith and Topin 2017, arXiv:1708.07120).
    ///
    /// ```text
    /// 1 / div -> 1                        for t <= start T - 1
    /// 1 -> 1 / (div final_div)            after it, until t = T - 1
    /// ```
    OneCycle {
        /// The share of all steps in which the rate increases, 0 to 1.
        start: f64,
        /// What the highest rate is divided by at the beginning: at least 1.
        div: f64,
        /// What the rate at the beginning is divided by at the end: more than 0.
        final_div: f64,
        /// The form of both phases.
        anneal: Anneal,
    },
    /// Less each time when losses have not become smaller for a while, as `torch.optim.lr_scheduler.ReduceLROnPlateau` with the
    /// mode `min`, relative thresholds and `eps` 0. The schedule itself is 1; [`Plateau`] observes the losses.
    Plateau {
        /// What the rate is multiplied by: more than 0, less than 1.
        factor: f64,
        /// Losses in a row that may fail to be better.
        patience: u64,
        /// A loss is better if it is less than `1 - threshold` times the best one: at least 0, less than 1.
        threshold: f64,
        /// Losses after a reduction that cannot lead to another one.
        cooldown: u64,
        /// The least share, 0 to 1.
        min: f64,
    },
    /// A power of what remains, as `get_polynomial_decay_schedule_with_warmup` of transformers, whose `lr_end` is `end` times
    /// the highest rate here.
    ///
    /// ```text
    /// share = end + (1 - end) r^power
    /// ```
    Polynomial {
        /// Steps of the warm-up.
        warmup: u64,
        /// The power: more than 0.
        power: f64,
        /// The share at the end, 0 to 1.
        end: f64,
    },
    /// Up and down again and again, as `torch.optim.lr_scheduler.CyclicLR` (Smith 2015, arXiv:1506.01186).
    ///
    /// ```text
    /// share = base + (1 - base) h s           h from 0 to 1 in `up` steps, and back to 0 in `down` steps
    /// ```
    Cyclic {
        /// Steps from the lowest to the highest rate: at least 1.
        up: u64,
        /// Steps from the highest to the lowest rate: at least 1.
        down: u64,
        /// The lowest share, 0 to 1.
        base: f64,
        /// How `s` changes.
        mode: CyclicMode,
    },
}

/// The form of a phase of [`Schedule::OneCycle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Anneal {
    /// A half of a cosine.
    #[default]
    Cosine,
    /// A line.
    Linear,
}

impl Anneal {
    /// What is `from` at `x = 0` and `to` at `x = 1`.
    fn between(self, from: f64, to: f64, x: f64) -> f64 {
        match self {
            Anneal::Cosine => to + (from - to) / 2.0 * (libm::cos(PI * x) + 1.0),
            Anneal::Linear => from + (to - from) * x,
        }
    }
}

/// What the height of the cycles of [`Schedule::Cyclic`] is multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum CyclicMode {
    /// `s = 1`
    #[default]
    Triangular,
    /// `s = 2^-c` in cycle `c`, from 0.
    Triangular2,
    /// `s = gamma^t`
    ExpRange {
        /// More than 0, at most 1.
        gamma: f64,
    },
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule::Constant { warmup: 0 }
    }
}

impl Schedule {
    /// The learning rate of step `step`, from 0, of `total` steps, if the highest is `base`. For [`Schedule::Plateau`] it is to
    /// be multiplied by [`Plateau::factor`].
    pub fn rate(&self, step: u64, base: f64, total: u64) -> f64 {
        base * self.share(step, total)
    }

    fn share(&self, step: u64, total: u64) -> f64 {
        if step < self.warmup() {
            return step as f64 / self.warmup() as f64;
        }
        let left = |of: u64| total.saturating_sub(step) as f64 / of.max(1) as f64;
        let remains = left(total.saturating_sub(self.warmup()));
        let over = |min: f64, x: f64| min + (1.0 - min) * x;
        match *self {
            Schedule::Constant { .. } | Schedule::Plateau { .. } => 1.0,
            Schedule::Cosine { min, .. } => over(min, 0.5 * (1.0 - libm::cos(PI * remains))),
            Schedule::Linear { min, .. } => over(min, remains),
            Schedule::Hold { warmup, decay, min } => {
                let steps = (libm::round(decay * total as f64) as u64).min(total.saturating_sub(warmup));
                if step <= total - steps { 1.0 } else { over(min, left(steps)) }
            }
            Schedule::Polynomial { power, end, .. } => over(end, libm::pow(remains, power)),
            Schedule::OneCycle { start, div, final_div, anneal } => {
                let (t, last) = (step as f64, total.saturating_sub(1) as f64);
                let highest = start * total as f64 - 1.0;
                let (first, end) = (1.0 / div, 1.0 / (div * final_div));
                if t <= highest && highest > 0.0 {
                    anneal.between(first, 1.0, t / highest)
                } else if t >= last {
                    end
                } else {
                    anneal.between(1.0, end, (t - highest) / (last - highest))
                }
            }
            Schedule::Cyclic { up, down, base, mode } => {
                let steps = (up.max(1) as f64) + (down.max(1) as f64);
                let cycle = libm::floor(step as f64 / steps);
                let t = step as f64 - cycle * steps;
                let up = up.max(1) as f64;
                let height = if t <= up { t / up } else { (steps - t) / (steps - up) };
                let scale = match mode {
                    CyclicMode::Triangular => 1.0,
                    CyclicMode::Triangular2 => libm::exp2(-cycle),
                    CyclicMode::ExpRange { gamma } => libm::pow(gamma, step as f64),
                };
                over(base, height * scale)
            }
        }
    }

    /// Steps of the warm-up.
    fn warmup(&self) -> u64 {
        match *self {
            Schedule::Constant { warmup }
            | Schedule::Cosine { warmup, .. }
            | Schedule::Linear { warmup, .. }
            | Schedule::Hold { warmup, .. }
            | Schedule::Polynomial { warmup, .. } => warmup,
            Schedule::OneCycle { .. } | Schedule::Plateau { .. } | Schedule::Cyclic { .. } => 0,
        }
    }

    /// Checks the numbers, as parsing does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a number out of its range.
    pub fn check(&self) -> Result<()> {
        let share = |key: &str, x: f64| check((0.0..=1.0).contains(&x), key, x, "0 to 1");
        let positive = |key: &str, x: f64| check(x > 0.0 && x.is_finite(), key, x, "a number over 0");
        match *self {
            Schedule::Constant { .. } => Ok(()),
            Schedule::Cosine { min, .. } | Schedule::Linear { min, .. } => share("min of the schedule", min),
            Schedule::Hold { decay, min, .. } => {
                share("decay of the schedule", decay)?;
                share("min of the schedule", min)
            }
            Schedule::OneCycle { start, div, final_div, .. } => {
                share("start of the schedule", start)?;
                check(
                    div >= 1.0 && div.is_finite(),
                    "div of the schedule",
                    div,
                    "a number that is at least 1",
                )?;
                positive("final div of the schedule", final_div)
            }
            Schedule::Plateau { factor, threshold, min, .. } => {
                let (name, expected) = ("factor of the schedule", "more than 0 and less than 1");
                check(factor > 0.0 && factor < 1.0, name, factor, expected)?;
                let (name, expected) = ("threshold of the schedule", "at least 0 and less than 1");
                check((0.0..1.0).contains(&threshold), name, threshold, expected)?;
                share("min of the schedule", min)
            }
            Schedule::Polynomial { power, end, .. } => {
                positive("power of the schedule", power)?;
                share("end of the schedule", end)
            }
            Schedule::Cyclic { up, down, base, mode } => {
                for (name, steps) in [("up of the schedule", up), ("down of the schedule", down)] {
                    check(steps > 0, name, steps as f64, "at least 1 step")?;
                }
                share("base of the schedule", base)?;
                let gamma = if let CyclicMode::ExpRange { gamma } = mode { gamma } else { 1.0 };
                let expected = "more than 0 and at most 1";
                check(gamma > 0.0 && gamma <= 1.0, "gamma of the schedule", gamma, expected)
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Schedule::Constant { warmup } => write!(f, "constant:{warmup}"),
            Schedule::Cosine { warmup, min } => write!(f, "cosine:{warmup}:{}", Number(min)),
            Schedule::Linear { warmup, min } => write!(f, "linear:{warmup}:{}", Number(min)),
            Schedule::Hold { warmup, decay, min } => {
                write!(f, "hold:{warmup}:{}:{}", Number(decay), Number(min))
            }
            Schedule::OneCycle { start, div, final_div, anneal } => {
                let anneal = match anneal {
                    Anneal::Cosine => "cosine",
                    Anneal::Linear => "linear",
                };
                write!(f, "onecycle:{}:{}:{}:{anneal}", Number(start), Number(div), Number(final_div))
            }
            Schedule::Plateau { factor, patience, threshold, cooldown, min } => {
                let [factor, threshold, min] = [factor, threshold, min].map(Number);
                write!(f, "plateau:{factor}:{patience}:{threshold}:{cooldown}:{min}")
            }
            Schedule::Polynomial { warmup, power, end } => {
                write!(f, "polynomial:{warmup}:{}:{}", Number(power), Number(end))
            }
            Schedule::Cyclic { up, down, base, mode } => {
                write!(f, "cyclic:{up}:{down}:{}:", Number(base))?;
                match mode {
                    CyclicMode::Triangular => f.write_str("triangular"),
                    CyclicMode::Triangular2 => f.write_str("triangular2"),
                    CyclicMode::ExpRange { gamma } => write!(f, "exp_range:{}", Number(gamma)),
                }
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let expected = match text.split(':').next() {
            Some("constant") => "constant[:WARMUP]",
            Some("cosine") => "cosine[:WARMUP[:MIN]]",
            Some("linear") => "linear[:WARMUP[:MIN]]",
            Some("hold") => "hold[:WARMUP[:DECAY[:MIN]]]",
            Some("onecycle") => "onecycle[:START[:DIV[:FINAL_DIV[:cosine or :linear]]]]",
            Some("plateau") => "plateau[:FACTOR[:PATIENCE[:THRESHOLD[:COOLDOWN[:MIN]]]]]",
            Some("polynomial") => "polynomial[:WARMUP[:POWER[:END]]]",
            Some("cyclic") => "cyclic[:UP[:DOWN[:BASE[:triangular, :triangular2 or :exp_range:GAMMA]]]]",
            _ => "constant, cosine, linear, hold, onecycle, plateau, polynomial or cyclic",
        };
        let (key, found) = (Name::new("schedule"), Name::new(text));
        let schedule = parse(text).ok_or(Error::Unsupported { key, found, expected })?;
        schedule.check()?;
        Ok(schedule)
    }
}

fn parse(text: &str) -> Option<Schedule> {
    let mut words = text.split(':');
    let schedule = match words.next()? {
        "constant" => Schedule::Constant { warmup: value(words.next(), 0)? },
        "cosine" => Schedule::Cosine { warmup: value(words.next(), 0)?, min: value(words.next(), 0.0)? },
        "linear" => Schedule::Linear { warmup: value(words.next(), 0)?, min: value(words.next(), 0.0)? },
        "hold" => Schedule::Hold {
            warmup: value(words.next(), 0)?,
            decay: value(words.next(), 0.2)?,
            min: value(words.next(), 0.0)?,
        },
        "onecycle" => Schedule::OneCycle {
            start: value(words.next(), 0.3)?,
            div: value(words.next(), 25.0)?,
            final_div: value(words.next(), 1e4)?,
            anneal: match words.next() {
                None | Some("cosine") => Anneal::Cosine,
                Some("linear") => Anneal::Linear,
                _ => return None,
            },
        },
        "plateau" => Schedule::Plateau {
            factor: value(words.next(), 0.1)?,
            patience: value(words.next(), 10)?,
            threshold: value(words.next(), 1e-4)?,
            cooldown: value(words.next(), 0)?,
            min: value(words.next(), 0.0)?,
        },
        "polynomial" => Schedule::Polynomial {
            warmup: value(words.next(), 0)?,
            power: value(words.next(), 1.0)?,
            end: value(words.next(), 0.0)?,
        },
        "cyclic" => {
            let up = value(words.next(), 2000)?;
            let (down, base) = (value(words.next(), up)?, value(words.next(), 0.25)?);
            let mode = match words.next() {
                None | Some("triangular") => CyclicMode::Triangular,
                Some("triangular2") => CyclicMode::Triangular2,
                Some("exp_range") => CyclicMode::ExpRange { gamma: words.next()?.parse().ok()? },
                _ => return None,
            };
            Schedule::Cyclic { up, down, base, mode }
        }
        _ => return None,
    };
    words.next().is_none().then_some(schedule)
}

/// What [`Schedule::Plateau`] remembers of losses.
///
/// Its text has the bits of its floats in hexadecimal digits, so that a training that goes on from it loses nothing:
/// `FACTOR:BEST:BAD:COOLDOWN`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    factor: f64,
    /// The least loss, of those that were better.
    best: f64,
    /// Losses in a row that were not better.
    bad: u64,
    /// Losses that cannot lead to a reduction yet.
    cooldown: u64,
}

impl Default for Plateau {
    /// Before the first loss.
    fn default() -> Self {
        Plateau { factor: 1.0, best: f64::INFINITY, bad: 0, cooldown: 0 }
    }
}

impl Plateau {
    /// What the learning rate is multiplied by.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Learns of a loss, in the order of `ReduceLROnPlateau.step`; does nothing if `schedule` is another one than
    /// [`Schedule::Plateau`]. NaN is not better than anything.
    pub fn observe(&mut self, schedule: &Schedule, loss: f64) {
        let Schedule::Plateau { factor, patience, threshold, cooldown, min } = *schedule else { return };
        if loss < self.best * (1.0 - threshold) {
            (self.best, self.bad) = (loss, 0);
        } else {
            self.bad = self.bad.saturating_add(1);
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.bad = 0;
        }
        if self.bad > patience {
            self.factor = (self.factor * factor).max(min);
            (self.cooldown, self.bad) = (cooldown, 0);
        }
    }
}

impl fmt::Display for Plateau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plateau { factor, best, bad, cooldown } = self;
        write!(f, "{:016x}:{:016x}:{bad}:{cooldown}", factor.to_bits(), best.to_bits())
    }
}

impl FromStr for Plateau {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bits = |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits);
        let parse = || {
            let mut words = text.split(':');
            let plateau = Plateau {
                factor: bits(words.next()?)?,
                best: bits(words.next()?)?,
                bad: words.next()?.parse().ok()?,
                cooldown: words.next()?.parse().ok()?,
            };
            let is_valid = (0.0..=1.0).contains(&plateau.factor) && !plateau.best.is_nan();
            (is_valid && words.next().is_none()).then_some(plateau)
        };
        let (key, found) = (Name::new("state of the plateau schedule"), Name::new(text));
        let expected = "FACTOR:BEST:BAD:COOLDOWN, two floats as hexadecimal bits and two numbers";
        parse().ok_or(Error::Unsupported { key, found, expected })
    }
}
