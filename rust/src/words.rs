//! The vocabulary by the bytes of its tokens.
//!
//! Pieces of up to 15 bytes are packed with their length into 128 bits, so that comparing is one comparison. The table is
//! never written to after loading and serves all threads.

use crate::table::{Table, Zeroed};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Several times as fast as the default, for vocabularies, which are trusted not to be made of collisions, and caches,
/// where collisions only cost time.
#[derive(Clone, Copy, Default)]
pub struct FastHasher(u64);

impl FastHasher {
    #[inline]
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xf39c_c060_5ced_c835;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FastHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.add(chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
        let rest = chunks.remainder().iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        self.add(rest | (bytes.len() as u64 + 1) << 56);
    }

    #[inline]
    fn write_u8(&mut self, _: u8) {
        // The end mark of a str: its length is hashed already.
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map that uses [`FastHasher`].
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Pieces of up to this many bytes are packed into a [`Key`].
pub const SHORT: usize = 15;

/// Up to 15 bytes and their number, in the last byte: equal keys are equal pieces, and none is zero.
pub type Key = u128;

/// The bits of a key of up to 15 bytes.
pub static MASKS: [u128; SHORT + 1] = masks();

const fn masks() -> [u128; SHORT + 1] {
    let mut masks = [0; SHORT + 1];
    let mut length = 0;
    while length <= SHORT {
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
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// An entry of [`Words`]: two fill a cache line.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Entry {
    key: Key,
    id: u32,
}

// SAFETY: integers.
unsafe impl Zeroed for Entry {}

/// The tokens that are the encoding of their own bytes, by these: open addressing, at most half full.
pub struct Words {
    slots: Table<Entry>,
    long: FastMap<Box<[u8]>, u32>,
    /// Tokens of more bytes than this are not in `long`.
    longest: usize,
}

impl Words {
    pub fn with_capacity(count: usize) -> Self {
        let slots = (2 * count).next_power_of_two().max(4);
        Self { slots: Table::new(slots), long: FastMap::default(), longest: 0 }
    }

    /// The token that is `text[start..end]`.
    #[inline(always)]
    pub fn find(&self, text: &[u8], start: usize, end: usize) -> Option<u32> {
        match end - start {
            0 => None,
            1..=SHORT => {
                let key = pack(text, start, end);
                self.get(key, hash(key))
            }
            _ => self.get_long(&text[start..end]),
        }
    }

    /// Have the processor fetch what [`Words::find`] and [`Words::insert_new`] will look at.
    #[inline(always)]
    pub fn prefetch_key(&self, text: &[u8], start: usize, end: usize) {
        if end - start <= SHORT {
            self.prefetch(hash(pack(text, start, end)));
        }
    }

    /// Add a token that is not there yet.
    pub fn insert(&mut self, token: &[u8], id: u32) {
        self.insert_new(token, 0, token.len(), id);
    }

    /// Add `text[start..end]`; false where it is there already.
    #[inline(always)]
    pub fn insert_new(&mut self, text: &[u8], start: usize, end: usize, id: u32) -> bool {
        if end - start > SHORT {
            self.longest = self.longest.max(end - start);
            return self.long.insert(text[start..end].into(), id).is_none();
        }
        let key = pack(text, start, end);
        let mut at = self.bucket(hash(key));
        loop {
            for entry in &mut self.slots[at..at + 2] {
                if entry.key == 0 {
                    *entry = Entry { key, id };
                    return true;
                }
                if entry.key == key {
                    return false;
                }
            }
            at = (at + 2) & (self.slots.len() - 1);
        }
    }

    /// Where the two entries begin that are looked at first: a cache line.
    #[inline(always)]
    fn bucket(&self, hash: u64) -> usize {
        (hash as usize & (self.slots.len() / 2 - 1)) * 2
    }

    /// Have the processor fetch what [`Words::get`] will look at.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.slots[self.bucket(hash)]);
    }

    #[inline(always)]
    pub fn get(&self, key: Key, hash: u64) -> Option<u32> {
        let mut at = self.bucket(hash);
        loop {
            // Both entries of the line are compared before the one branch: which of them it is, nobody can predict.
            let [first, second] = [self.slots[at], self.slots[at + 1]];
            if (first.key == key) | (second.key == key) {
                return Some(if first.key == key { first.id } else { second.id });
            }
            // A line that is not full is the last one; there is one, as half of the table is empty.
            if second.key == 0 {
                return None;
            }
            at = (at + 2) & (self.slots.len() - 1);
        }
    }

    /// The same for a piece of more than 15 bytes.
    #[inline]
    pub fn get_long(&self, piece: &[u8]) -> Option<u32> {
        if piece.len() > self.longest {
            return None;
        }
        self.long.get(piece).copied()
    }
}
