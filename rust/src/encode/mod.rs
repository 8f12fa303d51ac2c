//! Pieces to ids: a cache of pieces, then the vocabulary, then the merge loop.
//!
//! Performance notes (30 November 2026), one thread of a two-core AVX-512 machine that had other work too: least time of
//! several rounds, old and new by turns. MB/s of English, code and ten languages, seen before, into an array:
//! - English has a piece every 4.2 bytes here. 88 % of pieces are vocabulary entries (75 % in code, 18 % in ten
//!   languages), nearly all others have at most eight ids, and a thousand pieces are 78 % of a text.
//! - Looked up in the vocabulary's table first and in the cache of other pieces then: 257, 275, 266. The same text of
//!   20 kB again and again: 545. So it was not the instructions, but branches that nobody can predict, and memory.
//! - One cache for words and others, with up to eight ids stored at once whatever their number, the cursor moved by it:
//!   350, 408, 303. A hit is one line of memory and one branch that is nearly always taken.
//! - Pieces that lost their place kept in the line beside, which is looked at before merging: 385 of English.
//! - Which of a line's two entries it is, chosen without a branch (`select_unpredictable`): 530, 467, 260. Comparing
//!   both and asking for either was compiled to two branches; comparing the one that was chosen again is not.
//! - Longer pieces looked for in their cache before the vocabulary, and keys of 48 bytes compared without a call: 537,
//!   511, 317.
//! - A hash of one multiplication, places that need no shift: 603, 573, 321.
//! - Pieces of more than 47 bytes cached (rulers of dashes; sentences in scripts without spaces): 656, 592, 399.
//! - The last pieces of a text read by a shift, not by a call; a place of its own for each of 2^17 entries: 725, 622, 417.
//! - Short lines, 110 bytes each: 150 at first, 235 by the above; 262 with texts borrowed from a tuple and the last block
//!   loaded by a mask; 290 with the texts to come fetched ahead; 325 with the last pieces read by a shift.
//! - Kept for 1 to 2 %: places of borders by VBMI2 (`classify.rs`), 64 pieces in a batch (32: -2 %, 128 and 256: -1 to
//!   -5 %). Without fetching ahead: -20 %.
//! - Thrown away: half the cache's memory (-18 % of English, 10 % of which was merging again); lists made from ids of 16
//!   bits (no gain: a reference count for each is what takes the time, 1.4 ns); the pieces of several short texts in one
//!   batch (+5 % of short lines, -10 % of long texts).
//! - A call for `hello world` from Python: 128 ns by keys made of two loads instead of a copy (142 before), 118 with the
//!   test for a str inlined.
//! - Texts of up to 16 bytes skip the batches: filling their arrays takes longer than looking up three pieces.
//! - 5 MB that are in the first-level cache, again and again, came no faster than 820 MB/s: instructions. Places in the
//!   cache not checked again, keys loaded by a mask (AVX-512), compared by vectors, and the number of ids beside them:
//!   900 to 1,020, and 690 to 800 for the whole text. Which of two entries it is must not become a branch: 520 then.
//!
//! Text not seen before, ms for 5 MB of English and code, bytes from Python, a new vocabulary each time:
//! - 33,000 and 23,000 pieces are new; each was looked up and merged when its turn was: 20, 16.
//! - Room left for their ids, and sixteen of them looked up together (`deferred.rs`): 17.5, 15.7. A cache that grows by 4
//!   instead of 8: 16, 14. Pieces that have more than eight ids marked in it, so that others are not looked for there,
//!   and the above: 14.8, 13.2. Of that half is what the text seen before takes, a quarter is merging.
//! - Thrown away, as nothing was gained: four of them merged side by side (in a loop of its own a fifth less, here 0 to
//!   2 %), the minimum of 16-bit ranks by one instruction, the lists of merges in large pages, 8 or 32 deferred.

pub mod added;
pub mod cache;
pub mod caches;
pub mod decoder;
pub mod deferred;
pub mod output;

