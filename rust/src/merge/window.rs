//! A short piece, or a window of a long one, that is being merged: the published algorithm on a few cache lines.
//!
//! A bit mask says where tokens begin, so that the one before and the one after are found by counting zeros, and an array
//! holds the rank of every pair, whose minimum is the next merge. A step has one branch, whether there is a merge at
//! all; so the processor runs several windows side by side as if they were one (`merge_long`).
//!
//! Performance notes (30 November 2026): a vector read from where single keys were just written waits until these have
//! arrived, 10 ns a step. With the keys of a short piece in a register instead (AVX-512): 250 ns to 180-210 for an English
//! word; written as a loop without intrinsics the compiler made branches of it, and nothing was gained. For the
//! windows of long pieces larger vectors make it worse (a fifth less with 64 bytes than with 32), and six are not faster
//! than four.

use tables::merges::Merges;

/// The largest piece that a [`Window`] takes.
pub const LARGEST_WINDOW: usize = 62;

/// `rank << 6 | place` for the pair of tokens of which the first begins at a place.
pub trait Keys {
    /// So many places.
    const PLACES: usize;

    /// What it takes to make them.
    type Level: Copy;

    /// Keys of the pairs from place 1 on, no pairs elsewhere.
    fn new(level: Self::Level, keys: impl Iterator<Item = u32>) -> Self;

    fn least(&self) -> u32;

    fn set(&mut self, place: usize, key: u32);
}

const NO_PAIR: u32 = Merges::NONE << 6;

fn array_of<const N: usize>(keys: impl Iterator<Item = u32>) -> [u32; N] {
    let mut array = [NO_PAIR; N];
    for (place, key) in array[1..].iter_mut().zip(keys) {
        *place = key;
    }
    array
}

/// In memory, for any processor.
impl<const N: usize> Keys for [u32; N] {
    const PLACES: usize = N;
    type Level = ();

    #[inline(always)]
    fn new(_: (), keys: impl Iterator<Item = u32>) -> Self {
        array_of(keys)
    }

    #[inline(always)]
    fn least(&self) -> u32 {
        // `min` of a slice stays a loop of branches; this becomes vector instructions.
        let mut least = [NO_PAIR; 16];
        for part in self.chunks_exact(16) {
            for (least, &key) in least.iter_mut().zip(part) {
                *least = if key < *least { key } else { *least };
            }
        }
        least.into_iter().fold(NO_PAIR, |a, b| if b < a { b } else { a })
    }

    #[inline(always)]
    fn set(&mut self, place: usize, key: u32) {
        self[place & (N - 1)] = key;
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::Register;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{array_of, Keys};
    use crate::simd::Avx512;
    use std::arch::x86_64::*;

    /// Sixteen keys in a register: a vector that is read from memory has to wait until what was written there one by one
    /// has arrived.
    pub struct Register(__m512i);

    impl Keys for Register {
        const PLACES: usize = 16;
        type Level = Avx512;

        #[inline(always)]
        fn new(_: Avx512, keys: impl Iterator<Item = u32>) -> Self {
            let array: [u32; 16] = array_of(keys);
            // SAFETY: an `Avx512` is there; sixteen integers are read.
            Self(unsafe { _mm512_loadu_si512(array.as_ptr().cast()) })
        }

        #[inline(always)]
        fn least(&self) -> u32 {
            // SAFETY: an `Avx512` was there to make it.
            unsafe { _mm512_reduce_min_epu32(self.0) }
        }

        #[inline(always)]
        fn set(&mut self, place: usize, key: u32) {
            // SAFETY: as above.
            self.0 = unsafe { _mm512_mask_set1_epi32(self.0, 1 << (place & 15), key as i32) };
        }
    }
}

/// A piece that is being merged: places 1 and on are its bytes, the two beside them stay empty.
pub struct Window<K> {
    /// The token that begins at a place.
    ids: [u32; 64],
    keys: K,
    /// A bit for each place where a token begins, and for the two empty ones.
    begins: u64,
}

impl<K: Keys> Window<K> {
    /// A piece of fewer bytes than there are keys.
    #[inline(always)]
    pub fn new(level: K::Level, piece: &[u8], merges: &Merges) -> Self {
        let mut ids = [Merges::NO_TOKEN; 64];
        for (id, &byte) in ids[1..].iter_mut().zip(piece) {
            *id = merges.byte_id(byte);
        }
        let pairs = (1..).zip(piece.windows(2));
        let keys = K::new(level, pairs.map(|(place, pair)| merges.rank_of_bytes(pair[0], pair[1]) << 6 | place));
        Self { ids, keys, begins: !0 >> (LARGEST_WINDOW - piece.len()) }
    }

    /// One merge; false where there is none.
    #[inline(always)]
    pub fn step(&mut self, merges: &Merges) -> bool {
        let best = self.keys.least();
        if best >= NO_PAIR {
            return false;
        }
        let (at, rank) = (best as usize & (K::PLACES - 1), best >> 6);
        let after = self.begins & (!1 << at);
        let gone = after.trailing_zeros() as usize & 63;
        let id = merges.product(rank);
        let next = (after & after.wrapping_sub(1)).trailing_zeros() as usize & 63;
        let previous = 63 - (self.begins & !(!0 << at) | 1).leading_zeros() as usize;
        self.begins ^= 1 << gone;
        self.ids[at] = id;
        self.keys.set(gone, NO_PAIR);
        self.keys.set(at, merges.rank(id, self.ids[next]) << 6 | at as u32);
        self.keys.set(previous, merges.rank(self.ids[previous], id) << 6 | previous as u32);
        true
    }

    /// Append the tokens that begin at `place` or later.
    #[inline(always)]
    pub fn put(&self, place: usize, out: &mut Vec<u32>) {
        let mut begins = self.begins & (!0 << place);
        out.reserve(LARGEST_WINDOW);
        // The last is the empty place behind.
        while begins & (begins - 1) != 0 {
            out.push(self.ids[begins.trailing_zeros() as usize]);
            begins &= begins - 1;
        }
    }

    /// Join the tokens, of a window from `begin` on, to those in `out` from `first` on, which are the encoding of what
    /// comes before `end`; false where the two share no token.
    #[inline(always)]
    pub fn join(&self, begin: usize, end: usize, merges: &Merges, first: usize, out: &mut Vec<u32>) -> bool {
        let (mut index, mut place) = border(&out[first..], merges, end, begin);
        while place < end {
            let token = out[first + index];
            if place >= begin {
                let here = place - begin + 1;
                if self.begins >> here & 1 != 0 && self.ids[here] == token {
                    out.truncate(first + index);
                    self.put(here, out);
                    return true;
                }
            }
            index += 1;
            place += merges.token_len(token);
        }
        if end == 0 {
            self.put(1, out);
        }
        end == 0
    }
}

/// The last of the tokens of `end` bytes that begins at or before `place`: which it is, and where it begins.
#[inline(always)]
pub fn border(tokens: &[u32], merges: &Merges, end: usize, place: usize) -> (usize, usize) {
    let (mut index, mut begin) = (tokens.len(), end);
    while index > 0 && begin > place {
        index -= 1;
        begin -= merges.token_len(tokens[index]);
    }
    (index, begin)
}
