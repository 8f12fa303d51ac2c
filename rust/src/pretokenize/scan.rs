//! The split of a text, 64 bytes at a time: where the pieces of [`crate::pretokenize`] start, as bit masks.
//!
//! Each class of characters is one mask of 64 bits, a bit for a byte; a few shifts and ands say which bytes start a
//! piece. ASCII is classified by vector comparisons, characters above it by a table ([`crate::pretokenize::classify`]), all bytes of a
//! character taking its class. The slow twin is [`crate::pretokenize::piece_end`], against which this file is tested.
//!
//! Performance notes (30 November 2026), the starts of pieces alone, SSE2, MB/s: 3,700 of English. Of ten languages 570
//! when each character above ASCII was checked by itself; 755 since the block is checked by masks and a table of two bits
//! for each code point below U+10000 (16 KiB) gives the class with one load. With AVX-512 the characters of a block are
//! looked up together, by pages of 64, of which most texts have one or two: ten languages 425 to 590 with all else that
//! encoding takes. (Sixteen loads in one instruction, a gather: 228.) See also `encoder.rs`.

use crate::pretokenize::classify::{Ascii, HighBits, Level, BLOCK};
use crate::unicode::{class_of, decode, Class};

/// The classes of a block, characters above ASCII included.
#[derive(Clone, Copy, Default)]
struct Classes {
    letter: u64,
    number: u64,
    white: u64,
    space: u64,
    apostrophe: u64,
    /// First bytes of white space above ASCII, and its other bytes.
    wide: u64,
    wide_rest: u64,
}

impl Classes {
    /// Add bytes of characters of a class; `begins` says which of them are first bytes.
    #[inline(always)]
    fn add(&mut self, class: Class, bits: u64, begins: u64) {
        match class {
            Class::Letter => self.letter |= bits,
            Class::Number => self.number |= bits,
            Class::Space => {
                self.white |= bits;
                self.wide |= begins;
                self.wide_rest |= bits & !begins;
            }
            Class::Other => {}
        }
    }
}

/// As [`Level::classes`], for characters of four bytes; None beyond U+10FFFF, too, where there is no UTF-8.
#[inline(always)]
fn classes_of_four(block: &[u8; BLOCK], mut four: u64) -> Option<[u64; 2]> {
    let (mut low, mut top) = (0, 0);
    let bits = |i: u32, mask: u8| u32::from(block[i as usize & (BLOCK - 1)] & mask);
    while four != 0 {
        let i = four.trailing_zeros();
        four &= four - 1;
        // Bytes from 0xf8 on begin no character: with the bit 0x08 they come out above U+10FFFF.
        let code_point = bits(i, 0x0f) << 18 | bits(i + 1, 0x3f) << 12 | bits(i + 2, 0x3f) << 6 | bits(i + 3, 0x3f);
        if !(0x10000..0x110000).contains(&code_point) {
            return None;
        }
        let class = class_of(code_point) as u64;
        low |= (class & 1) << i;
        top |= (class >> 1) << i;
    }
    Some([low, top])
}

/// Goes through a text block by block; see [`Scanner::next_block`].
pub struct Scanner<'a, L> {
    level: L,
    text: &'a [u8],
    /// Where the block that [`Scanner::next_block`] reports next begins.
    at: usize,
    /// Its classes, found already because white space depends on what follows.
    current: Classes,
    /// The class of a character that reaches into the block after it, and by how many bytes.
    reaching: (Class, u32),
    /// The last byte's classes in the block before, in bit 0.
    before: Classes,
    before_other: u64,
    /// Contractions that reach into this block: starts to take away, starts to add.
    clear: u64,
    set: u64,
}

impl<'a, L: Level> Scanner<'a, L> {
    /// A scanner at the beginning of the text.
    #[inline(always)]
    pub fn new(level: L, text: &'a [u8]) -> Self {
        let mut scanner = Self {
            level,
            text,
            at: 0,
            current: Classes::default(),
            reaching: (Class::Other, 0),
            before: Classes::default(),
            before_other: 0,
            clear: 0,
            set: 0,
        };
        scanner.current = scanner.classes(0);
        scanner
    }

