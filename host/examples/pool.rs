//! Overhead of the thread pool, alone and beside busy processes:
//! `cargo run -r -p shohin --example pool [threads]`.
//!
//! A "token" here is 200 parallel regions of 50 microseconds of single-threaded work, divided into chunks
//! like matrix products, with 2 microseconds of serial work between them. One thread and several take turns,
//! so that both see the same machine.

use shohin::ThreadPool;
use shohin::core::Pool;
use std::hint::{black_box, spin_loop};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const REGIONS: usize = 200;
const CHUNKS: usize = 8;

/// Work bound by the CPU, not by memory.
fn work(rounds: u64) {
    let mut x = rounds | 1;
    for _ in 0..rounds {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17));
    }
}

fn token(pool: &ThreadPool, microsecond: u64) {
    for _ in 0..REGIONS {
        let next = AtomicUsize::new(0);
        pool.run(CHUNKS, &|_| {
            if next.fetch_add(1, Relaxed) < CHUNKS {
                work(50 * microsecond / CHUNKS as u64);
            }
        });
        work(2 * microsecond);
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Keeps a core busy until it is killed, or for long enough.
fn hog() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(120) {
        work(1_000_000);
    }
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("--hog") {
        return hog();
    }
    let threads = argument.and_then(|n| n.parse().ok()).unwrap_or(2);
    let several = ThreadPool::new(threads).unwrap();
    let one = ThreadPool::new(1).unwrap();

    // A job that lasts until all workers have one: the time to wake them and to see them finish.
    let fork = |pause: Duration, runs: usize| {
        let mut times: Vec<f64> = (0..runs)
            .map(|_| {
                std::thread::sleep(pause);
                let started = AtomicUsize::new(0);
                let start = Instant::now();
                several.run(threads, &|_| {
                    started.fetch_add(1, Relaxed);
                    while started.load(Relaxed) < threads && start.elapsed() < Duration::from_millis(1) {
                        spin_loop();
                    }
                });
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        median(&mut times)
    };
    println!("fork and join of {threads} threads: {:.2} us (median)", fork(Duration::ZERO, 20_000));
    println!("  when the others have parked: {:.2} us", fork(Duration::from_millis(1), 500));

    let microsecond = (0..20)
        .map(|_| {
            let start = Instant::now();
            work(100_000);
            (100_000.0 / (start.elapsed().as_secs_f64() * 1e6)) as u64
        })
        .max()
        .unwrap_or(1);
    println!("busy processes beside | one thread | {threads} threads | times faster (ms a token, mean)");
    for hogs in 0..=4 {
        let exe = std::env::current_exe().unwrap();
        let mut children: Vec<Child> = (0..hogs)
            .map(|_| Command::new(&exe).arg("--hog").stdin(Stdio::null()).spawn().unwrap())
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        let mut times = [0.0; 2];
        const TURNS: usize = 20;
        for _ in 0..TURNS {
            for (pool, time) in [&one, &several].into_iter().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..5 {
                    token(pool, microsecond);
                }
                *time += start.elapsed().as_secs_f64() * 1e3 / 5.0 / TURNS as f64;
                spin_loop();
            }
        }
        println!("{hogs} | {:.2} | {:.2} | {:.2}", times[0], times[1], times[0] / times[1]);
        for child in &mut children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
