//! Pieces to ids: a small cache, then the vocabulary, then the merge loop.
//!
//! Performance notes (30 November 2026): English has a piece every 4.7 bytes; 95 % of pieces are vocabulary entries, and
//! a thousand words are 73 % of them. So most pieces end at one probe of a table that stays in the second-level cache.
//! The cache is direct-mapped and never grows: a long-running process keeps the memory it has after the first text.

use crate::merge::{merge, Scratch};
use crate::pretokenize::pieces;
use crate::vocabulary::{Vocabulary, VocabularyError};
use std::collections::HashMap;

/// Pieces of up to this many bytes are packed into a [`Key`].
const SHORT: usize = 15;
/// Slots of the per-thread cache: 512 KiB.
const CACHE_SLOTS: usize = 1 << 14;
/// Ids that a cache entry holds.
const INLINE: usize = 3;

/// Up to 15 bytes and their number: equal keys are equal pieces.
type Key = u128;

#[inline(always)]
fn pack(piece: &[u8]) -> Key {
    let mut bytes = [0; 16];
    bytes[..piece.len()].copy_from_slice(piece);
    bytes[SHORT] = piece.len() as u8;
    Key::from_le_bytes(bytes)
}

#[inline(always)]
fn hash(key: Key) -> u64 {
    let product = (key as u64 ^ 0x9e37_79b9_7f4a_7c15) as u128 * ((key >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93) as u128;
    (product >> 64) as u64 ^ product as u64
}

/// The vocabulary's entries of up to 15 bytes by their key: open addressing, at most half full.
struct Words {
    slots: Vec<(Key, u32)>,
}

impl Words {
    /// The empty key is no piece's: pieces have at least one byte.
    const EMPTY: Key = 0;

    fn with_capacity(count: usize) -> Self {
        Self { slots: vec![(Self::EMPTY, 0); (2 * count).next_power_of_two().max(2)] }
    }

    fn insert(&mut self, key: Key, id: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(key) as usize & mask;
        while self.slots[slot].0 != Self::EMPTY {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = (key, id);
    }

    #[inline]
    fn get(&self, key: Key, hash: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (found, id) = self.slots[slot];
            if found == key {
                return Some(id);
            }
            if found == Self::EMPTY {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// A vocabulary with the tables for encoding; shared by all threads.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    words: Words,
    long_words: HashMap<Box<[u8]>, u32>,
}

/// What a token's id is stored as: u16 where the vocabulary fits, u32.
pub trait Id: Copy + Default + Send + 'static {
    fn from_u32(id: u32) -> Self;
}

impl Id for u16 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id as u16
    }
}

impl Id for u32 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id
    }
}

/// One thread's memory for encoding: a cache of pieces, and scratch for merging.
pub struct Cache {
    slots: Vec<(Key, [u32; INLINE], u8)>,
    scratch: Scratch,
    merged: Vec<u32>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { slots: vec![(0, [0; INLINE], 0); CACHE_SLOTS], scratch: Scratch::default(), merged: Vec::new() }
    }
}

