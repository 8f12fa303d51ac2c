//! One thread's memory of pieces and their ids: of fixed size, however long a process runs.
//!
//! Nearly every piece of a text is short (up to 15 bytes), has few ids (up to eight) and was seen before. [`PieceCache::get`]
//! answers for those: one line of memory, one branch. All others, words of the vocabulary that come for the first time
//! included, go the longer way of `encoder.rs`, where the performance notes are, too.

use crate::pretokenize::classify::Level;
use crate::simd::Portable;
use tables::key::{fold, hash, hash_bytes, pack_end, prefetch, Key, MASKS};
use tables::memory::{Table, Zeroed};

/// Ids that a short piece has at most in the cache.
pub const SHORT_IDS: usize = 8;

/// A short piece: two of them fill a line of memory.
///
/// Ids are cached as 16 bits, so that eight fit: a piece of which one is larger is not cached.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Short {
    key: Key,
    ids: Ids,
}

/// One to eight ids. In place of the eighth is their number where they are less, so the eighth id must be 8 at least.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub struct Ids([u16; SHORT_IDS]);

impl Ids {
    /// None where they are too many or too large.
    fn new(ids: &[u32]) -> Option<Self> {
        let mut few = [0; SHORT_IDS];
        few[SHORT_IDS - 1] = ids.len() as u16;
        let fits = narrow(ids, &mut few);
        let few = Self(few);
        (fits && few.count() == ids.len()).then_some(few)
    }

    /// All eight places.
    #[inline(always)]
    pub fn all(&self) -> &[u16; SHORT_IDS] {
        &self.0
    }

    #[inline(always)]
    pub fn count(&self) -> usize {
        usize::from(self.0[SHORT_IDS - 1]).min(SHORT_IDS)
    }

    pub fn get(&self) -> &[u16] {
        &self.0[..self.count()]
    }
}

// SAFETY: integers.
unsafe impl Zeroed for Short {}

/// Bytes that a piece of [`Medium`] has at most.
pub const MEDIUM_PIECE: usize = 47;
/// Ids that it has at most in the cache.
const MEDIUM_IDS: usize = 38;

/// A piece that is longer, or has more ids: two lines of memory.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Medium {
    key: [u128; 3],
    ids: [u16; MEDIUM_IDS],
    count: u32,
}

// SAFETY: integers.
unsafe impl Zeroed for Medium {}

/// A piece that is longer still.
#[derive(Default)]
struct Long {
    piece: Vec<u8>,
    ids: Vec<u16>,
}

/// Bytes that it has at most: longer ones hardly come twice.
const LONGEST_CACHED: usize = 511;
const LONG_PIECES: usize = 256;

/// Sets of two entries each. Those of short pieces become eight times as many when there are enough pieces: clearing the
/// memory for all of them takes as long as encoding some 100 kB.
const FIRST_SETS: usize = 1 << 11;
const SHORT_SETS: usize = 1 << 17;
const MEDIUM_SETS: usize = 1 << 13;

/// One thread's pieces: from 128 KiB to 8 MiB of short ones, 2 MiB of longer ones and half a MiB at most of long ones.
pub struct PieceCache {
    short: Table<Short>,
    /// Makes a place of a hash.
    shift: u32,
    /// How many short pieces have been put since the table grew.
    puts: usize,
    medium: Table<Medium>,
    long: Vec<Long>,
}

/// Where a short piece is in the cache, if it is there.
#[derive(Clone, Copy, Default)]
pub struct Place(usize);

/// Copy ids to fewer bits, where they and their number fit.
#[inline(always)]
fn narrow(ids: &[u32], to: &mut [u16]) -> bool {
    let fits = ids.len() <= to.len() && ids.iter().all(|&id| id <= u32::from(u16::MAX));
    for (to, &id) in to.iter_mut().zip(ids) {
        *to = id as u16;
    }
    fits
}

impl Default for PieceCache {
    fn default() -> Self {
        let long = std::iter::repeat_with(Long::default).take(LONG_PIECES).collect();
        let (short, shift) = (Table::new(2 * FIRST_SETS), 64 - FIRST_SETS.trailing_zeros());
        Self { short, shift, puts: 0, medium: Table::new(2 * MEDIUM_SETS), long }
    }
}

impl PieceCache {
    /// Where to look for a short piece; the processor begins to fetch it.
    #[inline(always)]
    pub fn place(&self, key: Key) -> Place {
        let place = self.place_of(key);
        // SAFETY: as in `get`.
        prefetch(unsafe { self.short.get_unchecked(2 * place.0) });
        place
    }

