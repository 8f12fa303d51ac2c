//! A text by its bytes, or by its characters as Python keeps them, which become UTF-8 a part at a time.
//!
//! Python can convert the whole of it, but keeps that beside the text for as long as that lives, and new memory of the
//! size of the text costs more than the conversion: page by page, the system has to find and clear it.
//!
//! Performance notes (30 November 2026), MB/s against `PyUnicode_AsUTF8AndSize`, medians of interleaved processes, 5 MB:
//! - Text not seen before, in a new process: English with an emoji, four bytes a character, 187 to 216; code 164 to 214;
//!   ten languages 174 to 234. Page faults 1,400 to 200, 4,500 to 2,100 and 5,800 to 3,000; what is left are the ids'.
//! - The same at the end of the day, with large pages for the ids: 236 to 271, 196 to 300, 193 to 278.
//! - The same str again, whose UTF-8 Python had kept: English 650 to 550, code 590 to 550, ten languages 385 to 380. It
//!   is what reading four times the memory takes; fetching it ahead, 1 to 16 kB, and smaller parts gained nothing. Asking for Python's UTF-8
//!   when the same large text comes twice in a row brought it back; thrown away, as nobody does that but benchmarks.

use crate::encode::added::Added;
use crate::encode::{Cache, Output, Tokenizer};
use crate::pretokenize::{last_cut, safe_cut};
use crate::unicode::utf8::{append, room, Unit};
use std::borrow::Cow;