use crate::encode::added::Added;
use crate::encode::cache::{PieceCache, Place, MEDIUM_PIECE, SHORT_IDS};
use crate::encode::deferred::Deferred;
pub use crate::encode::output::{Few, Id, Output};
use crate::merge::{merge, Scratch};
use crate::pretokenize::classify::Level;
use crate::pretokenize::piece_end;
use crate::pretokenize::scan::Scanner;
use crate::simd::{level, CpuLevel, Portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::vocabulary::gpt2::gpt2;
use crate::vocabulary::{Vocabulary, VocabularyError};
use std::sync::Arc;
use tables::key::{hash, pack, random_seed, Key, SHORT_PIECE};
use tables::words::Words;

/// Pieces that are looked up together: their places in the cache are fetched ahead, and fit the first-level one.
const BATCH: usize = 64;
/// Borders that a batch has at most: the blocks are taken whole.
const ROOM: usize = BATCH + 2 * crate::pretokenize::classify::BLOCK;

/// Texts of up to this many bytes are encoded piece by piece.
pub const TINY_TEXT: usize = 16;
/// Texts of up to this many bytes fit [`Few`].
pub const SMALL_TEXT: usize = 64;

/// A vocabulary with the tables for encoding, shared by all threads and clones, and the added tokens that are found.
#[derive(Clone)]
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    words: Arc<Words>,
    added: Added,
}

/// One thread's memory for encoding: a cache of pieces, and scratch for conversion and merging.
#[derive(Default)]
pub struct Cache {
    /// For [`crate::text::characters`].
    pub(crate) utf8: Vec<u8>,
    pieces: PieceCache,
    scratch: Scratch,
    merged: Vec<u32>,
    batch: Option<Box<Lookups>>,
    deferred: Deferred,
}

/// The pieces that are looked up together. Kept from text to text: clearing it takes longer than encoding a short line.
struct Lookups {
    /// Where they begin and end; room for the places of a whole block more, however many are set.
    borders: [usize; ROOM],
    slots: [(Key, Place); ROOM],
}

impl Default for Lookups {
    fn default() -> Self {
        Self { borders: [0; ROOM], slots: [(0, Place::default()); ROOM] }
    }
}

impl Tokenizer {
    /// The tokenizer of a vocabulary, which finds no added tokens; see [`Vocabulary::parse`] for arguments and errors.
    ///
    /// # Errors
    /// As [`Vocabulary::parse`].
    pub fn new(vocabulary: &[u8], merges: &[u8], added: &[(String, u32)]) -> Result<Self, VocabularyError> {
        let vocabulary = Vocabulary::parse(vocabulary, merges, added)?;
        let words = vocabulary.words(random_seed());
        Ok(Self { words: words.into(), vocabulary: vocabulary.into(), added: Added::default() })
    }

    /// GPT-2's, of tables that are part of the program.
    pub fn gpt2() -> Self {
        let (vocabulary, words) = gpt2();
        Self { vocabulary: vocabulary.into(), words: words.into(), added: Added::default() }
    }

    /// The same tokenizer, sharing its tables, which finds these added tokens and no others.
    #[must_use]
    pub fn finding(&self, added: Added) -> Self {
        Self { added, ..self.clone() }
    }

    /// The added tokens that are found.
    #[inline(always)]
    pub fn added(&self) -> &Added {
        &self.added
    }

    /// The tokens that are not the encoding of their own bytes, added ones left out.
    pub fn unreachable_tokens(&self) -> Vec<u32> {
        self.vocabulary.unreachable()
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Append the ids of the text to `out`, or count them.
    #[inline]
    pub fn encode<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        if self.added.is_empty() {
            self.encode_plain(text, cache, out);
        } else {
            self.added.encode(text, self, cache, out);
        }
    }

