//! The vocabulary by the bytes of its tokens.
//!
//! Pieces of up to 15 bytes are packed with their length into 128 bits, so that comparing is one comparison. The tables
//! are never written to after loading, or are part of the program (`gpt2.rs`), and serve all threads.
//!
//! Performance notes (30 November 2026): open addressing, two entries of 32 bytes in a line, half full, was 4 MiB in large
//! pages, which had to be filled at the start of every process: 6 ms with all that goes into it. This table is 0.9 MB of
//! the program. Text not seen before, 5 MB of English and code, MB/s, one thread, the caches of the processor emptied
//! before: the same; large pages for it: no difference that could be measured.

use std::borrow::Cow;
use std::cmp::Reverse;
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

/// Tokens of up to this many bytes, all but a hundredth, are in the table of [`Words`]; an entry is a key with the id in
/// the bits that such keys leave free.
const INSIDE: usize = 13;
/// Those bits.
const ID: u128 = 0xf0_ffff << 104;

/// The tokens that are the encoding of their own bytes, by these; never changed.
///
/// A table without collisions: the uppermost bits of a word's hash choose one of the pilots, and that was chosen so that
/// the words which share it have entries of their own. So a look-up reads one line of a table that has hardly more
/// entries than there are words, and has one branch, on whether the word is there.
#[derive(PartialEq)]
pub struct Words {
    pub(crate) pilots: Cow<'static, [u8]>,
    pub(crate) entries: Cow<'static, [u128]>,
    pub(crate) others: Others,
}

impl Words {
    /// The words of tokens, each of them once: their bytes, of which there are some, and their ids.
    pub fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let (short, mut others): (Vec<_>, Vec<_>) = tokens.partition(|(token, _)| token.len() <= INSIDE);
        let mut groups = vec![Vec::new(); (short.len() / 2).next_power_of_two().max(2)];
        let mut words = Self {
            pilots: vec![0; groups.len()].into(),
            entries: vec![0; short.len() + short.len() / 8 + 1].into(),
            others: Others::default(),
        };
        for (token, id) in short {
            let hash = hash(pack(token, 0, token.len()));
            groups[words.pilot(hash)].push((hash, token, id));
        }
        // The largest first, as long as there is room.
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|&group| Reverse(groups[group].len()));
        for group in order {
            if !words.insert(group, &groups[group]) {
                others.extend(groups[group].iter().map(|&(_, token, id)| (token, id)));
            }
        }
        words.others = Others::new(&others);
        words
    }

    /// Find a pilot for words, by their hashes; false where there is none, which takes a vocabulary made for that.
    fn insert(&mut self, group: usize, words: &[(u64, &[u8], u32)]) -> bool {
        'pilots: for pilot in 0..=u8::MAX {
            self.pilots.to_mut()[group] = pilot;
            for (done, &(hash, token, id)) in words.iter().enumerate() {
                let place = self.place(hash);
                if self.entries[place] != 0 {
                    for &(hash, ..) in &words[..done] {
                        let place = self.place(hash);
                        self.entries.to_mut()[place] = 0;
                    }
                    continue 'pilots;
                }
                let id = u128::from(id & 0xffff | id >> 16 << 20) << 104;
                self.entries.to_mut()[place] = pack(token, 0, token.len()) | id;
            }
            return true;
        }
        false
    }

    #[inline(always)]
    fn pilot(&self, hash: u64) -> usize {
        (hash >> (64 - self.pilots.len().trailing_zeros())) as usize
    }

    /// Where the entry is that belongs to a hash.
    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        let pilot = u64::from(self.pilots[self.pilot(hash)]);
        let mixed = (hash ^ pilot.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((mixed * self.entries.len() as u64) >> 32) as usize
    }

    /// Have the processor fetch what [`Words::get`] will look at.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.entries[self.place(hash)]);
    }

    /// The token of a key.
    #[inline(always)]
    pub fn get(&self, key: Key, hash: u64) -> Option<u32> {
        let entry = self.entries[self.place(hash)];
        // Longer keys have bytes where the id is, but none of these entries has their length.
        if (entry ^ key) & !ID == 0 {
            return Some((entry >> 104) as u32 & 0xffff | (entry >> 124 << 16) as u32);
        }
        let length = (key >> 120) as usize;
        if length < self.others.shortest {
            return None;
        }
        self.others.get(&key.to_le_bytes()[..length])
    }

    /// The same for a piece of more than 15 bytes.
    #[inline]
    pub fn get_long(&self, piece: &[u8]) -> Option<u32> {
        if piece.len() > self.others.longest {
            return None;
        }
        self.others.get(piece)
    }

    /// The token that is `text`.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        match text.len() {
            0 => None,
            length @ 1..=SHORT => {
                let key = pack(text, 0, length);
                self.get(key, hash(key))
            }
            _ => self.get_long(text),
        }
    }
}