    /// The processor begins to fetch what [`PieceCache::find`] looks at, too.
    #[inline(always)]
    pub fn prefetch_beside(&self, place: Place) {
        prefetch(&self.short[2 * (place.0 ^ 1)]);
    }

    #[inline(always)]
    fn place_of(&self, key: Key) -> Place {
        // Quicker than `hash`, and good enough for a cache.
        let hash = (key as u64 ^ (key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Place((hash >> self.shift) as usize)
    }

    /// The ids of a short piece.
    #[inline(always)]
    pub fn get(&self, key: Key, place: Place) -> Option<&Ids> {
        self.get_with(Portable, &key, place)
    }

    /// As [`PieceCache::get`], compared by the instructions of a level.
    #[inline(always)]
    pub fn get_with<L: Level>(&self, level: L, key: &Key, place: Place) -> Option<&Ids> {
        // SAFETY: places are made of fewer bits than the table has sets, and it only grows.
        unsafe {
            // Which of the two it is nobody can predict, so there is no branch on that.
            let at = 2 * place.0;
            let entry =
                self.short.get_unchecked(at + usize::from(!level.are_equal(&self.short.get_unchecked(at).key, key)));
            level.are_equal(&entry.key, key).then_some(&entry.ids)
        }
    }

    /// Keep the ids of a short piece, if they fit.
    pub fn put(&mut self, key: Key, place: Place, ids: &[u32]) {
        let entry = match Ids::new(ids) {
            Some(ids) => Short { key, ids },
            None if self.put_medium(&[key, 0, 0], hash(key), ids) => {
                Short { key: key | Self::MARK, ids: Ids::default() }
            }
            None => return,
        };
        self.insert(entry, place);
        self.puts += 1;
        if self.puts > self.short.len() / 2 && self.short.len() < 2 * SHORT_SETS {
            self.grow();
        }
    }

    /// What is kept for a short piece of more than eight ids: by this a piece that comes for the first time need not be
    /// looked for among the longer ones. A bit that no key has.
    const MARK: Key = 1 << 127;

    /// The ids of a short piece that has more than eight.
    #[inline(always)]
    pub fn get_many(&self, key: Key, place: Place) -> Option<&[u16]> {
        let line = &self.short[2 * place.0..][..2];
        let marked = line.iter().any(|entry| entry.key == key | Self::MARK);
        if marked {
            self.get_medium(&[key, 0, 0], hash(key))
        } else {
            None
        }
    }

    /// Places from before stay good: at worst, what is put there is not found.
    #[cold]
    fn grow(&mut self) {
        let more = Table::new(4 * self.short.len());
        let before = std::mem::replace(&mut self.short, more);
        (self.shift, self.puts) = (self.shift - 2, 0);
        for &entry in before.iter().filter(|entry| entry.key != 0) {
            let place = self.place_of(entry.key & !Self::MARK);
            self.insert(entry, place);
        }
    }

    /// The older entry of the two gives way. It goes to the line beside, where a word is forgotten for it, if there is
    /// one: a word is looked up again in a fraction of the time that merging takes.
    fn insert(&mut self, entry: Short, Place(set): Place) {
        let older = std::mem::replace(&mut self.short[2 * set], entry);
        let oldest = std::mem::replace(&mut self.short[2 * set + 1], older);
        if oldest.key != 0 {
            let beside = &mut self.short[2 * (set ^ 1)..][..2];
            match beside.iter_mut().rev().find(|entry| entry.ids.count() <= 1) {
                Some(entry) => *entry = oldest,
                None if oldest.ids.count() > 1 => beside[1] = oldest,
                None => {}
            }
        }
    }

    /// As [`PieceCache::get`], of pieces that gave way, too: such a one is brought back.
    pub fn find(&mut self, key: Key, place: Place) -> Option<&Ids> {
        if self.get(key, place).is_none() && !self.bring_back(key, place) {
            return None;
        }
        self.get(key, place)
    }

    /// Bring a short piece back that gave way; false where it is forgotten.
    fn bring_back(&mut self, key: Key, place: Place) -> bool {
        let beside = &mut self.short[2 * (place.0 ^ 1)..][..2];
        let Some(found) = beside.iter_mut().find(|entry| entry.key == key) else { return false };
        let entry = std::mem::take(found);
        self.insert(entry, place);
        true
    }

    #[inline(always)]
    fn medium_set(hash: u64) -> usize {
        hash as usize & (MEDIUM_SETS - 1)
    }

    /// The key of `text[start..end]`, of up to 47 bytes, and its hash.
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
        let [a, b, c] = *key;
        // Part by part: arrays are compared by a call.
        let entry = set.iter().find(|entry| (entry.key[0] ^ a) | (entry.key[1] ^ b) | (entry.key[2] ^ c) == 0)?;
        Some(&entry.ids[..entry.count as usize])
    }

    #[inline(always)]
    pub fn put_medium(&mut self, key: &[u128; 3], hash: u64, tokens: &[u32]) -> bool {
        let at = 2 * Self::medium_set(hash);
        let set: &mut [Medium] = &mut self.medium[at..at + 2];
        let mut entry = Medium { key: *key, ids: [0; MEDIUM_IDS], count: tokens.len() as u32 };
        let fits = narrow(tokens, &mut entry.ids);
        if fits {
            set[1] = set[0];
            set[0] = entry;
        }
        fits
    }

    fn long_place(piece: &[u8]) -> usize {
        hash_bytes(0, piece) as usize & (LONG_PIECES - 1)
    }

    pub fn get_long(&self, piece: &[u8]) -> Option<&[u16]> {
        if piece.len() > LONGEST_CACHED {
            return None;
        }
        let entry = &self.long[Self::long_place(piece)];
        (entry.piece == piece).then_some(&entry.ids)
    }

    pub fn put_long(&mut self, piece: &[u8], ids: &[u32]) {
        if piece.len() > LONGEST_CACHED || ids.iter().any(|&id| id > u32::from(u16::MAX)) {
            return;
        }
        let entry = &mut self.long[Self::long_place(piece)];
        entry.piece.clear();
        entry.piece.extend_from_slice(piece);
        entry.ids.clear();
        entry.ids.extend(ids.iter().map(|&id| id as u16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tables::key::pack;

    fn piece(i: u32) -> Vec<u8> {
        format!("{i:x}").into_bytes()
    }

    #[test]
    fn short_pieces_come_back_as_they_were_put_or_not_at_all() {
        let mut cache = PieceCache::default();
        let ids = |i: u32| -> Vec<u32> { (0..i % 8 + 1).map(|j| (i + j) & 0xffff).collect() };
        let mut found = 0;
        for (count, again) in [(1000, 1000), (400_000, 100_000)] {
            for i in 0..count {
                let piece = piece(i);
                let key = pack(&piece, 0, piece.len());
                let place = cache.place(key);
                cache.put(key, place, &ids(i));
            }
            for i in count - again..count {
                let piece = piece(i);
                let key = pack(&piece, 0, piece.len());
                let place = cache.place(key);
                if let Some(found_ids) = cache.find(key, place) {
                    assert!(found_ids.get().iter().map(|&id| u32::from(id)).eq(ids(i)), "{i}");
                    found += 1;
                }
            }
        }
        assert!(found > 90_000, "{found} of the last 101,000");
        assert_eq!(cache.short.len(), 2 * SHORT_SETS);
    }

    #[test]
    fn what_does_not_fit_is_not_cached() {
        let mut cache = PieceCache::default();
        let key = pack(b"piece", 0, 5);
        let place = cache.place(key);
        assert!(cache.find(key, place).is_none());
        cache.put(key, place, &[1 << 16]);
        assert!(cache.find(key, place).is_none() && cache.get_many(key, place).is_none());
        // Too many for a short one, or the last of eight looks like their number: kept among the longer ones.
        for ids in [vec![1; SHORT_IDS + 1], vec![9, 9, 9, 9, 9, 9, 9, 7]] {
            cache.put(key, place, &ids);
            assert!(cache.find(key, place).is_none());
            let many = cache.get_many(key, place).expect("kept");
            assert!(many.iter().map(|&id| u32::from(id)).eq(ids));
        }
        let (long, longer) = ([b'-'; LONGEST_CACHED], [b'-'; LONGEST_CACHED + 1]);
        cache.put_long(&long, &[7, 8]);
        cache.put_long(&longer, &[7, 8]);
        assert_eq!(cache.get_long(&long), Some(&[7, 8][..]));
        assert_eq!(cache.get_long(&longer), None);
        cache.put_long(&long[1..], &[1 << 16]);
        assert_eq!(cache.get_long(&long[1..]), None);
    }
}