impl Tokenizer {
    /// The tokenizer of a vocabulary; see [`Vocabulary::parse`] for the arguments and errors.
    ///
    /// # Errors
    /// As [`Vocabulary::parse`].
    pub fn new(vocabulary: &[u8], merges: &[u8], specials: &[(String, u32)]) -> Result<Self, VocabularyError> {
        let vocabulary = Vocabulary::parse(vocabulary, merges, specials)?;
        let mut words = Words::with_capacity(vocabulary.len());
        let mut long_words = HashMap::new();
        let mut scratch = Scratch::default();
        let mut merged = Vec::new();
        for id in 0..vocabulary.len() as u32 {
            let token = vocabulary.token(id).unwrap_or_default();
            if vocabulary.is_special(id) {
                continue;
            }
            // An entry that its own merges do not reach is never the encoding of its text.
            merged.clear();
            merge(token, vocabulary.byte_ids(), vocabulary.merges(), &mut scratch, |id| merged.push(id));
            if merged != [id] {
                continue;
            }
            if token.len() <= SHORT {
                words.insert(pack(token), id);
            } else {
                long_words.insert(token.into(), id);
            }
        }
        Ok(Self { vocabulary, words, long_words })
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Call `out` with the ids of each piece of the text, in order. Special tokens are ordinary text here.
    pub fn encode_pieces(&self, text: &[u8], cache: &mut Cache, mut out: impl FnMut(&[u32])) {
        for piece in pieces(text) {
            self.encode_piece(piece, cache, &mut out);
        }
    }

    /// Call `out` with the ids of bytes that are one piece, whatever the split pattern would make of them.
    pub fn encode_one_piece(&self, piece: &[u8], cache: &mut Cache, mut out: impl FnMut(&[u32])) {
        if !piece.is_empty() {
            self.encode_piece(piece, cache, &mut out);
        }
    }

    #[inline(always)]
    fn encode_piece(&self, piece: &[u8], cache: &mut Cache, out: &mut impl FnMut(&[u32])) {
        if piece.len() > SHORT {
            if let Some(&id) = self.long_words.get(piece) {
                return out(&[id]);
            }
            let Cache { scratch, merged, .. } = cache;
            merged.clear();
            merge(piece, self.vocabulary.byte_ids(), self.vocabulary.merges(), scratch, |id| merged.push(id));
            return out(merged);
        }
        let key = pack(piece);
        let hash = hash(key);
        let at = (hash >> 32) as usize & (CACHE_SLOTS - 1);
        let (found, ids, count) = cache.slots[at];
        if found == key {
            return out(&ids[..count as usize]);
        }
        if let Some(id) = self.words.get(key, hash) {
            cache.slots[at] = (key, [id, 0, 0], 1);
            return out(&[id]);
        }
        self.encode_unknown(piece, key, at, cache, out);
    }

    #[inline(never)]
    fn encode_unknown(&self, piece: &[u8], key: Key, at: usize, cache: &mut Cache, out: &mut impl FnMut(&[u32])) {
        let Cache { slots, scratch, merged } = cache;
        merged.clear();
        merge(piece, self.vocabulary.byte_ids(), self.vocabulary.merges(), scratch, |id| merged.push(id));
        if merged.len() <= INLINE {
            let mut ids = [0; INLINE];
            ids[..merged.len()].copy_from_slice(merged);
            slots[at] = (key, ids, merged.len() as u8);
        }
        out(merged);
    }

    /// Append the ids of the text to `out`. Special tokens are ordinary text here.
    pub fn encode<I: Id>(&self, text: &[u8], cache: &mut Cache, out: &mut Vec<I>) {
        self.encode_pieces(text, cache, |ids| out.extend(ids.iter().map(|&id| I::from_u32(id))));
    }

    /// The number of ids of the text.
    pub fn count(&self, text: &[u8], cache: &mut Cache) -> usize {
        let mut count = 0;
        self.encode_pieces(text, cache, |ids| count += ids.len());
        count
    }

    /// The id of a token by its bytes, special or not.
    pub fn id_of(&self, token: &[u8]) -> Option<u32> {
        let special = self.vocabulary.specials().iter().find(|(text, _)| text.as_bytes() == token);
        special.map(|&(_, id)| id).or_else(|| {
            if token.is_empty() {
                None
            } else if token.len() <= SHORT {
                let key = pack(token);
                self.words.get(key, hash(key))
            } else {
                self.long_words.get(token).copied()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    fn tokenizer() -> Tokenizer {
        let json = vocabulary_json(&["ab", "abc", "bc", "Ġa", "zz"]);
        Tokenizer::new(json.as_bytes(), "b c\na b\nab c\nĠ a\n".as_bytes(), &[]).expect("a good vocabulary")
    }

    fn encode(text: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        tokenizer().encode(text, &mut Cache::default(), &mut out);
        out
    }

    #[test]
    fn merges_go_by_rank() {
        assert_eq!(encode(b"abc"), [97, 258]); // `b c` comes before `a b`, so `abc` is never reached
        assert_eq!(encode(b"ab abab a"), [256, 32, 256, 256, 259]); // `a b` comes before `Ġ a`
        assert_eq!(encode(b"zz"), [122, 122]); // in the vocabulary, but no merge makes it
        assert_eq!(encode(b""), [0u32; 0]);
        assert_eq!(encode(&[255, 0]), [255, 0]);
    }

    #[test]
    fn long_pieces_take_the_heap_and_agree_with_short_ones() {
        for length in [1, 2, 15, 16, 47, 48, 49, 50, 1000] {
            let text: Vec<u8> = b"abcbcaab".iter().copied().cycle().take(length).collect();
            let long = encode(&text);
            // Merge by hand, the slow way: every round merges the leftmost pair of the lowest rank.
            let tokenizer = tokenizer();
            let merges = tokenizer.vocabulary().merges();
            let mut ids: Vec<u32> = text.iter().map(|&byte| u32::from(byte)).collect();
            while let Some((_, at)) = (1..ids.len())
                .map(|i| (merges.get(ids[i - 1], ids[i]).rank, i))
                .min()
                .filter(|&(rank, _)| rank < u32::MAX)
            {
                ids[at - 1] = merges.get(ids[at - 1], ids[at]).id;
                ids.remove(at);
            }
            assert_eq!(long, ids, "{length}");
        }
    }

    #[test]
    fn ids_by_bytes() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.id_of(b" a"), Some(259));
        assert_eq!(tokenizer.id_of(b"a"), Some(97));
        assert_eq!(tokenizer.id_of(b""), None);
        assert_eq!(tokenizer.id_of(b"nothing like this"), None);
    }
}
