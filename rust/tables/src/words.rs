//! The vocabulary by the bytes of its tokens.
//!
//! Pieces of up to 15 bytes are packed with their length into 128 bits ([`crate::key`]). The tables are never
//! written to after loading, or are part of the program (`gpt2.rs`), and serve all threads.
//!
//! Performance notes (30 November 2026): open addressing, two entries of 32 bytes in a line, half full, was 4 MiB in large
//! pages, which had to be filled at the start of every process: 6 ms with all that goes into it. This table is 0.9 MB of
//! the program. Text not seen before, 5 MB of English and code, MB/s, one thread, the caches of the processor emptied
//! before: the same; large pages for it: no difference that could be measured.

use crate::key::{hash, hash_bytes, pack, prefetch, Key, SHORT_PIECE};
use std::borrow::Cow;
use std::cmp::Reverse;

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
    pub pilots: Cow<'static, [u8]>,
    pub entries: Cow<'static, [u128]>,
    pub others: Others,
}

impl Words {
    /// The words of tokens, each of them once: their bytes, of which there are some, and their ids. The `seed` is that of
    /// the table of long ones.
    pub fn new<'a>(seed: u64, tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
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
        words.others = Others::new(seed, &others);
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
            length @ 1..=SHORT_PIECE => {
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
    pub bytes: Cow<'static, [u8]>,
    /// Where a word begins in `bytes`, its length, zero for none, and its id: open addressing, at most half full.
    pub slots: Cow<'static, [[u32; 3]]>,
    /// Makes the hash of a word.
    pub seed: u64,
    /// Lengths.
    pub shortest: usize,
    pub longest: usize,
}

impl Others {
    fn new(seed: u64, words: &[(&[u8], u32)]) -> Self {
        let mut bytes = Vec::new();
        let mut slots = vec![[0; 3]; (2 * words.len()).next_power_of_two()];
        for &(word, id) in words {
            let mut at = hash_bytes(seed, word) as usize & (slots.len() - 1);
            while slots[at][1] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = [bytes.len() as u32, word.len() as u32, id];
            bytes.extend_from_slice(word);
        }
        let lengths = words.iter().map(|(word, _)| word.len());
        let (shortest, longest) = (lengths.clone().min().unwrap_or(usize::MAX), lengths.max().unwrap_or(0));
        Self { bytes: bytes.into(), slots: slots.into(), seed, shortest, longest }
    }

    #[inline(never)]
    fn get(&self, word: &[u8]) -> Option<u32> {
        let mut at = hash_bytes(self.seed, word) as usize & (self.slots.len() - 1);
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
        let words = Words::new(7, tokens.iter().map(Vec::as_slice).zip((0..).map(|i| i * 7)));
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
