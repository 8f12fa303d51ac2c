//! The levels of processors' instructions, found out once.
//!
//! A level is a value, and only this file makes one, of what the processor has. So who holds one may use its
//! instructions: that is why the vector code is sound, wherever it stands.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Any processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// SSE2, which every x86-64 processor has.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sse2(());

/// AVX2, BMI1, BMI2, LZCNT and POPCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// All of [`Avx2`], and AVX-512 F, BW, VL and VBMI2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

/// A level that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLevel {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Sse2(Sse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// All levels that this processor has, the slowest first; each is part of those after it.
pub fn levels() -> Vec<CpuLevel> {
    #[allow(unused_mut)]
    let mut found = vec![CpuLevel::Portable(Portable)];
    #[cfg(target_arch = "x86_64")]
    {
        found.push(CpuLevel::Sse2(Sse2(())));
        let bits = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
        let counts = is_x86_feature_detected!("lzcnt") && is_x86_feature_detected!("popcnt");
        if bits && counts && is_x86_feature_detected!("avx2") {
            found.push(CpuLevel::Avx2(Avx2(())));
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            if wide && is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vbmi2") {
                found.push(CpuLevel::Avx512(Avx512(())));
            }
        }
    }
    found
}

/// How many of [`levels`] may be used; 0 before anybody has asked.
static ALLOWED: AtomicU8 = AtomicU8::new(0);

/// The level to use: the best one of this processor, or of what [`limit`] has left of them.
#[inline]
pub fn level() -> CpuLevel {
    // The number never is larger than that of the levels which this processor has.
    match ALLOWED.load(Ordering::Relaxed) {
        0 => allow(usize::MAX),
        1 => CpuLevel::Portable(Portable),
        #[cfg(target_arch = "x86_64")]
        2 => CpuLevel::Sse2(Sse2(())),
        #[cfg(target_arch = "x86_64")]
        3 => CpuLevel::Avx2(Avx2(())),
        #[cfg(target_arch = "x86_64")]
        _ => CpuLevel::Avx512(Avx512(())),
        #[cfg(not(target_arch = "x86_64"))]
        _ => CpuLevel::Portable(Portable),
    }
}

#[cold]
fn allow(most: usize) -> CpuLevel {
    let found = levels();
    let count = found.len().min(most);
    ALLOWED.store(count as u8, Ordering::Relaxed);
    found[count - 1]
}

/// The names of the levels, as the environment variable GPT2FAST_CPU has them, and how many of [`levels`] each leaves.
///
/// AVX-512 without VNNI is older than VBMI2, so that level takes AVX2 here.
const NAMES: [(&str, usize); 5] = [
    ("baseline", 2),
    ("x86-64-v3", 3),
    ("x86-64-v4", 3),
    ("x86-64-v4-vnni", usize::MAX),
    ("aarch64-dotprod", usize::MAX), // nothing of it serves a tokenizer
];

/// Why a level cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLevel {
    /// No level has this name.
    Unknown,
    /// This processor has not all of its instructions.
    Unsupported,
}

impl fmt::Display for NoLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoLevel::Unknown => "is not a level that gpt2fast knows",
            NoLevel::Unsupported => "is not supported by this processor",
        })
    }
}

/// The names of the levels that this processor has, the slowest first.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|&(name, _)| name).filter(|name| is_supported(name))
}

fn is_supported(name: &str) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let v3 = || {
            levels().len() >= 3
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("movbe")
        };
        let v4 = || {
            v3() && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match name {
            "x86-64-v3" => return v3(),
            "x86-64-v4" => return v4(),
            "x86-64-v4-vnni" => return v4() && is_x86_feature_detected!("avx512vnni"),
            _ => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    if name == "aarch64-dotprod" {
        return std::arch::is_aarch64_feature_detected!("dotprod");
    }
    name == "baseline"
}

/// Use no level above the one of this name from now on, in the whole process.
///
/// # Errors
/// Where there is no such level, or this processor does not have it.
pub fn limit(name: &str) -> Result<(), NoLevel> {
    let &(_, count) = NAMES.iter().find(|(known, _)| *known == name).ok_or(NoLevel::Unknown)?;
    if !is_supported(name) {
        return Err(NoLevel::Unsupported);
    }
    allow(count);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_takes_the_levels_above_it_away() {
        let all = levels();
        assert_eq!(level(), all[all.len() - 1]);
        assert_eq!(limit("pentium"), Err(NoLevel::Unknown));
        assert_eq!(level(), all[all.len() - 1]);
        for (name, count) in NAMES {
            if is_supported(name) {
                assert_eq!(limit(name), Ok(()));
                assert_eq!(level(), all[all.len().min(count) - 1]);
            } else {
                assert_eq!(limit(name), Err(NoLevel::Unsupported));
            }
        }
        allow(usize::MAX);
        assert_eq!(level(), all[all.len() - 1]);
    }
}
