//! Speed of the kernels alone on one thread: `cargo run -r -p shohin-core --example kernels [filter]`.
//!
//! GMAC/s of products of 2048 columns: with one token, weights streamed from memory and weights hot in the L2
//! cache, and with 8 and 64 tokens. Only compare lines of the same run.

use shohin_core::cpu::Isa;
use shohin_core::cpu::activation_lut::ActivationLut;
use shohin_core::cpu::activations::{Q8Block, q8_blocks, quantize};
use shohin_core::cpu::matmul::{Input, build_lut, lut_len, matmul};
use shohin_core::cpu::repack::{Layout, PANEL_ROWS, PackedMatrix, repacked_format, repacks};
use shohin_core::{Format, Matrix, Serial};

const COLS: usize = 2048;
const STREAMED: usize = 96 << 20;
const HOT: usize = 384 << 10;

/// CPU seconds of this thread where the system reports them, which other programs disturb less than wall
/// time.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn seconds() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const THREAD_CPU: i32 = 3;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` has the layout of a timespec on 64-bit Linux.
    unsafe { clock_gettime(THREAD_CPU, &mut time) };
    time.seconds as f64 + time.nanoseconds as f64 * 1e-9
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn seconds() -> f64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |t| t.as_secs_f64())
}

fn best_rate(products: usize, mut run: impl FnMut()) -> f64 {
    let start = seconds();
    let mut best = f64::INFINITY;
    while seconds() - start < 0.25 {
        let t = seconds();
        run();
        best = best.min(seconds() - t);
    }
    products as f64 / best / 1e9
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let bytes: Vec<u8> = {
        let mut n = 1u64;
        let next = |_| {
            n = n.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (n >> 56) as u8 // every bit, as tables are read by them
        };
        (0..STREAMED + 64).map(next).collect()
    };
    // As in a file that is mapped to memory.
    let bytes = &bytes[bytes.as_ptr().align_offset(64)..][..STREAMED];
    let x: Vec<f32> = (0..64 * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.02).collect();
    println!(
        "{:24} {:>9} {:>9} {:>9} {:>9}   GMAC/s, {COLS} columns, one thread",
        "", "streamed", "hot", "8 tokens", "64 tokens"
    );
    for isa in Isa::available() {
        let mut q8 = vec![Q8Block::default(); 64 * q8_blocks(COLS)];
        quantize(isa, &x, COLS, &mut q8).expect("lengths fit");
        for format in Format::ALL {
            let repacked = repacked_format(format).filter(|_| repacks(isa));
            for (int8, layout) in
                [(true, Layout::preferred(isa, format)), (true, Layout::RowMajor), (false, Layout::RowMajor)]
            {
                let name = match (layout, int8) {
                    (Layout::RowMajor, true) => format!("{} {} rows", isa.name(), format.name()),
                    (Layout::RowMajor, false) => format!("{} {} f32", isa.name(), format.name()),
                    _ => format!("{} {}", isa.name(), format.name()),
                };
                let absent = layout != Layout::RowMajor && repacked.is_none();
                if !name.contains(&filter) || absent || int8 && format.is_float() {
                    continue;
                }
                // Any bytes are weights in any layout.
                let format = if layout == Layout::RowMajor { format } else { repacked.unwrap_or(format) };
                let rate = |bytes: &[u8], tokens: usize| {
                    let row = format.row_bytes(COLS).expect("a multiple of every block");
                    let rows = bytes.len() / row / PANEL_ROWS * PANEL_ROWS;
                    let w = Matrix::new(format, rows, COLS, &bytes[..rows * row])
                        .and_then(|w| PackedMatrix::new(w, layout))
                        .expect("lengths fit");
                    let mut y = vec![0.0; rows * tokens];
                    let q8 = &q8[..tokens * q8_blocks(COLS)];
                    let mut luts = vec![ActivationLut::default(); lut_len(isa, tokens, COLS)];
                    build_lut(isa, q8, COLS, &mut luts).expect("lengths fit");
                    let input = Input { f32: &x[..tokens * COLS], q8: int8.then_some(q8), luts: &luts };
                    best_rate(rows * COLS * tokens, || {
                        matmul(isa, &Serial, &w, &input, tokens, &mut y).expect("lengths fit");
                    })
                };
                println!(
                    "{name:24} {:9.2} {:9.2} {:9.2} {:9.2}",
                    rate(bytes, 1),
                    rate(&bytes[..HOT], 1),
                    rate(&bytes[..8 * HOT], 8),
                    rate(&bytes[..HOT], 64)
                );
            }
        }
    }
}
