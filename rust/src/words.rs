//! The vocabulary by the bytes of its tokens, and a cache of pieces that are more than one token.
//!
//! Pieces of up to 15 bytes are packed with their length into 128 bits, so that comparing is one comparison. The table
//! of the vocabulary is never written to after loading and serves all threads; the cache is a thread's own and of fixed
//! size: however long a process runs, it keeps the memory that it had after the first megabytes.

use crate::table::{Table, Zeroed};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes keys of a vocabulary, which is trusted not to be made of collisions, several times as fast as the default.
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
/// Pieces of up to this many bytes are cached.
pub const MEDIUM: usize = 47;

/// Up to 15 bytes and their number: equal keys are equal pieces, and none is zero.
pub type Key = u128;

/// The bits of a key of up to 15 bytes.
static MASKS: [u128; SHORT + 1] = masks();

const fn masks() -> [u128; SHORT + 1] {
    let mut masks = [0; SHORT + 1];
    let mut length = 0;
    while length <= SHORT {
        masks[length] = (1 << (8 * length)) - 1;
        length += 1;
    }
    masks
}

/// The key of `text[start..end]`, of 1 to 15 bytes.
#[inline(always)]
pub fn pack(text: &[u8], start: usize, end: usize) -> Key {
    let length = end - start;
    let bytes = match text.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
        Some(bytes) => u128::from_le_bytes(*bytes),
        None => pack_end(&text[start..end]),
    };
    bytes & MASKS[length & 15] | (length as u128) << 120
}

#[cold]
fn pack_end(piece: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes[..piece.len()].copy_from_slice(piece);
    u128::from_le_bytes(bytes)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[inline(always)]
pub fn hash(key: Key) -> u64 {
    fold(key as u64 ^ 0x9e37_79b9_7f4a_7c15, (key >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93)
}

#[inline(always)]
fn prefetch<T>(place: &T) {
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

/// Ids that a cached piece of up to 15 bytes has at most, and one.
pub const INLINE: usize = 16;

/// A cached piece of up to 15 bytes: a cache line.
///
/// Ids are cached as 16 bits, so that no piece has too many: a piece of which one is larger is not cached.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Short {
    key: Key,
    ids: [u16; INLINE],
    count: u32,
}

// SAFETY: integers.
unsafe impl Zeroed for Short {}

/// Ids that a cached piece of 16 to 47 bytes has at most.
const MEDIUM_IDS: usize = 38;

/// A cached piece of 16 to 47 bytes: two cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Medium {
    key: [u128; 3],
    ids: [u16; MEDIUM_IDS],
    count: u32,
}

// SAFETY: integers.
unsafe impl Zeroed for Medium {}

/// Sets of two entries each.
const SHORT_SETS: usize = 1 << 15;
const MEDIUM_SETS: usize = 1 << 13;

/// One thread's pieces of several tokens; 6 MiB.
pub struct Cache {
    short: Table<Short>,
    medium: Table<Medium>,
}

/// Copy ids to fewer bits, where they and their number fit.
#[inline(always)]
fn narrow(ids: &[u32], to: &mut [u16]) -> bool {
    let fits = ids.len() <= to.len() && ids.iter().all(|&id| id <= u32::from(u16::MAX));
    for (to, &id) in to.iter_mut().zip(ids) {
        *to = id as u16;
    }
    fits
}

impl Default for Cache {
    fn default() -> Self {
        Self { short: Table::new(2 * SHORT_SETS), medium: Table::new(2 * MEDIUM_SETS) }
    }
}

impl Cache {
    #[inline(always)]
    fn short_set(hash: u64) -> usize {
        (hash >> 40) as usize & (SHORT_SETS - 1)
    }

    #[inline(always)]
    fn medium_set(hash: u64) -> usize {
        hash as usize & (MEDIUM_SETS - 1)
    }

    #[inline(always)]
    pub fn get(&self, key: Key, hash: u64) -> Option<(&[u16; INLINE], usize)> {
        let at = 2 * Self::short_set(hash);
        let [first, second] = [&self.short[at], &self.short[at + 1]];
        if (first.key == key) | (second.key == key) {
            let entry = if first.key == key { first } else { second };
            return Some((&entry.ids, entry.count as usize));
        }
        None
    }

    /// The older entry of the set gives way.
    #[inline(always)]
    pub fn put(&mut self, key: Key, hash: u64, tokens: &[u32]) {
        let at = 2 * Self::short_set(hash);
        let set: &mut [Short] = &mut self.short[at..at + 2];
        let mut entry = Short { key, ids: [0; INLINE], count: tokens.len() as u32 };
        if narrow(tokens, &mut entry.ids) {
            set[1] = set[0];
            set[0] = entry;
        }
    }

    /// The key of `text[start..end]`, of 16 to 47 bytes, and its hash.
    #[inline(always)]
    pub fn pack_medium(text: &[u8], start: usize, end: usize) -> ([u128; 3], u64) {
        let length = end - start;
        let mut key = [0u128; 3];
        match text.get(start..).and_then(|rest| rest.first_chunk::<48>()) {
            Some(bytes) => {
                for (i, key) in key.iter_mut().enumerate() {
                    let part: [u8; 16] = std::array::from_fn(|j| bytes[16 * i + j]);
                    let inside = length.saturating_sub(16 * i);
                    *key = u128::from_le_bytes(part) & if inside >= 16 { !0 } else { MASKS[inside] };
                }
            }
            None => {
                for (key, part) in key.iter_mut().zip(text[start..end].chunks(16)) {
                    *key = pack_end(part);
                }
            }
        }
        key[2] |= (length as u128) << 120;
        (key, fold(hash(key[0]) ^ 0xa076_1d64_78bd_642f, hash(key[1]) ^ hash(key[2]).rotate_left(32)))
    }

    #[inline(always)]
    pub fn get_medium(&self, key: &[u128; 3], hash: u64) -> Option<&[u16]> {
        let at = 2 * Self::medium_set(hash);
        let set: &[Medium] = &self.medium[at..at + 2];
        let entry = set.iter().find(|entry| entry.key == *key)?;
        Some(&entry.ids[..entry.count as usize])
    }

    #[inline(always)]
    pub fn put_medium(&mut self, key: &[u128; 3], hash: u64, tokens: &[u32]) {
        let at = 2 * Self::medium_set(hash);
        let set: &mut [Medium] = &mut self.medium[at..at + 2];
        let mut entry = Medium { key: *key, ids: [0; MEDIUM_IDS], count: tokens.len() as u32 };
        if narrow(tokens, &mut entry.ids) {
            set[1] = set[0];
            set[0] = entry;
        }
    }
}
