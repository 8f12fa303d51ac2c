//! The split of a text, 64 bytes at a time: where the pieces of [`crate::pretokenize`] start, as bit masks.
//!
//! Each class of characters is one mask of 64 bits, a bit for a byte; a few shifts and ands say which bytes start a
//! piece. ASCII is classified by vector comparisons; characters above it one by one, all bytes of a character taking
//! its class. The slow twin is [`crate::pretokenize::piece_end`], against which this file is tested.
//!
//! Performance notes (30 November 2026): see `encoder.rs`, of whose time this is a part.

use crate::unicode::{decode, Class};

/// Bytes that are looked at together.
pub const BLOCK: usize = 64;

/// The classes of a block of bytes as far as ASCII goes, a bit for a byte.
#[derive(Clone, Copy, Default)]
pub struct Ascii {
    letter: u64,
    number: u64,
    white: u64,
    space: u64,
    apostrophe: u64,
    /// Bytes of characters above ASCII.
    high: u64,
}

/// A way of classifying bytes: what the processor can do.
pub trait Level {
    /// # Safety
    /// The processor must have this level's instructions.
    unsafe fn classify(block: &[u8; BLOCK]) -> Ascii;
}

/// Any processor.
pub struct Portable;

impl Level for Portable {
    #[inline(always)]
    unsafe fn classify(block: &[u8; BLOCK]) -> Ascii {
        let mut found = Ascii::default();
        for (i, &byte) in block.iter().enumerate() {
            found.letter |= u64::from((byte | 0x20).wrapping_sub(b'a') < 26) << i;
            found.number |= u64::from(byte.wrapping_sub(b'0') < 10) << i;
            found.white |= u64::from(byte == b' ' || byte.wrapping_sub(b'\t') < 5) << i;
            found.space |= u64::from(byte == b' ') << i;
            found.apostrophe |= u64::from(byte == b'\'') << i;
            found.high |= u64::from(byte >> 7) << i;
        }
        found
    }
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    //! The same by vector instructions.

    use super::{Ascii, Level, BLOCK};
    use std::arch::x86_64::*;

    /// SSE2, which every x86-64 processor has.
    pub struct Sse2;
    /// AVX2 (x86-64-v3).
    pub struct Avx2;
    /// AVX-512 BW (x86-64-v4).
    pub struct Avx512;

    impl Level for Sse2 {
        #[inline(always)]
        unsafe fn classify(block: &[u8; BLOCK]) -> Ascii {
            let mut found = Ascii::default();
            for part in 0..4 {
                // SAFETY: 16 bytes from one of the block's four quarters; SSE2 is part of x86-64.
                unsafe {
                    let bytes = _mm_loadu_si128(block.as_ptr().add(16 * part).cast());
                    let below = |x: __m128i, limit: i8| _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(limit)), x);
                    let is = |value: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(value as i8));
                    let mask = |x: __m128i| u64::from(_mm_movemask_epi8(x) as u32 as u16) << (16 * part);
                    let lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
                    let space = is(b' ');
                    let control = below(_mm_sub_epi8(bytes, _mm_set1_epi8(b'\t' as i8)), 4);
                    found.letter |= mask(below(_mm_sub_epi8(lower, _mm_set1_epi8(b'a' as i8)), 25));
                    found.number |= mask(below(_mm_sub_epi8(bytes, _mm_set1_epi8(b'0' as i8)), 9));
                    found.white |= mask(_mm_or_si128(space, control));
                    found.space |= mask(space);
                    found.apostrophe |= mask(is(b'\''));
                    found.high |= mask(bytes);
                }
            }
            found
        }
    }

    impl Level for Avx2 {
        #[inline(always)]
        unsafe fn classify(block: &[u8; BLOCK]) -> Ascii {
            let mut found = Ascii::default();
            for part in 0..2 {
                // SAFETY: 32 bytes from one of the block's halves; the caller has AVX2.
                unsafe {
                    let bytes = _mm256_loadu_si256(block.as_ptr().add(32 * part).cast());
                    let lower = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
                    let letter = _mm256_sub_epi8(lower, _mm256_set1_epi8(b'a' as i8));
                    let letter = _mm256_cmpeq_epi8(_mm256_min_epu8(letter, _mm256_set1_epi8(25)), letter);
                    let number = _mm256_sub_epi8(bytes, _mm256_set1_epi8(b'0' as i8));
                    let number = _mm256_cmpeq_epi8(_mm256_min_epu8(number, _mm256_set1_epi8(9)), number);
                    let control = _mm256_sub_epi8(bytes, _mm256_set1_epi8(b'\t' as i8));
                    let control = _mm256_cmpeq_epi8(_mm256_min_epu8(control, _mm256_set1_epi8(4)), control);
                    let space = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b' ' as i8));
                    let apostrophe = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'\'' as i8));
                    let white = _mm256_or_si256(space, control);
                    found.letter |= u64::from(_mm256_movemask_epi8(letter) as u32) << (32 * part);
                    found.number |= u64::from(_mm256_movemask_epi8(number) as u32) << (32 * part);
                    found.white |= u64::from(_mm256_movemask_epi8(white) as u32) << (32 * part);
                    found.space |= u64::from(_mm256_movemask_epi8(space) as u32) << (32 * part);
                    found.apostrophe |= u64::from(_mm256_movemask_epi8(apostrophe) as u32) << (32 * part);
                    found.high |= u64::from(_mm256_movemask_epi8(bytes) as u32) << (32 * part);
                }
            }
            found
        }
    }

    impl Level for Avx512 {
        #[inline(always)]
        unsafe fn classify(block: &[u8; BLOCK]) -> Ascii {
            // SAFETY: the whole block; the caller has AVX-512 BW.
            unsafe {
                let bytes = _mm512_loadu_si512(block.as_ptr().cast());
                let lower = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
                let letter = _mm512_sub_epi8(lower, _mm512_set1_epi8(b'a' as i8));
                let number = _mm512_sub_epi8(bytes, _mm512_set1_epi8(b'0' as i8));
                let control = _mm512_sub_epi8(bytes, _mm512_set1_epi8(b'\t' as i8));
                let space = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b' ' as i8));
                Ascii {
                    letter: _mm512_cmplt_epu8_mask(letter, _mm512_set1_epi8(26)),
                    number: _mm512_cmplt_epu8_mask(number, _mm512_set1_epi8(10)),
                    white: space | _mm512_cmplt_epu8_mask(control, _mm512_set1_epi8(5)),
                    space,
                    apostrophe: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\'' as i8)),
                    high: _mm512_movepi8_mask(bytes),
                }
            }
        }
    }
}

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

