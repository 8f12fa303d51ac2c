//! Pieces to ids: the vocabulary, then a small cache, then the merge loop.
//!
//! Performance notes (30 November 2026), one thread of a two-core AVX-512 machine that had other work too, so that only
//! large differences mean something:
//! - English has a piece every 4.7 bytes; 95 % of pieces are vocabulary entries (77 % in code, 60 % in ten languages). So
//!   most pieces end at the first probe of the table of words.
//! - A loop over characters with a small cache before the table made about 90 MB/s of English seen before. The masks of
//!   `scan.rs`, keys read as 16 bytes and slots fetched a batch ahead, together: about 400.
//! - Kept without a measured gain, because it is as short: comparing two entries of a table line before the one branch.
//! - Ids of 16 bits in the cache, so that pieces of many tokens fit too (160 to 250 of ten languages, where Hindi and
//!   Thai words were merged anew each time), and all 16 stored at once, from a copy: the compiler then moves vectors,
//!   which is 10 % of English, code and ten languages alike.
//! - Thrown away: a pass of its own for the lookups that fetches the cache's sets for those that miss (no gain seen).
//! - Short texts skip the batches: filling their arrays takes longer than looking up three pieces.

use crate::classify::{Level, Portable};
use crate::from_merges::from_merges;
use crate::merge::{merge, Scratch};
pub use crate::output::{Few, Id, Output};
use crate::pretokenize::piece_end;
use crate::scan::Scanner;
use crate::vocabulary::{Vocabulary, VocabularyError};
use crate::words::{hash, pack, Cache as Pieces, Key, Words, INLINE, MEDIUM, SHORT};

/// Pieces that are looked up together: their table slots are fetched ahead, and fit the first-level cache.
const BATCH: usize = 128;
/// Borders that a batch has at most: the blocks are taken whole.
const ROOM: usize = BATCH + 2 * crate::classify::BLOCK;

/// Texts of up to this many bytes are encoded piece by piece.
pub const SMALL: usize = Few::MOST;

/// A vocabulary with the tables for encoding; shared by all threads.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    words: Words,
}

/// One thread's memory for encoding: a cache of pieces, and scratch for merging.
#[derive(Default)]
pub struct Cache {
    pieces: Pieces,
    scratch: Scratch,
    merged: Vec<u32>,
    batch: Option<Box<Batch>>,
}

/// The pieces that are looked up together. Kept from text to text: clearing it takes longer than encoding a short line.
struct Batch {
    /// The first border is left from the batch before, the others are those of a few blocks.
    borders: [usize; ROOM],
    keys: [(Key, u64); ROOM],
}

impl Default for Batch {
    fn default() -> Self {
        Self { borders: [0; ROOM], keys: [(0, 0); ROOM] }
    }
}

impl Tokenizer {
    /// The tokenizer of a vocabulary; see [`Vocabulary::parse`] for the arguments and errors.
    ///
    /// # Errors
    /// As [`Vocabulary::parse`].
    pub fn new(vocabulary: &[u8], merges: &[u8], specials: &[(String, u32)]) -> Result<Self, VocabularyError> {
        let vocabulary = Vocabulary::parse(vocabulary, merges, specials)?;
        Ok(Self { words: vocabulary.words(), vocabulary })
    }

    /// The tokenizer of a vocabulary whose ids follow from its merges; see [`from_merges`].
    ///
    /// The caller vouches that every token is the encoding of its own bytes, which is most of the time that
    /// [`Tokenizer::new`] takes; for GPT-2's list a test proves it.
    ///
    /// # Errors
    /// As [`from_merges`].
    pub fn from_merges(merges: &[u8], special: &str) -> Result<Self, VocabularyError> {
        let (vocabulary, words) = from_merges(merges, special)?;
        Ok(Self { vocabulary, words })
    }

