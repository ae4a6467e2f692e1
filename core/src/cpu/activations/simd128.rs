//! The loops over a group of 32 activations, of which compilers vectorize none for WebAssembly.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

#[inline(always)]
fn load(x: &[f32; 4]) -> v128 {
    // SAFETY: four floats.
    unsafe { v128_load(x.as_ptr().cast()) }
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest(x: &[f32; 32]) -> f32 {
    // Magnitudes compare like their bits, with NaN above infinity.
    let max = x.as_chunks().0.iter().fold(u32x4_splat(0), |max, x| u32x4_max(max, f32x4_abs(load(x))));
    let max = u32x4_max(max, i32x4_shuffle::<2, 3, 0, 1>(max, max));
    f32::from_bits(u32x4_extract_lane::<0>(max).max(u32x4_extract_lane::<1>(max)))
}

/// Writes `x * inverse`, rounded half away from zero, to `q`. Returns the sums of its halves, the sum of its squares,
/// and the sum of its products with `x * inverse`, whose magnitudes are below 127.5.
#[inline(always)]
pub(super) fn round(x: &[f32; 32], inverse: f32, q: &mut [i8; 32]) -> ([i32; 2], i32, f32) {
    let inverse = f32x4_splat(inverse);
    // The largest float below 1/2, or 0.49999997 would round to 1.
    let half = f32x4_splat(f32::from_bits(0x3eff_ffff));
    let (mut sums, mut square, mut product) = ([0; 2], i32x4_splat(0), [f32x4_splat(0.0); 2]);
    let halves = q.as_chunks_mut::<16>().0.iter_mut().zip(x.as_chunks::<16>().0);
    for (sum, (q, x)) in sums.iter_mut().zip(halves) {
        let mut narrow = [i16x8_splat(0); 2];
        for (narrow, x) in narrow.iter_mut().zip(x.as_chunks::<8>().0) {
            let mut rounded = [i32x4_splat(0); 2];
            for ((rounded, product), x) in rounded.iter_mut().zip(&mut product).zip(x.as_chunks().0) {
                let v = f32x4_mul(load(x), inverse);
                let magnitude = i32x4_trunc_sat_f32x4(f32x4_add(f32x4_abs(v), half));
                let sign = i32x4_shr(v, 31);
                *rounded = i32x4_sub(v128_xor(magnitude, sign), sign);
                *product = f32x4_add(*product, f32x4_mul(v, f32x4_convert_i32x4(*rounded)));
            }
            *narrow = i16x8_narrow_i32x4(rounded[0], rounded[1]);
            square = i32x4_add(square, i32x4_dot_i16x8(*narrow, *narrow));
        }
        // SAFETY: sixteen integers.
        unsafe { v128_store(q.as_mut_ptr().cast(), i8x16_narrow_i16x8(narrow[0], narrow[1])) };
        *sum = add(i32x4_extadd_pairwise_i16x8(i16x8_add(narrow[0], narrow[1])));
    }
    // In the order of `op::finish`.
    let product = f32x4_add(product[0], product[1]);
    let product = f32x4_add(product, i32x4_shuffle::<2, 3, 0, 1>(product, product));
    (sums, add(square), f32x4_extract_lane::<0>(product) + f32x4_extract_lane::<1>(product))
}

#[inline(always)]
fn add(x: v128) -> i32 {
    let x = i32x4_add(x, i32x4_shuffle::<2, 3, 0, 1>(x, x));
    i32x4_extract_lane::<0>(x) + i32x4_extract_lane::<1>(x)
}
