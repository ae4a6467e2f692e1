//! Software floating point for RV32 without the F extension, in fewer instructions than that of Rust's compiler support
//! library, which it replaces in the whole program. The bits are the same, but those of NaN may differ.
//!
//! Operands and results are bits of `f32`. Zeros, subnormal numbers, infinities and NaN, and results near the ends of the
//! range, take a slower path.

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
const QUIET: u32 = 1 << 22;

/// Replaces the functions that the compiler calls.
#[cfg(all(feature = "soft-float", target_arch = "riscv32", target_os = "none"))]
#[allow(unsafe_code)]
mod replaced {
    #[unsafe(no_mangle)]
    extern "C" fn __mulsf3(a: u32, b: u32) -> u32 {
        super::mul(a, b)
    }

    #[unsafe(no_mangle)]
    extern "C" fn __addsf3(a: u32, b: u32) -> u32 {
        super::add(a, b)
    }

    #[unsafe(no_mangle)]
    extern "C" fn __subsf3(a: u32, b: u32) -> u32 {
        super::add(a, b ^ super::SIGN)
    }

    #[unsafe(no_mangle)]
    extern "C" fn __floatsisf(n: i32) -> u32 {
        super::from_integer(n)
    }
}

/// The biased exponent: 0 for zeros and subnormal numbers, 255 for infinities and NaN.
#[inline(always)]
fn exponent(x: u32) -> u32 {
    x << 1 >> 24
}

/// The product.
#[inline(always)]
fn mul(a: u32, b: u32) -> u32 {
    let (ea, eb) = (exponent(a), exponent(b));
    // Of the result, unless it is 2 or more times 2 to that power.
    let e = (ea + eb).wrapping_sub(127);
    if ea.wrapping_sub(1) >= 254 || eb.wrapping_sub(1) >= 254 || e.wrapping_sub(1) >= 253 {
        return mul_any(a, b);
    }
    let product = u64::from(a << 8 | SIGN) * u64::from(b << 8 | SIGN);
    // The last bit tells whether any below it is set.
    let x = (product >> 32) as u32 | u32::from(product as u32 != 0);
    // The hidden bit of the mantissa adds 1 to the exponent.
    let magnitude = if x & SIGN != 0 { (e << 23) + round::<8>(x) } else { ((e - 1) << 23) + round::<7>(x) };
    magnitude | (a ^ b) & SIGN
}

/// `x / 2^BITS`, to nearest, ties to even.
#[inline(always)]
fn round<const BITS: u32>(x: u32) -> u32 {
    (x + (1 << (BITS - 1)) - 1 + (x >> BITS & 1)) >> BITS
}

/// The sum.
#[inline(always)]
fn add(a: u32, b: u32) -> u32 {
    let (big, small) = if a << 1 < b << 1 { (b, a) } else { (a, b) };
    let (mut e, least) = (exponent(big), exponent(small));
    if least == 0 || e == 255 {
        return add_any(a, b);
    }
    let shift = e - least;
    if shift > 25 {
        return big;
    }
    // Seven bits below the last one of the result; the lowest tells whether any that was shifted out is set.
    let mantissa = |x: u32| (x << 8 | SIGN) >> 1;
    let (whole, part) = (mantissa(big), mantissa(small));
    let mut part_shifted = part >> shift;
    if part_shifted << shift != part {
        part_shifted |= 1;
    }
    let sign = big & SIGN;
    if (a ^ b) & SIGN == 0 {
        let x = whole + part_shifted;
        let magnitude =
            if x & SIGN != 0 { (e << 23) + round::<8>(x) } else { ((e - 1) << 23) + round::<7>(x) };
        return magnitude.min(INFINITY) | sign;
    }
    let mut x = whole - part_shifted;
    if x == 0 {
        return 0;
    }
    while x < 1 << 30 {
        x <<= 1;
        e = e.wrapping_sub(1);
    }
    if e.wrapping_sub(1) >= 254 {
        return add_any(a, b);
    }
    (((e - 1) << 23) + round::<7>(x)) | sign
}

/// The nearest float, ties to even.
#[inline(always)]
fn from_integer(n: i32) -> u32 {
    let mut x = n.unsigned_abs();
    if x == 0 {
        return 0;
    }
    let mut e = 127 + 31;
    for shift in [16, 8, 4, 2, 1] {
        if x >> (32 - shift) == 0 {
            x <<= shift;
            e -= shift;
        }
    }
    // Rounding may exceed 32 bits.
    let (whole, rest) = (x >> 8, x & 0xff);
    (((e - 1) << 23) + whole + ((rest + 127 + (whole & 1)) >> 8)) | n as u32 & SIGN
}

/// A finite number as a mantissa times 2 to a power.
fn unpack(x: u32) -> (u64, i32) {
    let (e, fraction) = (exponent(x), x & ((1 << 23) - 1));
    match e {
        0 => (fraction.into(), 1 - 150),
        _ => ((fraction | 1 << 23).into(), e as i32 - 150),
    }
}