    /// The tokens that are not the encoding of their own bytes, special ones left out.
    pub fn unreachable_tokens(&self) -> Vec<u32> {
        self.vocabulary.unreachable()
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Append the ids of the text to `out`, or count them. Special tokens are ordinary text here.
    #[inline]
    pub fn encode<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        if text.len() <= SMALL {
            return self.encode_small(text, cache, out);
        }
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: each level is there where it is used.
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("bmi2") {
                unsafe { self.encode_avx512(text, cache, out) }
            } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
                unsafe { self.encode_avx2(text, cache, out) }
            } else {
                unsafe { self.encode_with::<crate::classify::x86::Sse2, O>(text, cache, out) }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: any processor will do.
        unsafe {
            self.encode_with::<Portable, O>(text, cache, out)
        }
    }

    /// The same without the arrays that long texts need, which take longer to clear than a short text to encode.
    fn encode_small<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        let mut start = 0;
        while start < text.len() {
            let end = piece_end(text, start);
            self.encode_piece(text, start, end, cache, out);
            start = end;
        }
    }

    /// Encode pieces for as long as they are words, which needs no cache: where the first one begins that is none.
    #[inline]
    pub fn encode_words<O: Output>(&self, text: &[u8], out: &mut O) -> usize {
        let mut start = 0;
        while start < text.len() {
            let end = piece_end(text, start);
            if end - start > SHORT {
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
        if end - start > SHORT {
            return self.encode_long(text, start, end, cache, out);
        }
        let key = pack(text, start, end);
        let hash = hash(key);
        if let Some(id) = self.words.get(key, hash) {
            out.extend([id]);
        } else if let Some((tokens, count)) = cache.pieces.get(key, hash) {
            out.extend(tokens[..count].iter().map(|&id| u32::from(id)));
        } else {
            out.extend(self.merge_piece(&text[start..end], key, hash, cache).iter().copied());
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn encode_avx512<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        // SAFETY: passed on.
        unsafe { self.encode_with::<crate::classify::x86::Avx512, O>(text, cache, out) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn encode_avx2<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        // SAFETY: passed on.
        unsafe { self.encode_with::<crate::classify::x86::Avx2, O>(text, cache, out) }
    }

    /// As [`Tokenizer::encode`], without vector instructions: what the others are tested against.
    pub fn encode_portable<O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        // SAFETY: any processor will do.
        unsafe { self.encode_with::<Portable, O>(text, cache, out) }
    }

    #[inline(always)]
    unsafe fn encode_with<L: Level, O: Output>(&self, text: &[u8], cache: &mut Cache, out: &mut O) {
        // SAFETY: passed on.
        let mut scanner = unsafe { Scanner::new::<L>(text) };
        let mut batch = cache.batch.take().unwrap_or_default();
        let Batch { borders, keys } = &mut *batch;
        let mut count = 0;
        loop {
            // SAFETY: passed on.
            match unsafe { scanner.next_block::<L>() } {
                Some((at, mut starts)) => {
                    while starts != 0 {
                        borders[count] = at + starts.trailing_zeros() as usize;
                        starts &= starts - 1;
                        count += 1;
                    }
                    if count < BATCH {
                        continue;
                    }
                    self.encode_batch(text, &borders[..count], keys, cache, out);
                    borders[0] = borders[count - 1];
                    count = 1;
                }
                None => {
                    borders[count] = text.len();
                    self.encode_batch(text, &borders[..=count], keys, cache, out);
                    break;
                }
            }
        }
        cache.batch = Some(batch);
    }

    /// Encode the pieces between each two borders.
    #[inline(always)]
    fn encode_batch<O: Output>(
        &self,
        text: &[u8],
        borders: &[usize],
        keys: &mut [(Key, u64); ROOM],
        cache: &mut Cache,
        out: &mut O,
    ) {
        for (slot, pair) in keys.iter_mut().zip(borders.windows(2)) {
            if pair[1] - pair[0] <= SHORT {
                let key = pack(text, pair[0], pair[1]);
                let hash = hash(key);
                self.words.prefetch(hash);
                *slot = (key, hash);
            }
        }
        // A piece has at most as many tokens as bytes; for the few that are long, room is made when they come.
        let room = SHORT * borders.len() + INLINE;
        out.reserve(room);
        let mut end = out.end();
        let mut put = 0;
        for (&(key, hash), pair) in keys.iter().zip(borders.windows(2)) {
            if pair[1] - pair[0] <= SHORT {
                if let Some(id) = self.words.get(key, hash) {
                    // SAFETY: at most 15 ids for each piece of this batch.
                    unsafe { O::put(end.add(put), id) };
                    put += 1;
                    continue;
                }
                if let Some((tokens, count)) = cache.pieces.get(key, hash) {
                    // However many there are: of what is put beyond `count` the next ones are put on top.
                    // From a copy, which cannot overlap with the output, so that vectors are moved.
                    for (i, id) in (*tokens).into_iter().enumerate() {
                        // SAFETY: as above; room for so many was added at the end.
                        unsafe { O::put(end.add(put + i), u32::from(id)) };
                    }
                    put += count;
                    continue;
                }
                for &id in self.merge_piece(&text[pair[0]..pair[1]], key, hash, cache) {
                    // SAFETY: as above.
                    unsafe { O::put(end.add(put), id) };
                    put += 1;
                }
            } else {
                // SAFETY: so many were put.
                unsafe { out.advance(put) };
                self.encode_long(text, pair[0], pair[1], cache, out);
                out.reserve(room);
                end = out.end();
                put = 0;
            }
        }
        // SAFETY: so many were put.
        unsafe { out.advance(put) };
    }

    /// The tokens of a piece that is neither in the vocabulary nor in the cache, where it is put.
    #[inline(never)]
    fn merge_piece<'a>(&self, piece: &[u8], key: Key, hash: u64, cache: &'a mut Cache) -> &'a [u32] {
        cache.merged.clear();
        merge(piece, self.vocabulary.merges(), &mut cache.scratch, &mut cache.merged);
        cache.pieces.put(key, hash, &cache.merged);
        &cache.merged
    }

    /// Append the ids of a piece of more than 15 bytes.
    #[inline(never)]
    fn encode_long<O: Output>(&self, text: &[u8], start: usize, end: usize, cache: &mut Cache, out: &mut O) {
        let piece = &text[start..end];
        if piece.len() > MEDIUM {
            if let Some(id) = self.words.get_long(piece) {
                return out.extend([id]);
            }
            cache.merged.clear();
            merge(piece, self.vocabulary.merges(), &mut cache.scratch, &mut cache.merged);
            out.extend(cache.merged.iter().copied());
            // A piece of a gigabyte must not hold its memory for ever.
            if cache.merged.capacity() > 1 << 18 {
                cache.merged = Vec::new();
            }
            return;
        }
        let (key, hash) = Pieces::pack_medium(text, start, end);
        if let Some(tokens) = cache.pieces.get_medium(&key, hash) {
            return out.extend(tokens.iter().map(|&id| u32::from(id)));
        }
        cache.merged.clear();
        match self.words.get_long(piece) {
            Some(id) => cache.merged.push(id),
            None => merge(piece, self.vocabulary.merges(), &mut cache.scratch, &mut cache.merged),
        }
        cache.pieces.put_medium(&key, hash, &cache.merged);
        out.extend(cache.merged.iter().copied());
    }

    /// The ids of bytes that are one piece, whatever the split pattern would make of them.
    pub fn encode_one_piece(&self, piece: &[u8], cache: &mut Cache) -> Vec<u32> {
        let mut ids = Vec::new();
        if !piece.is_empty() {
            self.encode_piece(piece, 0, piece.len(), cache, &mut ids);
        }
        ids
    }

    /// The number of ids of the text.
    pub fn count(&self, text: &[u8], cache: &mut Cache) -> usize {
        let mut count = 0usize;
        self.encode(text, cache, &mut count);
        count
    }

    /// The id of a token by its bytes, special or not.
    pub fn id_of(&self, token: &[u8]) -> Option<u32> {
        let special = self.vocabulary.specials().iter().find(|(text, _)| text.as_bytes() == token);
        if let Some(&(_, id)) = special {
            return Some(id);
        }
        // Tokens that no merge reaches are not among the words.
        let found = self.words.find(token, 0, token.len());
        found.or_else(|| (0..self.vocabulary.len() as u32).find(|&id| self.vocabulary.token(id) == Some(token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merges::Merges;
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
        assert_eq!(tokenizer().unreachable_tokens(), [257, 260]);
    }

    /// Merge by hand, the slow way: every round merges the leftmost pair of the lowest rank.
    fn by_hand(tokenizer: &Tokenizer, piece: &[u8]) -> Vec<u32> {
        let merges = tokenizer.vocabulary().merges();
        let mut ids: Vec<u32> = piece.iter().map(|&byte| merges.byte_id(byte)).collect();
        while let Some((rank, at)) =
            (1..ids.len()).map(|i| (merges.rank(ids[i - 1], ids[i]), i)).min().filter(|&(rank, _)| rank < Merges::NONE)
        {
            ids[at - 1] = merges.product(rank);
            ids.remove(at);
        }
        ids
    }

    #[test]
    fn pieces_of_every_length_agree_with_the_slow_way() {
        for length in (1..140).chain([255, 256, 257, 258, 300, 511, 512, 513, 1000]) {
            for unit in [&b"abcbcaab"[..], b"a", b"ab", b"zzab", b"bca"] {
                let text: Vec<u8> = unit.iter().copied().cycle().take(length).collect();
                assert_eq!(encode(&text), by_hand(&tokenizer(), &text), "{length}");
            }
        }
    }

    #[test]
    fn gpt2_follows_from_its_merges() {
        let json = include_bytes!("../../gpt2fast/data/gpt2/vocab.json");
        let merges = include_bytes!("../../gpt2fast/data/gpt2/merges.txt");
        let short = Tokenizer::from_merges(merges, "<|endoftext|>").expect("good");
        let specials = [("<|endoftext|>".to_owned(), 50256)];
        let full = Tokenizer::new(json, merges, &specials).expect("good");
        assert_eq!(short.vocabulary().len(), 50257);
        assert_eq!(short.vocabulary().specials(), full.vocabulary().specials());
        for id in 0..50257 {
            assert_eq!(short.vocabulary().token(id), full.vocabulary().token(id));
        }
        assert!(short.unreachable_tokens().is_empty());
    }

    #[test]
    fn every_level_counts_and_encodes_the_same() {
        let text =
            "Hello  wörld's 12\n\n\u{3000}漢字, isn't it?  ab\u{a0}a abcabc   verylongwordwithoutanyspaces ".repeat(40);
        let tokenizer = tokenizer();
        let (mut a, mut b, mut c) = (Vec::<u32>::new(), Vec::<u16>::new(), Vec::<u32>::new());
        tokenizer.encode(text.as_bytes(), &mut Cache::default(), &mut a);
        tokenizer.encode(text.as_bytes(), &mut Cache::default(), &mut b);
        tokenizer.encode_portable(text.as_bytes(), &mut Cache::default(), &mut c);
        assert_eq!(a, c);
        assert!(a.iter().copied().eq(b.iter().map(|&id| u32::from(id))));
        assert_eq!(tokenizer.count(text.as_bytes(), &mut Cache::default()), a.len());
    }

    #[test]
    fn ids_by_bytes() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.id_of(b" a"), Some(259));
        assert_eq!(tokenizer.id_of(b"a"), Some(97));
        assert_eq!(tokenizer.id_of(b"zz"), Some(260));
        assert_eq!(tokenizer.id_of(b""), None);
        assert_eq!(tokenizer.id_of(b"nothing like this"), None);
    }
}
