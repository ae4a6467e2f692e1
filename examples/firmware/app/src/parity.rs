//! The kernels of the board's processor against the portable reference, and what it finds in damaged files against what other
//! machines do.

use alloc::vec;
use alloc::vec::Vec;

use shohin_core::cpu::Isa;
use shohin_core::cpu::activations::{Q8Block, q8_blocks, quantize};
use shohin_core::cpu::matmul::{Input, matmul};
use shohin_core::quant::{Format, Matrix};
use shohin_core::{Error, Serial};

use crate::console::{self, eprintln, println};
use crate::{damaged, heap};

/// Multiplies random matrices of every format that has kernels on every instruction set, and reads damaged files. Ends with an
/// error unless all results have the same bits.
pub fn parity() -> ! {
    heap::init();
    console::open();
    match check() {
        Ok(0) => console::end(0),
        Ok(different) => {
            eprintln!("error: {different} results differ");
            console::end(1)
        }
        Err(error) => {
            eprintln!("error: {error}");
            console::end(1)
        }
    }
}

/// How many results differ from the reference.
fn check() -> Result<usize, Error> {
    let found = damaged::outcomes(damaged::FILES)?;
    let same = found == damaged::EXPECTED;
    let mut different = usize::from(!same);
    println!("{} damaged files: {found:08x} {}", damaged::FILES, if same { "equal" } else { "DIFFERENT" });
    // Formats, and where the scale of a block is.
    for (format, scale) in [(Format::Q1_0, 0), (Format::Q2_0, 0), (Format::Pq2_0, 0), (Format::Tq2_0G128, 32)]
        .into_iter()
        .filter(|(format, _)| format.is_available())
    {
        // An odd number of rows, and several blocks of columns.
        let (rows, tokens, cols) = (37, 3, 3 * format.block());
        let mut random = Random(1);
        let len = rows * format.row_bytes(cols).unwrap_or_default();
        // Any bytes are weights, the unused code 3 included; scales must be finite.
        let mut packed: Vec<u8> = (0..len).map(|_| random.next()).collect();
        packed.chunks_exact_mut(format.block_bytes()).for_each(|block| block[scale + 1] &= 0xbf);
        let w = Matrix::new(format, rows, cols, &packed)?.into();
        let x: Vec<f32> = (0..tokens * cols).map(|_| f32::from(random.next()) - 127.0).collect();
        let mut q8 = vec![Q8Block::default(); tokens * q8_blocks(cols)];
        quantize(Isa::SCALAR, &x, cols, &mut q8)?;
        let input = Input { f32: &x, q8: Some(&q8), luts: &[] };
        let product = |isa| {
            let mut y = vec![f32::NAN; tokens * rows];
            matmul(isa, &Serial, &w, &input, tokens, &mut y)?;
            Ok::<_, Error>(y.into_iter().map(f32::to_bits).collect::<Vec<u32>>())
        };
        let expected = product(Isa::SCALAR)?;
        for isa in Isa::available() {
            let same = product(isa)? == expected;
            different += usize::from(!same);
            println!("{} {} {}", format.name(), isa.name(), if same { "equal" } else { "DIFFERENT" });
        }
    }
    Ok(different)
}

/// A linear congruential generator.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 24) as u8
    }
}