/// `mantissa 2^power`, to nearest, ties to even. The mantissa is not zero.
fn pack(sign: u32, mantissa: u64, power: i32) -> u32 {
    let top = 63 - mantissa.leading_zeros() as i32;
    let e = power + top + 127;
    if e >= 255 {
        return sign | INFINITY;
    }
    // Subnormal numbers have the exponent of the least normal ones.
    let drop = top - 23 + (1 - e).max(0);
    let rounded = match drop {
        ..=0 => mantissa << -drop,
        1..=63 => {
            let (whole, half) = (mantissa >> drop, 1u64 << (drop - 1));
            let rest = mantissa & (2 * half - 1);
            whole + u64::from(rest > half || rest == half && whole & 1 == 1)
        }
        _ => 0,
    };
    sign | ((((e - 1).max(0) as u32) << 23) + rounded as u32)
}

fn is_nan(x: u32) -> bool {
    x << 1 > INFINITY << 1
}

#[cold]
#[inline(never)]
fn mul_any(a: u32, b: u32) -> u32 {
    let (sign, zero) = ((a ^ b) & SIGN, a << 1 == 0 || b << 1 == 0);
    if is_nan(a) || is_nan(b) {
        return (if is_nan(a) { a } else { b }) | QUIET;
    }
    match (exponent(a) == 255 || exponent(b) == 255, zero) {
        (true, true) => return INFINITY | QUIET,
        (true, false) => return sign | INFINITY,
        (false, true) => return sign,
        (false, false) => {}
    }
    let ((ma, pa), (mb, pb)) = (unpack(a), unpack(b));
    pack(sign, ma * mb, pa + pb)
}

#[cold]
#[inline(never)]
fn add_any(a: u32, b: u32) -> u32 {
    if is_nan(a) || is_nan(b) {
        return (if is_nan(a) { a } else { b }) | QUIET;
    }
    let (big, small) = if a << 1 < b << 1 { (b, a) } else { (a, b) };
    if exponent(small) == 255 && a != b {
        return INFINITY | QUIET;
    }
    if small << 1 == 0 {
        // Zeros of different signs add up to +0.
        return if big << 1 == 0 { a & b } else { big };
    }
    let ((mb, pb), (ms, ps)) = (unpack(big), unpack(small));
    let shift = pb - ps;
    // Infinity, or a number whose last bit is worth more than the other one.
    if exponent(big) == 255 || shift > 26 {
        return big;
    }
    let whole = mb << shift;
    match if (a ^ b) & SIGN == 0 { whole + ms } else { whole - ms } {
        0 => 0,
        sum => pack(big & SIGN, sum, ps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all kinds, and pairs whose exponents are near each other.
    fn pairs(visit: &mut dyn FnMut(u32, u32)) {
        let edges = [
            0,
            1,
            2,
            0x7f_ffff,
            0x80_0000,
            0x80_0001,
            0x3f7f_ffff,
            0x3f80_0000,
            0x3f80_0001,
            0x4b80_0000,
            0x7f7f_ffff,
            INFINITY,
            INFINITY | QUIET,
            INFINITY | 1,
            0x1f80_0000,
            0x2000_0000,
        ];
        for a in edges {
            for b in edges {
                for signs in 0..4 {
                    visit(a | signs << 31, b | signs >> 1 << 31);
                }
            }
        }
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 32) as u32
        };
        for i in 0..3_000_000u32 {
            let (a, b) = (next(), next());
            visit(a, b);
            // Exponents that differ by less than 32, and mantissas that end in zeros.
            let near = (exponent(a) + (b & 31)).saturating_sub(15).min(254);
            let mask = !0u32 << (i % 24);
            visit(a & (mask | !0 << 23), b & SIGN | near << 23 | b & mask & ((1 << 23) - 1));
        }
    }

    fn same(found: u32, want: f32, what: &str, a: u32, b: u32) {
        let both_nan = is_nan(found) && want.is_nan();
        assert!(both_nan || found == want.to_bits(), "{a:#x} {what} {b:#x} = {found:#x}, not {want}");
    }

    #[test]
    fn sums_and_products_are_those_of_ieee() {
        pairs(&mut |a, b| {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            same(mul(a, b), x * y, "*", a, b);
            same(mul_any(a, b), x * y, "*", a, b);
            same(add(a, b), x + y, "+", a, b);
            same(add_any(a, b), x + y, "+", a, b);
        });
    }

    #[test]
    fn integers_convert_like_ieee() {
        let check = |n: i32| assert_eq!(from_integer(n), (n as f32).to_bits(), "{n}");
        (-70_000..70_000).for_each(check);
        (0..32).for_each(|bit| (-3..=3).for_each(|near| check((1i32 << bit).wrapping_add(near))));
        (0..2_000_000u32).for_each(|i| check(i.wrapping_mul(2_654_435_761) as i32 >> (i % 32)));
    }
}
