//! The vocabulary by the bytes of its tokens, and a cache of pieces that are more than one token.
//!
//! Pieces of up to 15 bytes are packed with their length into 128 bits, so that comparing is one comparison. The table
//! of the vocabulary is never written to after loading and serves all threads; the cache is a thread's own, direct-mapped
//! and of fixed size: however long a process runs, it keeps the memory that it had after the first megabytes.

use crate::vocabulary::FastMap;

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

/// An entry of [`Words`]: two fill a cache line.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Entry {
    key: Key,
    id: u32,
}

/// The tokens that are the encoding of their own bytes, by these: open addressing, at most half full.
pub struct Words {
    slots: Vec<Entry>,
    long: FastMap<Box<[u8]>, u32>,
    /// Tokens of more bytes than this are not in `long`.
    longest: usize,
}

impl Words {
    pub fn with_capacity(count: usize) -> Self {
        let slots = (2 * count).next_power_of_two().max(2);
        Self { slots: vec![Entry::default(); slots], long: FastMap::default(), longest: 0 }
    }

    /// Add a token that is not there yet.
    pub fn insert(&mut self, token: &[u8], id: u32) {
        if token.len() > SHORT {
            self.longest = self.longest.max(token.len());
            self.long.insert(token.into(), id);
            return;
        }
        let key = pack(token, 0, token.len());
        let mut slot = self.slot(hash(key));
        while self.slots[slot].key != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = Entry { key, id };
    }

    #[inline(always)]
    fn slot(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// Have the processor fetch what [`Words::get`] will look at.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing; SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            _mm_prefetch::<_MM_HINT_T0>(self.slots.as_ptr().add(self.slot(hash)).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = hash;
    }

    #[inline(always)]
    pub fn get(&self, key: Key, hash: u64) -> Option<u32> {
        let mut slot = self.slot(hash);
        loop {
            // `slot` is masked by the length, which is a power of two; an empty slot always comes.
            let entry = self.slots[slot];
            if entry.key == key {
                return Some(entry.id);
            }
            if entry.key == 0 {
                return None;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
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

/// A cached piece of up to 15 bytes: a cache line.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Short {
    key: Key,
    ids: [u32; 11],
    count: u32,
}

/// A cached piece of 16 to 47 bytes: two cache lines.
#[derive(Clone, Copy, Default)]
#[repr(C, align(128))]
struct Medium {
    key: [u128; 3],
    ids: [u32; 19],
    count: u32,
}

const SHORT_SLOTS: usize = 1 << 15;
const MEDIUM_SLOTS: usize = 1 << 13;

/// One thread's pieces of several tokens; 3 MiB when full.
pub struct Cache {
    short: Vec<Short>,
    medium: Vec<Medium>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { short: vec![Short::default(); SHORT_SLOTS], medium: vec![Medium::default(); MEDIUM_SLOTS] }
    }
}

impl Cache {
    #[inline(always)]
    pub fn get(&self, key: Key, hash: u64) -> Option<&[u32]> {
        let entry = &self.short[(hash >> 40) as usize & (SHORT_SLOTS - 1)];
        (entry.key == key).then(|| &entry.ids[..entry.count as usize])
    }

    #[inline(always)]
    pub fn put(&mut self, key: Key, hash: u64, tokens: &[u32]) {
        let entry = &mut self.short[(hash >> 40) as usize & (SHORT_SLOTS - 1)];
        if let Some(ids) = entry.ids.get_mut(..tokens.len()) {
            ids.copy_from_slice(tokens);
            entry.key = key;
            entry.count = tokens.len() as u32;
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
    pub fn get_medium(&self, key: &[u128; 3], hash: u64) -> Option<&[u32]> {
        let entry = &self.medium[hash as usize & (MEDIUM_SLOTS - 1)];
        (entry.key == *key).then(|| &entry.ids[..entry.count as usize])
    }

    #[inline(always)]
    pub fn put_medium(&mut self, key: &[u128; 3], hash: u64, tokens: &[u32]) {
        let entry = &mut self.medium[hash as usize & (MEDIUM_SLOTS - 1)];
        if let Some(ids) = entry.ids.get_mut(..tokens.len()) {
            ids.copy_from_slice(tokens);
            entry.key = *key;
            entry.count = tokens.len() as u32;
        }
    }
}