/// Goes through a text block by block; see [`Scanner::next_block`].
pub struct Scanner<'a> {
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

impl<'a> Scanner<'a> {
    /// A scanner at the beginning of the text.
    ///
    /// # Safety
    /// The processor must have the instructions of `L`, here and in [`Scanner::next_block`].
    #[inline(always)]
    pub unsafe fn new<L: Level>(text: &'a [u8]) -> Self {
        let mut scanner = Self {
            text,
            at: 0,
            current: Classes::default(),
            reaching: (Class::Other, 0),
            before: Classes::default(),
            before_other: 0,
            clear: 0,
            set: 0,
        };
        // SAFETY: passed on.
        scanner.current = unsafe { scanner.classes::<L>(0) };
        scanner
    }

    /// The classes of the block at `at`. After the end of the text there is white space, which splits nothing.
    #[inline(always)]
    unsafe fn classes<L: Level>(&mut self, at: usize) -> Classes {
        let rest = self.text.get(at..).unwrap_or_default();
        let mut beyond = 0;
        let mut padded = [0; BLOCK];
        let block = match rest.first_chunk::<BLOCK>() {
            Some(block) => block,
            None => {
                beyond = !0 << rest.len();
                padded[..rest.len()].copy_from_slice(rest);
                &padded
            }
        };
        // SAFETY: passed on.
        let Ascii { letter, number, white, space, apostrophe, high } = unsafe { L::classify(block) };
        let mut found = Classes { letter, number, white, space, apostrophe, wide: 0, wide_rest: 0 };
        if high != 0 {
            self.above_ascii(rest, high, &mut found);
        }
        found.white |= beyond;
        found
    }

    /// Add the characters above ASCII.
    #[inline(always)]
    fn above_ascii(&mut self, rest: &[u8], mut high: u64, found: &mut Classes) {
        let (class, length) = std::mem::replace(&mut self.reaching, (Class::Other, 0));
        if length > 0 {
            let bits = (1 << length) - 1;
            match class {
                Class::Letter => found.letter |= bits,
                Class::Number => found.number |= bits,
                Class::Space => {
                    found.white |= bits;
                    found.wide_rest |= bits;
                }
                Class::Other => {}
            }
            high &= !bits;
        }
        while high != 0 {
            let i = high.trailing_zeros();
            let (class, length) = decode(&rest[i as usize..]);
            let bits = ((1u64 << length) - 1) << i;
            // No branches on the class: in most scripts they would be taken at random.
            let of = |wanted: Class| bits & u64::from(class == wanted).wrapping_neg();
            found.letter |= of(Class::Letter);
            found.number |= of(Class::Number);
            if class == Class::Space {
                found.white |= bits;
                found.wide |= 1 << i;
                found.wide_rest |= bits & !(1 << i);
            }
            high &= !bits;
            let end = i + length as u32;
            if end > 64 {
                self.reaching = (class, end - 64);
            }
        }
    }

    /// Where the next block begins, and which of its bytes start a piece; None after the end of the text.
    ///
    /// # Safety
    /// The processor must have the instructions of `L`.
    #[inline(always)]
    pub unsafe fn next_block<L: Level>(&mut self) -> Option<(usize, u64)> {
        let at = self.at;
        if at >= self.text.len() {
            return None;
        }
        let c = self.current;
        // SAFETY: passed on.
        let after = unsafe { self.classes::<L>(at + BLOCK) };
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

    fn starts<L: Level>(text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        // SAFETY: the callers below looked for the level.
        let mut scanner = unsafe { Scanner::new::<L>(text) };
        while let Some((at, mut starts)) = unsafe { scanner.next_block::<L>() } {
            while starts != 0 {
                found.push(at + starts.trailing_zeros() as usize);
                starts &= starts - 1;
            }
        }
        found
    }

    fn check(text: &[u8]) {
        let expected: Vec<usize> = pieces(text).map(|piece| piece.as_ptr() as usize - text.as_ptr() as usize).collect();
        assert_eq!(starts::<Portable>(text), expected, "portable {:?}", String::from_utf8_lossy(text));
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(starts::<x86::Sse2>(text), expected, "SSE2 {:?}", String::from_utf8_lossy(text));
            if is_x86_feature_detected!("avx2") {
                assert_eq!(starts::<x86::Avx2>(text), expected, "AVX2 {:?}", String::from_utf8_lossy(text));
            }
            if is_x86_feature_detected!("avx512bw") {
                assert_eq!(starts::<x86::Avx512>(text), expected, "AVX-512 {:?}", String::from_utf8_lossy(text));
            }
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
