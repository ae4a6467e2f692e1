//! Speed of products: `cargo run --release -p shohin-train --example products`.
use shohin_core::cpu::Isa;
use shohin_core::pool::Serial;
use shohin_train::gemm::{Columns, Gemm, Left, Store, Weight, WeightColumns, WeightRows};
use std::time::Instant;

fn main() {
    let m = 2048;
    for isa in Isa::available().skip(1) {
        for [n, k] in [[256, 256], [768, 256], [256, 768], [2048, 2048]] {
            let numbers =
                |n: usize| (0..n).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect::<Vec<f32>>();
            let (x, w, dy) = (numbers(m * k), numbers(n * k), numbers(m * n));
            let (mut y, mut dx, mut dw) = (vec![0.0; m * n], vec![0.0; m * k], vec![0.0; n * k]);
            let mut gemm = Gemm::new(isa, &Serial);
            let weight = Weight::Floats { data: &w, cols: k, fake: None };
            let mut best = [f64::MAX; 3];
            for _ in 0..8 {
                let mut time = |i: usize, run: &mut dyn FnMut(&mut Gemm<'_>)| {
                    let start = Instant::now();
                    run(&mut gemm);
                    best[i] = best[i].min(start.elapsed().as_secs_f64());
                };
                time(0, &mut |g| {
                    g.product([m, n, k], Left::rows(&x, k), &WeightRows(weight), &mut y, n, Store::Replace)
                });
                time(1, &mut |g| {
                    g.product(
                        [m, k, n],
                        Left::rows(&dy, n),
                        &WeightColumns(weight),
                        &mut dx,
                        k,
                        Store::Replace,
                    )
                });
                let right = Columns { data: &x, stride: k };
                time(2, &mut |g| g.product([n, k, m], Left::columns(&dy, n), &right, &mut dw, k, Store::Add));
            }
            let rate = best.map(|s| (2 * m * n * k) as f64 / s / 1e9);
            println!(
                "{} {n} x {k}: y {:.0} dx {:.0} dw {:.0} GFLOP/s",
                isa.name(),
                rate[0],
                rate[1],
                rate[2]
            );
        }
    }
}
