//! Decimal numbers within bounds, digit by digit.
//!
//! All numbers have at most [`DIGITS`] digits, so that every reader (of integers or of 64-bit floats) gets
//! exactly the number that was written, and bounds hold for the number that is read.
#![forbid(unsafe_code)]

/// Maximum number of digits of a number, before and after the point together.
pub(super) const DIGITS: u32 = 15;
const SCALE: i128 = 10i128.pow(DIGITS);

/// The allowed numbers. Bounds are in units of the last decimal place, `10^-15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) integer: bool,
    /// Without bounds an exponent is allowed.
    pub(super) bounded: bool,
    low: i128,
    high: i128,
    /// Numbers are multiples of this.
    multiple: i128,
}

/// The digits of a number so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digits {
    pub(super) negative: bool,
    /// All digits as one integer.
    pub(super) value: u64,
    /// The number of digits, and how many of them are after the point.
    pub(super) count: u32,
    pub(super) fraction: u32,
}

/// A position within a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// At its beginning, or after its minus sign.
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigit,
    ExponentDigits,
}

impl Part {
    pub(super) fn may_end(self) -> bool {
        use Part::*;
        matches!(self, Zero | Whole | Fraction | ExponentDigit | ExponentDigits)
    }
}

impl Digits {
    pub(super) fn push(self, digit: u8, behind_point: bool) -> Digits {
        Digits {
            value: self.value * 10 + u64::from(digit),
            count: self.count + 1,
            fraction: self.fraction + u32::from(behind_point),
            ..self
        }
    }
}

impl Bounds {
    pub(super) const fn none(integer: bool) -> Bounds {
        Bounds { integer, bounded: false, low: i128::MIN, high: i128::MAX, multiple: 1 }
    }

    /// Narrows the range to numbers at least `text`, or greater than it if `exclusive`.
    pub(super) fn at_least(&mut self, text: &str, exclusive: bool) -> Option<()> {
        self.low = self.low.max(scaled(text)? + i128::from(exclusive));
        self.bounded = true;
        Some(())
    }

    /// Narrows the range to numbers at most `text`, or less than it if `exclusive`.
    pub(super) fn at_most(&mut self, text: &str, exclusive: bool) -> Option<()> {
        self.high = self.high.min(scaled(text)? - i128::from(exclusive));
        self.bounded = true;
        Some(())
    }

    /// Restricts to multiples of the integer `text`, of at most nine digits.
    pub(super) fn multiple_of(&mut self, text: &str) -> Option<()> {
        let of = text.strip_suffix(".0").unwrap_or(text).parse::<u32>().ok().filter(|of| *of > 0)?;
        self.multiple = i128::from(of) * SCALE;
        self.bounded = true;
        Some(())
    }

    /// The bounds of the magnitude of a number of this sign.
    fn magnitudes(&self, negative: bool) -> (i128, i128) {
        let (low, high) = (self.low.max(-SCALE * SCALE), self.high.min(SCALE * SCALE));
        if negative { (-high, -low) } else { (low, high) }
    }

    /// Whether the number may end after these digits.
    pub(super) fn holds(&self, d: Digits) -> bool {
        if !self.bounded {
            return true;
        }
        let (low, high) = self.magnitudes(d.negative);
        let value = i128::from(d.value) * 10i128.pow(DIGITS - d.fraction);
        (low..=high).contains(&value) && value % self.multiple == 0
    }

    /// The fewest further bytes that complete a number in range from these digits, if possible.
    pub(super) fn fewest(&self, d: Digits, part: Part) -> Option<u32> {
        if part.may_end() && self.holds(d) {
            return Some(0);
        }
        let left = DIGITS.checked_sub(d.count)?;
        let exponent = matches!(part, Part::Exponent | Part::ExponentSign);
        if !self.bounded {
            return (left > 0 || exponent).then_some(1);
        }
        let (mut low, high) = self.magnitudes(d.negative);
        if d.negative && self.integer {
            low = low.max(SCALE); // -0 is not written
        }
        // With this many more digits before the point, and after it.
        let reach = |more: u32, behind: u32| {
            let unit = 10i128.pow(DIGITS - d.fraction);
            let first = i128::from(d.value) * 10i128.pow(more) * unit;
            let step = 10i128.pow(DIGITS - d.fraction - behind);
            let last = first + 10i128.pow(more) * unit - step;
            // If there is a multiple, it is a multiple of the step, too.
            let step = step.max(self.multiple);
            meets(low.max(first), high.min(last), step)
        };
        match part {
            Part::Point | Part::Fraction => (1..=left).find(|&behind| reach(0, behind)),
            Part::Zero if self.integer => None,
            Part::Zero => (1..=left).find(|&behind| reach(0, behind)).map(|behind| behind + 1),
            Part::Sign | Part::Whole => {
                let least = u32::from(part == Part::Sign);
                (1..=left + 1).find(|&bytes| {
                    let fits = |more: u32| {
                        // The point is a byte too.
                        let behind = (bytes - more).saturating_sub(1);
                        let whole = behind == 0 && more == bytes;
                        (whole || behind > 0 && !self.integer) && more + behind <= left && reach(more, behind)
                    };
                    (least..=bytes).any(fits)
                })
            }
            _ => None,
        }
    }
}

/// Whether a multiple of `step` is within the range.
fn meets(low: i128, high: i128, step: i128) -> bool {
    low <= high && high.div_euclid(step) * step >= low
}

/// A JSON number in units of `10^-15`.
fn scaled(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().ok()?;
    let (negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let (mut value, mut digits) = (0i128, 0);
    for digit in whole.bytes().chain(fraction.bytes()) {
        digits += u32::from(digits > 0 || digit != b'0');
        if !digit.is_ascii_digit() || digits > 30 {
            return None;
        }
        value = value * 10 + i128::from(digit - b'0');
    }
    if value == 0 {
        return Some(0);
    }
    // No number that can be written is this large, so a larger bound has the same effect.
    let huge = SCALE * SCALE;
    let places = i64::from(DIGITS) + i64::from(exponent) - fraction.len() as i64;
    let scaled = match u32::try_from(places) {
        Ok(places) => {
            let factor = 10i128.checked_pow(places);
            factor.and_then(|factor| value.checked_mul(factor)).map_or(huge, |v| v.min(huge))
        }
        Err(_) if places > 0 => huge,
        Err(_) => return None,
    };
    if digits > DIGITS && scaled < huge && scaled % SCALE != 0 {
        return None; // a float may not be distinguishable from its neighbours
    }
    Some(if negative { -scaled } else { scaled })
}
