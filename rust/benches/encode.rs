//! Where the time of encoding goes: `cargo bench --bench encode -- FILE…`. Best of several rounds, one thread.

use _bpe::encode::{Cache, Tokenizer};
use _bpe::pretokenize::classify::Level;
use _bpe::pretokenize::scan::Scanner;
use _bpe::simd::{levels, CpuLevel};
use std::time::Instant;

/// Seconds of this thread on a processor where the system tells (Linux), else of the clock on the wall.
fn seconds(start: Instant) -> f64 {
    #[cfg(target_os = "linux")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } == 0 {
            return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
        }
    }
    start.elapsed().as_secs_f64()
}

fn best(label: &str, bytes: usize, mut work: impl FnMut() -> usize) {
    let mut least = f64::INFINITY;
    let mut result = 0;
    for _ in 0..15 {
        let start = Instant::now();
        let before = seconds(start);
        result = work();
        least = least.min(seconds(start) - before);
    }
    let (rate, each) = (bytes as f64 / least / 1e6, least / result as f64 * 1e9);
    println!("  {label:<24}{rate:8.0} MB/s{each:8.2} ns each of {result}");
}

/// The number of pieces.
fn starts<L: Level>(level: L, text: &[u8]) -> usize {
    let mut scanner = Scanner::new(level, text);
    let mut count = 0;
    while let Some((_, starts)) = scanner.next_block() {
        count += starts.count_ones() as usize;
    }
    count
}

fn main() {
    let tokenizer = Tokenizer::gpt2();
    for file in std::env::args().skip(1).filter(|argument| !argument.starts_with('-')) {
        let text = std::fs::read(&file).expect("a file");
        println!("{file}: {} bytes", text.len());
        // Only what any processor can do: more takes functions that are compiled for it, as `encode` has them.
        for level in levels() {
            match level {
                CpuLevel::Portable(level) => best("scan, portable", text.len(), || starts(level, &text)),
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Sse2(level) => best("scan, SSE2", text.len(), || starts(level, &text)),
                _ => {}
            }
        }
        let mut cache = Cache::default();
        best("count", text.len(), || tokenizer.count(&text, &mut cache));
        let mut ids: Vec<u16> = Vec::new();
        best("encode", text.len(), || {
            ids.clear();
            tokenizer.encode(&text, &mut cache, &mut ids);
            ids.len()
        });
        best("encode, cold cache", text.len(), || {
            ids.clear();
            tokenizer.encode(&text, &mut Cache::default(), &mut ids);
            ids.len()
        });
    }
}