/// A text: UTF-8, or characters of one, two or four bytes each.
///
/// Surrogates among the latter are read as UTF-16: a pair of them is one character, others are U+FFFD.
#[derive(Clone, Copy)]
pub enum Characters<'a> {
    Utf8(&'a [u8]),
    Latin1(&'a [u8]),
    Ucs2(&'a [u16]),
    Ucs4(&'a [u32]),
}

/// Characters that are converted together: they and their UTF-8 fit the second-level cache.
const PART: usize = 1 << 14;

impl<'a> Characters<'a> {
    /// The number of bytes or characters.
    #[inline(always)]
    pub fn len(self) -> usize {
        match self {
            Self::Utf8(text) | Self::Latin1(text) => text.len(),
            Self::Ucs2(text) => text.len(),
            Self::Ucs4(text) => text.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The number of bytes that its UTF-8 has at most.
    #[inline(always)]
    pub fn most_bytes(self) -> usize {
        match self {
            Self::Utf8(text) => text.len(),
            Self::Latin1(text) => 2 * text.len(),
            Self::Ucs2(text) => 3 * text.len(),
            Self::Ucs4(text) => 4 * text.len(),
        }
    }

    /// Cut at the first place from `at` on where the pieces of the text are those of its two parts.
    pub fn split_at_safe_cut(self, at: usize) -> (Self, Self) {
        self.split_at(match self {
            Self::Utf8(text) | Self::Latin1(text) => safe_cut(text, at),
            Self::Ucs2(text) => safe_cut(text, at),
            Self::Ucs4(text) => safe_cut(text, at),
        })
    }

    /// The same, at a place where added tokens allow it, too; all of the text where there is none near by.
    pub fn split_for(self, added: &Added, at: usize) -> (Self, Self) {
        let mut at = at;
        for _ in 0..Added::TRIES {
            let (left, right) = self.split_at_safe_cut(at);
            let (before, after) = (left.last(added.window()), right.first(added.window().max(1)));
            if right.is_empty() || added.is_empty() || added.may_cut(&before.to_utf8(), &after.to_utf8()) {
                return (left, right);
            }
            at = left.len() + 1;
        }
        self.split_at(self.len())
    }

    fn first(self, count: usize) -> Self {
        self.split_at(count.min(self.len())).0
    }

    fn last(self, count: usize) -> Self {
        self.split_at(self.len().saturating_sub(count)).1
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Utf8(text) => (Self::Utf8(&text[..at]), Self::Utf8(&text[at..])),
            Self::Latin1(text) => (Self::Latin1(&text[..at]), Self::Latin1(&text[at..])),
            Self::Ucs2(text) => (Self::Ucs2(&text[..at]), Self::Ucs2(&text[at..])),
            Self::Ucs4(text) => (Self::Ucs4(&text[..at]), Self::Ucs4(&text[at..])),
        }
    }

    /// Append the ids of the text to `out`, or count them; see [`Tokenizer::encode`].
    #[inline]
    pub fn encode<O: Output>(self, tokenizer: &Tokenizer, cache: &mut Cache, out: &mut O) {
        match self {
            Self::Utf8(text) => tokenizer.encode(text, cache, out),
            // What is looked for may lie across any two parts.
            _ if !tokenizer.added().is_empty() => tokenizer.encode(&self.to_utf8(), cache, out),
            Self::Latin1(text) => encode_parts(text, tokenizer, cache, out),
            Self::Ucs2(text) => encode_parts(text, tokenizer, cache, out),
            Self::Ucs4(text) => encode_parts(text, tokenizer, cache, out),
        }
    }

    /// The number of its ids.
    pub fn count(self, tokenizer: &Tokenizer, cache: &mut Cache) -> usize {
        let mut count = 0usize;
        self.encode(tokenizer, cache, &mut count);
        count
    }

    /// All of the text.
    pub fn to_utf8(self) -> Cow<'a, [u8]> {
        fn convert<U: Unit>(text: &[U]) -> Cow<'_, [u8]> {
            let mut utf8 = vec![0; room(text.len())];
            let (_, length) = append(text, 0, text.len(), &mut utf8, 0);
            utf8.truncate(length);
            Cow::Owned(utf8)
        }
        match self {
            Self::Utf8(text) => Cow::Borrowed(text),
            Self::Latin1(text) => convert(text),
            Self::Ucs2(text) => convert(text),
            Self::Ucs4(text) => convert(text),
        }
    }
}

fn encode_parts<U: Unit, O: Output>(text: &[U], tokenizer: &Tokenizer, cache: &mut Cache, out: &mut O) {
    let mut utf8 = std::mem::take(&mut cache.utf8);
    let (mut at, mut length, mut count) = (0, 0, PART);
    loop {
        let end = text.len().min(at + count);
        if utf8.len() < length + room(end - at) {
            utf8.resize(length + room(end - at), 0);
        }
        (at, length) = append(text, at, end, &mut utf8, length);
        if at == text.len() {
            tokenizer.encode_plain(&utf8[..length], cache, out);
            break;
        }
        let cut = last_cut(&utf8[..length]);
        tokenizer.encode_plain(&utf8[..cut], cache, out);
        utf8.copy_within(cut..length, 0);
        length -= cut;
        // A piece that is longer than a part is not looked through for a cut again and again.
        count = if cut == 0 { 2 * count } else { PART };
    }
    // A piece of a gigabyte must not hold its memory for ever.
    if utf8.len() <= 2 * room(PART) {
        cache.utf8 = utf8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    fn check(tokenizer: &Tokenizer, text: &[u32]) {
        let (mut cache, mut expected) = (Cache::default(), Vec::<u32>::new());
        let utf8 = Characters::Ucs4(text).to_utf8();
        tokenizer.encode(&utf8, &mut cache, &mut expected);
        let latin1: Vec<u8> = text.iter().map(|&character| character as u8).collect();
        let ucs2: Vec<u16> = text.iter().map(|&character| character as u16).collect();
        let mut same = vec![Characters::Utf8(&utf8), Characters::Ucs4(text)];
        if text.iter().all(|&character| character <= 0xffff) {
            same.push(Characters::Ucs2(&ucs2));
        }
        if text.iter().all(|&character| character <= 0xff) {
            same.push(Characters::Latin1(&latin1));
        }
        for characters in same {
            assert!(characters.to_utf8() == utf8);
            let mut ids = Vec::<u32>::new();
            characters.encode(tokenizer, &mut cache, &mut ids);
            assert!(ids == expected, "{text:x?}");
            let (mut parts, mut rest) = (Vec::<u32>::new(), characters);
            while !rest.is_empty() {
                let first;
                (first, rest) = rest.split_at_safe_cut(rest.len().min(100));
                first.encode(tokenizer, &mut cache, &mut parts);
            }
            assert!(parts == expected, "{text:x?}");
            assert!(cache.utf8.len() <= 2 * room(PART));
        }
    }

    fn tokenizer() -> Tokenizer {
        let json = vocabulary_json(&["ab", "Ġa"]);
        Tokenizer::new(json.as_bytes(), "a b\nĠ a\n".as_bytes(), &[]).expect("good")
    }

    #[test]
    fn every_width_and_length() {
        let words: Vec<u32> = "aber él 漢字 🙂 ab's\n\n  x's\u{a0} ".chars().map(u32::from).collect();
        for kinds in [&words[..], &words[..7], b"ab ab 12".map(u32::from).as_slice(), &[0xd83d, 0x20, 0xde42, 0xd83d]] {
            for length in (0..200).chain([300, 500]) {
                let text: Vec<u32> = kinds.iter().copied().cycle().take(length).collect();
                check(&tokenizer(), &text);
            }
        }
    }

    #[test]
    fn borders_of_parts_are_nowhere_to_be_seen() {
        let words = "aber él 漢字 🙂 ab's\n".repeat(PART / 16);
        let piece = "é".repeat(3 * PART + 3);
        for text in [words.clone(), "é ab".repeat(PART), piece.clone(), words + &piece + " ab"] {
            check(&tokenizer(), &text.chars().map(u32::from).collect::<Vec<_>>());
        }
        for before in PART - 3..PART + 3 {
            for cut in [&[0xd83d, 0xde42][..], &[0xd83d], &[0xde42], &[0x20, 0x20], &[0x20, 0xe9], &[0x27, 0x6c, 0x6c]]
            {
                for unit in [0x61, 0xe9, 0x20] {
                    let mut text = vec![unit; before];
                    text.extend_from_slice(cut);
                    text.extend_from_slice(&[0x61, 0x20]);
                    check(&tokenizer(), &text);
                }
            }
        }
    }
}