/// The words that have no place in that table: the long ones.
#[derive(Default, PartialEq)]
pub struct Others {
    /// All of them.
    pub(crate) bytes: Cow<'static, [u8]>,
    /// Where a word begins in `bytes`, its length, zero for none, and its id: open addressing, at most half full.
    pub(crate) slots: Cow<'static, [[u32; 3]]>,
    /// Lengths.
    pub(crate) shortest: usize,
    pub(crate) longest: usize,
}

impl Others {
    fn new(words: &[(&[u8], u32)]) -> Self {
        let mut bytes = Vec::new();
        let mut slots = vec![[0; 3]; (2 * words.len()).next_power_of_two()];
        for &(word, id) in words {
            let mut at = Self::place(word, slots.len());
            while slots[at][1] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = [bytes.len() as u32, word.len() as u32, id];
            bytes.extend_from_slice(word);
        }
        let lengths = words.iter().map(|(word, _)| word.len());
        let (shortest, longest) = (lengths.clone().min().unwrap_or(usize::MAX), lengths.max().unwrap_or(0));
        Self { bytes: bytes.into(), slots: slots.into(), shortest, longest }
    }

    #[inline]
    fn place(word: &[u8], slots: usize) -> usize {
        let mut hasher = FastHasher::default();
        hasher.write(word);
        hasher.finish() as usize & (slots - 1)
    }

    #[inline(never)]
    fn get(&self, word: &[u8]) -> Option<u32> {
        let mut at = Self::place(word, self.slots.len());
        loop {
            let [start, length, id] = self.slots[at];
            if length == 0 {
                return None;
            }
            if length as usize == word.len() && self.bytes[start as usize..].starts_with(word) {
                return Some(id);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[Vec<u8>], others: &[Vec<u8>]) -> Words {
        let words = Words::new(tokens.iter().map(Vec::as_slice).zip((0..).map(|i| i * 7)));
        for (token, id) in tokens.iter().zip((0..).map(|i| i * 7)) {
            assert_eq!(words.find(token), Some(id), "{token:?}");
        }
        for other in others {
            assert_eq!(words.find(other), None, "{other:?}");
        }
        words
    }

    #[test]
    fn words_of_every_length_are_found_and_nothing_else_is() {
        let (tokens, others): (Vec<_>, Vec<_>) = (0..100_000u32)
            .map(|i| {
                // Of every length some that differ in the last byte alone, and zeros at the end.
                let mut token = format!("{:?}", i / 40).repeat(8).into_bytes();
                token.truncate(i as usize / 20 % 40);
                token.extend([i as u8 % 20, 0, 0].iter().take(1 + i as usize / 800 % 3));
                token
            })
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .partition(|token| token.last().is_some_and(|&byte| byte % 3 < 2));
        let words = check(&tokens, &others);
        assert_eq!(words.others.shortest, INSIDE + 1);
        check(&tokens[..1], &tokens[1..]);
        check(&[], &others);
    }

    #[test]
    fn words_of_the_same_hash_are_found() {
        let token = |i: u16| [&0x9e37_79b9_7f4a_7c15_u64.to_le_bytes()[..], &i.to_le_bytes()].concat();
        let (tokens, others): (Vec<_>, Vec<_>) = (0..600).map(token).partition(|token| token[8] % 2 == 0);
        assert!(tokens.iter().all(|token| hash(pack(token, 0, 10)) == 0));
        let words = check(&tokens, &others);
        assert_eq!((words.others.shortest, words.others.longest), (10, 10));
    }
}
