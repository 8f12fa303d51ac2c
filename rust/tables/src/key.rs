//! Short pieces of text packed into numbers, so that comparing two of them is one comparison; and hashes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Pieces of up to this many bytes are packed into a [`Key`].
pub const SHORT_PIECE: usize = 15;

/// Up to 15 bytes and their number, in the last byte: equal keys are equal pieces, and none is zero.
pub type Key = u128;

/// The bits of a key of up to 15 bytes.
pub static MASKS: [u128; SHORT_PIECE + 1] = masks();

const fn masks() -> [u128; SHORT_PIECE + 1] {
    let mut masks = [0; SHORT_PIECE + 1];
    let mut length = 0;
    while length <= SHORT_PIECE {
        masks[length] = (1 << (8 * length)) - 1;
        length += 1;
    }
    masks
}

/// The key of `text[start..end]`, of 1 to 15 bytes; the topmost four bits are zero.
#[inline(always)]
pub fn pack(text: &[u8], start: usize, end: usize) -> Key {
    let length = end - start;
    let bytes = match (text.get(start..).and_then(|rest| rest.first_chunk::<16>()), text.last_chunk::<16>()) {
        (Some(bytes), _) => u128::from_le_bytes(*bytes),
        (None, Some(last)) => u128::from_le_bytes(*last) >> (8 * (start + 16 - text.len())),
        (None, None) => pack_end(&text[start..end]),
    };
    bytes & MASKS[length & 15] | (length as u128) << 120
}

/// Up to 16 bytes, without reading beyond them: two parts that overlap. (A copy to memory that is read at once makes the
/// processor wait.)
#[inline]
pub fn pack_end(piece: &[u8]) -> u128 {
    let bits = 8 * piece.len();
    if let (Some(first), Some(last)) = (piece.first_chunk(), piece.last_chunk()) {
        return u128::from(u64::from_le_bytes(*first)) | u128::from(u64::from_le_bytes(*last)) << (bits - 64);
    }
    if let (Some(first), Some(last)) = (piece.first_chunk(), piece.last_chunk()) {
        return u128::from(u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (bits - 32));
    }
    let byte = |i: usize| piece.get(i).map_or(0, |&byte| u128::from(byte) << (8 * i));
    byte(0) | byte(1) | byte(2)
}

#[inline(always)]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[inline(always)]
pub fn hash(key: Key) -> u64 {
    fold(key as u64 ^ 0x9e37_79b9_7f4a_7c15, (key >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93)
}

/// Have the processor fetch the line of memory of `place`.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The hash of bytes of any number. Tables of what files hold have seeds of their own: nobody can make a file whose
/// tokens all fall on one place.
#[inline]
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let add = |hash: u64, word: u64| fold(hash ^ word, 0xf39c_c060_5ced_c835);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let mut chunks = bytes.chunks_exact(8);
    let hash = chunks.by_ref().fold(seed, |hash, chunk| add(hash, word(chunk)));
    add(hash, word(chunks.remainder()) | (bytes.len() as u64 + 1) << 56)
}

/// A seed that nobody can foresee.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_made_to_collide_do_so_for_one_seed_only() {
        let step = |seed: u64, word: u64| fold(seed ^ word, 0xf39c_c060_5ced_c835);
        let second = |first: u64| step(0, first) ^ step(0, 1) ^ 0x6161_6161_6161_6161;
        let words: Vec<[u8; 16]> = (1..2000_u64)
            .map(|first| u128::from(first) | u128::from(second(first)) << 64)
            .map(u128::to_le_bytes)
            .collect();
        let different =
            |seed| words.iter().map(|word| hash_bytes(seed, word)).collect::<std::collections::HashSet<_>>().len();
        assert_eq!(different(0), 1);
        assert!(different(random_seed()) > 1990);
    }
}