    /// The same, where added tokens are ordinary text.
    #[inline]
    pub fn encode_plain<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        if text.len() <= TINY_TEXT {
            return self.encode_tiny(text, cache, out);
        }
        self.encode_at(level(), text, cache, out);
    }

    /// As [`Tokenizer::encode_plain`], by the instructions of one level.
    #[inline]
    pub fn encode_at<O: Output>(&self, level: CpuLevel, text: &[u8], cache: &mut Cache, out: &mut O) {
        match level {
            CpuLevel::Portable(level) => self.encode_with(level, text, cache, out),
            #[cfg(target_arch = "x86_64")]
            CpuLevel::Sse2(level) => self.encode_with(level, text, cache, out),
            // SAFETY: a level that is there.
            #[cfg(target_arch = "x86_64")]
            CpuLevel::Avx2(level) => unsafe { self.encode_avx2(level, text, cache, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            CpuLevel::Avx512(level) => unsafe { self.encode_avx512(level, text, cache, out) },
        }
    }

    /// The same, piece by piece.
    fn encode_tiny<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        let mut start = 0;
        while start < text.len() {
            let end = piece_end(text, start);
            self.encode_piece(text, start, end, cache, out);
            start = end;
        }
        if !cache.deferred.is_empty() {
            self.fill_deferred(cache, out);
        }
    }

    /// Encode the pieces before the first that is no word, which takes no cache. Returns where that piece begins.
    #[inline]
    pub fn encode_words<O: Output>(&self, text: &[u8], out: &mut O) -> usize {
        let mut start = 0;
        while start < text.len() {
            let end = piece_end(text, start);
            if end - start > SHORT_PIECE {
                break;
            }
            let key = pack(text, start, end);
            let Some(id) = self.words.get(key, hash(key)) else { break };
            out.extend([id]);
            start = end;
        }
        start
    }

    #[inline]
    fn encode_piece<O: Output>(&self, text: &[u8], start: usize, end: usize, cache: &mut Cache, out: &mut O) {
        let slot = Self::slot(Portable, text, start, end, &cache.pieces);
        self.look_up(Portable, text, &[slot], cache, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn encode_avx512<O: Output>(&self, level: Avx512, text: &[u8], cache: &mut Cache, out: &mut O) {
        self.encode_with(level, text, cache, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn encode_avx2<O: Output>(&self, level: Avx2, text: &[u8], cache: &mut Cache, out: &mut O) {
        self.encode_with(level, text, cache, out);
    }

    #[inline(always)]
    fn encode_with<L: Level, O: Output>(&self, level: L, text: &[u8], cache: &mut Cache, out: &mut O) {
        let mut scanner = Scanner::new(level, text);
        let mut batch = cache.batch.take().unwrap_or_default();
        let Lookups { borders, slots } = &mut *batch;
        let mut count = 0;
        while let Some((at, starts)) = scanner.next_block() {
            if let Some(places) = borders[count..].first_chunk_mut() {
                level.places(starts, at, places);
            }
            count += starts.count_ones() as usize;
            if count > BATCH {
                self.encode_batch(level, text, &borders[..count], slots, cache, out);
                borders[0] = borders[count - 1];
                count = 1;
            }
        }
        borders[count] = text.len();
        self.encode_batch(level, text, &borders[..=count], slots, cache, out);
        cache.batch = Some(batch);
        if !cache.deferred.is_empty() {
            self.fill_deferred(cache, out);
        }
    }

    /// A piece by its key where it is short, else by where it is: a key of which the length says 0.
    #[inline(always)]
    fn slot<L: Level>(level: L, text: &[u8], start: usize, end: usize, pieces: &PieceCache) -> (Key, Place) {
        let short = end - start <= SHORT_PIECE;
        let key = if short { level.pack(text, start, end) } else { start as Key | (end as Key) << 60 };
        (key, pieces.place(key))
    }

    /// Encode the pieces between each two borders.
    #[inline(always)]
    fn encode_batch<L: Level, O: Output>(
        &self,
        level: L,
        text: &[u8],
        borders: &[usize],
        slots: &mut [(Key, Place); ROOM],
        cache: &mut Cache,
        out: &mut O,
    ) {
        for (slot, pair) in slots.iter_mut().zip(borders.windows(2)) {
            *slot = Self::slot(level, text, pair[0], pair[1], &cache.pieces);
        }
        self.look_up(level, text, &slots[..borders.len() - 1], cache, out);
    }

    /// Encode pieces whose places are being fetched.
    #[inline(always)]
    fn look_up<L: Level, O: Output>(
        &self,
        level: L,
        text: &[u8],
        slots: &[(Key, Place)],
        cache: &mut Cache,
        out: &mut O,
    ) {
        out.reserve(SHORT_IDS * slots.len());
        let mut end = out.end();
        let mut put = 0;
        let mut slots = slots.iter();
        while let Some(&(ref key, place)) = slots.next() {
            if let Some(ids) = cache.pieces.get_with(level, key, place) {
                // SAFETY: room for eight ids was made for each piece from here on. What is put beyond `count` the next
                // ones are put on top of.
                unsafe { O::put_eight(end.add(put), ids.all()) };
                put += ids.count();
                continue;
            }
            // SAFETY: so many were put.
            unsafe { out.advance(put) };
            self.encode_other(text, *key, place, cache, out);
            out.reserve(SHORT_IDS * slots.len());
            (end, put) = (out.end(), 0);
        }
        // SAFETY: so many were put.
        unsafe { out.advance(put) };
    }

    /// A piece that is not among the cached short ones: append its ids, or leave room for them.
    #[inline(never)]
    fn encode_other<O: Output>(&self, text: &[u8], key: Key, place: Place, cache: &mut Cache, out: &mut O) {
        if key >> 120 == 0 {
            return self.encode_long(text, key as usize & ((1 << 60) - 1), (key >> 60) as usize, cache, out);
        }
        if let Some(ids) = cache.pieces.get_many(key, place) {
            return out.extend(ids.iter().map(|&id| u32::from(id)));
        }
        let hash = hash(key);
        self.words.prefetch(hash);
        cache.pieces.prefetch_beside(place);
        if cache.deferred.leave(key, hash, out) {
            self.fill_deferred(cache, out);
        }
    }

    /// Find the ids of the pieces for which room was left.
    #[inline(never)]
    fn fill_deferred<O: Output>(&self, cache: &mut Cache, out: &mut O) {
        let Cache { pieces, deferred, scratch, merged, .. } = cache;
        for piece in deferred.all() {
            let key = piece.key;
            let place = pieces.place(key);
            // It may have come twice, or have been forgotten only half.
            if let Some(ids) = pieces.find(key, place) {
                piece.fill(ids.get().iter().map(|&id| u32::from(id)));
                continue;
            }
            merged.clear();
            if let Some(id) = self.words.get(key, piece.hash) {
                merged.push(id);
            } else {
                let bytes = key.to_le_bytes();
                merge(&bytes[..usize::from(bytes[SHORT_PIECE])], self.vocabulary.merges(), scratch, merged);
            }
            piece.fill(merged.iter().copied());
            pieces.put(key, place, merged);
        }
        deferred.close(out);
    }

    /// Append the ids of a piece of more than 15 bytes.
    fn encode_long<O: Output>(&self, text: &[u8], start: usize, end: usize, cache: &mut Cache, out: &mut O) {
        let Cache { pieces, scratch, merged, .. } = cache;
        let piece = &text[start..end];
        let key = (piece.len() <= MEDIUM_PIECE).then(|| PieceCache::pack_medium(text, start, end));
        let known = match &key {
            Some((key, hash)) => pieces.get_medium(key, *hash),
            None => pieces.get_long(piece),
        };
        if let Some(ids) = known {
            return out.extend(ids.iter().map(|&id| u32::from(id)));
        }
        merged.clear();
        match self.words.get_long(piece) {
            Some(id) => merged.push(id),
            None => merge(piece, self.vocabulary.merges(), scratch, merged),
        }
        match &key {
            Some((key, hash)) => {
                pieces.put_medium(key, *hash, merged);
            }
            None => pieces.put_long(piece, merged),
        }
        out.extend(merged.iter().copied());
        // A piece of a gigabyte must not hold its memory for ever.
        if merged.capacity() > 1 << 18 {
            *merged = Vec::new();
        }
    }

    /// The ids of bytes that are one piece, whatever the split pattern would make of them.
    pub fn encode_one_piece(&self, piece: &[u8], cache: &mut Cache) -> Vec<u32> {
        let mut ids = Vec::new();
        if !piece.is_empty() {
            self.encode_piece(piece, 0, piece.len(), cache, &mut ids);
            self.fill_deferred(cache, &mut ids);
        }
        ids
    }

    /// The number of ids of the text.
    pub fn count(&self, text: &[u8], cache: &mut Cache) -> usize {
        let mut count = 0usize;
        self.encode(text, cache, &mut count);
        count
    }

    /// The id of a token by its bytes, added or not.
    pub fn id_of(&self, token: &[u8]) -> Option<u32> {
        let added = self.vocabulary.added().iter().find(|(text, _)| text.as_bytes() == token);
        if let Some(&(_, id)) = added {
            return Some(id);
        }
        // Tokens that no merge reaches are not among the words.
        let found = self.words.find(token);
        found.or_else(|| (0..self.vocabulary.len() as u32).find(|&id| self.vocabulary.token(id) == Some(token)))
    }
}

#[cfg(test)]
mod tests;