    /// The classes of the block at `at`. After the end of the text there is white space, which splits nothing.
    #[inline(always)]
    fn classes(&mut self, at: usize) -> Classes {
        let rest = self.text.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Classes { white: !0, ..Classes::default() };
        }
        let mut beyond = 0;
        let padded;
        let block = match rest.first_chunk::<BLOCK>() {
            Some(block) => block,
            None => {
                beyond = !0 << rest.len();
                padded = self.level.load(rest);
                &padded
            }
        };
        let Ascii { letter, number, white, space, apostrophe, high } = self.level.classify(block);
        let mut found = Classes { letter, number, white, space, apostrophe, wide: 0, wide_rest: 0 };
        if high != 0 {
            self.above_ascii(block, rest, high, &mut found);
        }
        found.white |= beyond;
        found
    }

    /// Add the characters above ASCII.
    #[inline(always)]
    fn above_ascii(&mut self, block: &[u8; BLOCK], rest: &[u8], mut high: u64, found: &mut Classes) {
        let (class, length) = std::mem::replace(&mut self.reaching, (Class::Other, 0));
        if length > 0 {
            let bits = (1 << length) - 1;
            found.add(class, bits, 0);
            high &= !bits;
        }
        let HighBits { six, five, four } = self.level.high_bits(block);
        let (begins, goes_on) = (high & six, high & !six);
        let long = begins & five;
        let longest = long & four;
        // The one that ends in the next block.
        let last = begins & 1 << 63 | long & 3 << 62 | longest & 7 << 61;
        if goes_on == begins << 1 | long << 2 | longest << 3 {
            let most = self.level.classes(block, begins & !five & !last, long & !four & !last);
            if let (Some([low, top]), Some([low_of_four, top_of_four])) =
                (most, classes_of_four(block, longest & !last))
            {
                let (low, top) = (low | low_of_four, top | top_of_four);
                let all = |begins: u64| begins | begins << 1 | (begins & long) << 2 | (begins & longest) << 3;
                found.letter |= all(low & !top);
                found.number |= all(top & !low);
                if low & top != 0 {
                    found.add(Class::Space, all(low & top), low & top);
                }
                high = if last != 0 { !0 << last.trailing_zeros() & high } else { 0 };
            }
        }
        // What is left, or all where something is no UTF-8, one by one.
        while high != 0 {
            let i = high.trailing_zeros();
            let (class, length) = decode(&rest[i as usize..]);
            let bits = ((1u64 << length) - 1) << i;
            found.add(class, bits, 1 << i);
            high &= !bits;
            let end = i + length as u32;
            if end > 64 {
                self.reaching = (class, end - 64);
            }
        }
    }

    /// Where the next block begins, and which of its bytes start a piece; None after the end of the text.
    #[inline(always)]
    pub fn next_block(&mut self) -> Option<(usize, u64)> {
        let at = self.at;
        if at >= self.text.len() {
            return None;
        }
        let c = self.current;
        let after = self.classes(at + BLOCK);
        let other = !(c.letter | c.number | c.white);
        let before = self.before;
        let first = |class: u64, before: u64| class & !(class << 1 | before);
        // A space belongs to what follows it unless that is white space, so nothing else starts after one.
        let mut starts =
            (first(c.letter, before.letter) | first(c.number, before.number) | first(other, self.before_other))
                & !(c.space << 1 | before.space);
        // White space starts a piece where it begins, and where its last character is left to what follows.
        starts |= first(c.white, before.white) | c.white & !(c.white >> 1 | after.white << 63);
        if c.wide | c.wide_rest != 0 {
            starts &= !c.wide_rest;
            let mut wide = c.wide;
            while wide != 0 {
                let i = wide.trailing_zeros();
                wide &= wide - 1;
                let next = i + if self.text[at + i as usize] < 0xe0 { 2 } else { 3 };
                let white = if next < 64 { c.white >> next } else { after.white >> (next - 64) };
                starts |= u64::from(white & 1 == 0) << i;
                // The byte before it took this character for one that follows.
            }
        }
        let mut contractions = starts & c.apostrophe;
        starts = starts & !self.clear | self.set;
        (self.clear, self.set) = (0, 0);
        while contractions != 0 {
            let i = contractions.trailing_zeros();
            contractions &= contractions - 1;
            let after = &self.text[at + i as usize + 1..];
            let length = match (after.first(), after.get(1)) {
                (Some(b's' | b'd' | b'm' | b't'), _) => 2,
                (Some(b'l'), Some(b'l')) | (Some(b'v' | b'r'), Some(b'e')) => 3,
                _ => continue,
            };
            let clear = 1u128 << (i + 1);
            let set = 1u128 << (i + length);
            starts = starts & !(clear as u64) | set as u64;
            self.clear |= (clear >> 64) as u64;
            self.set |= (set >> 64) as u64;
        }
        let left = self.text.len() - at;
        if left < BLOCK {
            starts &= (1 << left) - 1;
        }
        self.before = Classes {
            letter: c.letter >> 63,
            number: c.number >> 63,
            white: c.white >> 63,
            space: c.space >> 63,
            ..Classes::default()
        };
        self.before_other = other >> 63;
        self.current = after;
        self.at = at + BLOCK;
        Some((at, starts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretokenize::pieces;
    use crate::simd::{levels, CpuLevel};

    fn starts<L: Level>(level: L, text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut scanner = Scanner::new(level, text);
        while let Some((at, mut starts)) = scanner.next_block() {
            while starts != 0 {
                found.push(at + starts.trailing_zeros() as usize);
                starts &= starts - 1;
            }
        }
        found
    }

    fn check(text: &[u8]) {
        let expected: Vec<usize> = pieces(text).map(|piece| piece.as_ptr() as usize - text.as_ptr() as usize).collect();
        for level in levels() {
            let found = match level {
                CpuLevel::Portable(level) => starts(level, text),
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Sse2(level) => starts(level, text),
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Avx2(level) => starts(level, text),
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Avx512(level) => starts(level, text),
            };
            assert_eq!(found, expected, "{level:?} {:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn agrees_with_the_slow_twin() {
        const PARTS: [&[u8]; 40] = [
            b"a",
            b"b",
            b"s",
            b"ll",
            b"ve",
            b"re",
            b"'",
            b"'s",
            b"'ll",
            b"'t",
            b" ",
            b" ",
            b" ",
            b"  ",
            b"\n",
            b"\t",
            b"1",
            b"23",
            b".",
            b"!?",
            b"-",
            b"word",
            b"The",
            b"\r\n",
            b"'''",
            b"_",
            "é".as_bytes(),
            "漢".as_bytes(),
            "\u{a0}".as_bytes(),
            "\u{3000}".as_bytes(),
            "\u{2028}".as_bytes(),
            "٣".as_bytes(),
            "½".as_bytes(),
            "🙂".as_bytes(),
            "\u{301}".as_bytes(),
            b"\xff",
            b"\xe2\x82",
            b"\xf0\x9f\x98",
            b"\x80",
            b"\0",
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..4000 {
            let mut text = Vec::new();
            for _ in 0..round % 97 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                text.extend_from_slice(PARTS[(state >> 32) as usize % PARTS.len()]);
            }
            check(&text);
        }
    }

    #[test]
    fn every_place_in_a_block() {
        for tail in [
            "'s",
            "'sx",
            "'llx",
            "'re",
            "' ",
            "  x",
            "\u{3000}x",
            "\u{a0}\u{a0}x",
            "\n\n",
            "é1",
            "🙂a",
            " ",
            "''s",
            " 's",
        ] {
            for length in 0..140 {
                for fill in ["a", " ", ".", "1"] {
                    check((fill.repeat(length) + tail).as_bytes());
                    check((fill.repeat(length) + tail + "end of it").as_bytes());
                }
            }
        }
    }
}
