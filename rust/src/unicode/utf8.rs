//! Characters of one, two or four bytes each, as Python keeps them, made into UTF-8.
//!
//! Surrogates are read as UTF-16: a pair of them is one character, others are U+FFFD.

use crate::simd::{level, CpuLevel};

/// A character, of at most 0xff, 0xffff or 0x10ffff.
pub trait Unit: Copy + Into<u32> {}
impl Unit for u8 {}
impl Unit for u16 {}
impl Unit for u32 {}

/// Characters that are looked at together.
const RUN: usize = 64;

/// The room that the UTF-8 of so many characters needs while it is written.
pub const fn room(characters: usize) -> usize {
    4 * (characters + RUN)
}

/// Put the UTF-8 of `text[at..end]`, and of the other half where a pair of surrogates is cut, into `utf8[length..]`, where
/// there is [`room`] for it. Where these end, in text and UTF-8.
///
/// ```
/// let mut utf8 = vec![0; _bpe::unicode::utf8::room(2)];
/// assert_eq!(_bpe::unicode::utf8::append(&[0x41u16, 0x3b1], 0, 2, &mut utf8, 0), (2, 3));
/// assert_eq!(utf8[..3], *"Aα".as_bytes());
/// ```
///
/// # Panics
/// Where there is less room.
pub fn append<U: Unit>(text: &[U], at: usize, end: usize, utf8: &mut [u8], length: usize) -> (usize, usize) {
    append_at(level(), text, at, end, utf8, length)
}

/// As [`append`], by the instructions of one level.
///
/// # Panics
/// As [`append`].
pub fn append_at<U: Unit>(
    level: CpuLevel,
    text: &[U],
    at: usize,
    end: usize,
    utf8: &mut [u8],
    length: usize,
) -> (usize, usize) {
    assert!(end <= text.len() && at <= end && utf8[length..].len() >= room(end - at));
    match level {
        // SAFETY: the level is there, and so is the room.
        #[cfg(target_arch = "x86_64")]
        CpuLevel::Avx512(_) => unsafe { avx512::append(text, at, end, utf8, length) },
        _ => append_portable(text, at, end, utf8, length),
    }
}

/// As [`append`], without vector instructions.
fn append_portable<U: Unit>(
    text: &[U],
    mut at: usize,
    end: usize,
    utf8: &mut [u8],
    mut length: usize,
) -> (usize, usize) {
    const ASCII: usize = 16;
    while at < end {
        let ascii = text[at..end].first_chunk::<ASCII>().zip(utf8[length..].first_chunk_mut::<ASCII>());
        match ascii {
            Some((run, to)) if run.iter().fold(0, |all, &unit| all | unit.into()) < 0x80 => {
                for (byte, &unit) in to.iter_mut().zip(run) {
                    *byte = unit.into() as u8;
                }
                at += ASCII;
                length += ASCII;
            }
            _ => (at, length) = append_each(text, at, end.min(at + ASCII), utf8, length),
        }
    }
    (at, length)
}

/// The same, one by one.
fn append_each<U: Unit>(text: &[U], mut at: usize, end: usize, utf8: &mut [u8], mut length: usize) -> (usize, usize) {
    while at < end {
        let mut character = text[at].into();
        at += 1;
        if character & !0x7ff == 0xd800 {
            let next = text.get(at).map_or(0, |&unit| unit.into());
            if character < 0xdc00 && next & !0x3ff == 0xdc00 {
                character = 0x10000 + ((character & 0x3ff) << 10 | next & 0x3ff);
                at += 1;
            } else {
                character = 0xfffd;
            }
        }
        // Without branches: which number of bytes it is, nobody can predict in most scripts.
        let more = usize::from(character >= 0x80) + usize::from(character >= 0x800) + usize::from(character >= 0x10000);
        let six = |shift: u32| character >> shift & 0x3f;
        let all = six(18) | six(12) << 8 | six(6) << 16 | six(0) << 24;
        let marked = all >> (24 - 8 * more) | [0, 0x80c0, 0x80_80e0, 0x8080_80f0][more];
        let bytes = if more == 0 { character } else { marked };
        utf8[length..length + 4].copy_from_slice(&bytes.to_le_bytes());
        length += more + 1;
    }
    (at, length)
}

/// Sixteen characters are expanded to four bytes each and those that are there compressed; 64 of ASCII only narrowed.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{append_each, Unit, RUN};
    use std::arch::x86_64::*;

    const LANES: usize = 16;

    /// # Safety
    /// The processor has these instructions, and `utf8` the room that [`super::append`] asks for.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
    pub unsafe fn append<U: Unit>(
        text: &[U],
        mut at: usize,
        end: usize,
        utf8: &mut [u8],
        mut length: usize,
    ) -> (usize, usize) {
        while at < end {
            // SAFETY: inside the text, and room for four bytes for each character that is left and a run.
            unsafe {
                if end - at >= RUN && ascii_run(text.as_ptr().add(at), utf8.as_mut_ptr().add(length)) {
                    at += RUN;
                    length += RUN;
                    continue;
                }
            }
            let stop = end.min(at + RUN);
            while at < stop {
                let count = LANES.min(stop - at);
                // SAFETY: as above.
                match unsafe { lanes(text.as_ptr().add(at), count, utf8.as_mut_ptr().add(length)) } {
                    Some(written) => {
                        at += count;
                        length += written;
                    }
                    None => (at, length) = append_each(text, at, at + count, utf8, length),
                }
            }
        }
        (at, length)
    }

    /// Put [`RUN`] characters where they are all ASCII; whether they are.
    ///
    /// # Safety
    /// There are so many at `from`, and there is room for so many bytes at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn ascii_run<U>(from: *const U, to: *mut u8) -> bool {
        // SAFETY: passed on.
        unsafe {
            let vector = |i: usize| _mm512_loadu_si512(from.cast::<__m512i>().add(i));
            match size_of::<U>() {
                1 => {
                    let ascii = _mm512_movepi8_mask(vector(0)) == 0;
                    if ascii {
                        _mm512_storeu_si512(to.cast(), vector(0));
                    }
                    ascii
                }
                2 => {
                    let all = _mm512_or_si512(vector(0), vector(1));
                    let ascii = _mm512_test_epi16_mask(all, _mm512_set1_epi16(!0x7f)) == 0;
                    if ascii {
                        for i in 0..2 {
                            _mm256_storeu_si256(to.cast::<__m256i>().add(i), _mm512_cvtepi16_epi8(vector(i)));
                        }
                    }
                    ascii
                }
                _ => {
                    let half = |i| _mm512_or_si512(vector(i), vector(i + 1));
                    let all = _mm512_or_si512(half(0), half(2));
                    let ascii = _mm512_test_epi32_mask(all, _mm512_set1_epi32(!0x7f)) == 0;
                    if ascii {
                        for i in 0..4 {
                            _mm_storeu_si128(to.cast::<__m128i>().add(i), _mm512_cvtepi32_epi8(vector(i)));
                        }
                    }
                    ascii
                }
            }
        }
    }

    /// Put the UTF-8 of up to [`LANES`] characters; how many bytes that is. None where one of them is a surrogate.
    ///
    /// # Safety
    /// There are `count` of them at `from`, and there is room for 64 bytes at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
    unsafe fn lanes<U>(from: *const U, count: usize, to: *mut u8) -> Option<usize> {
        let these = ((1u32 << count) - 1) as u16;
        // SAFETY: `count` characters of one, two or four bytes are read.
        let character = unsafe {
            match size_of::<U>() {
                1 => _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(these, from.cast())),
                2 => _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(these, from.cast())),
                _ => _mm512_maskz_loadu_epi32(these, from.cast()),
            }
        };
        let set = |value: u32| _mm512_set1_epi32(value as i32);
        let from = |least: u32| _mm512_cmpge_epu32_mask(character, set(least));
        if _mm512_cmpeq_epi32_mask(_mm512_and_si512(character, set(!0x7ff)), set(0xd800)) != 0 {
            return None;
        }
        // Six bits to each byte, the first ones lowest, then the marks that the number of bytes asks for.
        let six = |shift: u32, to: u32| {
            let bits = _mm512_and_si512(_mm512_srlv_epi32(character, set(shift)), set(0x3f));
            _mm512_sllv_epi32(bits, set(to))
        };
        let or = |a, b| _mm512_or_si512(a, b);
        let (two, three, four) = (from(0x80), from(0x800), from(0x10000));
        let mut bytes = character;
        bytes = _mm512_mask_mov_epi32(bytes, two, or(or(six(6, 0), six(0, 8)), set(0x80c0)));
        bytes = _mm512_mask_mov_epi32(bytes, three, or(or(six(12, 0), six(6, 8)), or(six(0, 16), set(0x80_80e0))));
        if four != 0 {
            let all = or(or(six(18, 0), six(12, 8)), or(six(6, 16), six(0, 24)));
            bytes = _mm512_mask_mov_epi32(bytes, four, or(all, set(0x8080_80f0)));
        }
        // Bytes that are not there are zero; of a first one that is zero, too, the character is.
        let first = 0x1111_1111_1111_1111 & u64::MAX >> (64 - 4 * count);
        let there = _mm512_test_epi8_mask(bytes, bytes) | first;
        // SAFETY: 64 bytes are written.
        unsafe { _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi8(there, bytes)) };
        Some(there.count_ones() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::levels;

    /// What UTF-16 makes of the characters.
    fn utf8_of(text: &[u32]) -> String {
        let units = text.iter().flat_map(|&character| match char::from_u32(character) {
            Some(character) => character.encode_utf16(&mut [0; 2]).to_vec(),
            None => vec![character as u16],
        });
        char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    }

    fn check<U: Unit>(text: &[u32], narrow: impl Fn(u32) -> U) {
        let units: Vec<U> = text.iter().map(|&character| narrow(character)).collect();
        if units.iter().zip(text).any(|(&unit, &character)| unit.into() != character) {
            return;
        }
        let expected = utf8_of(text);
        for (step, level) in levels().into_iter().flat_map(|level| [(37, level), (200, level)]) {
            let (mut utf8, mut at, mut length) = (vec![0; room(text.len())], 0, 0);
            while at < text.len() {
                let end = text.len().min(at + step);
                (at, length) = append_at(level, &units, at, end, &mut utf8, length);
            }
            assert!(utf8[..length] == *expected.as_bytes(), "{level:?} {text:x?}");
        }
    }

    #[test]
    fn every_character_of_every_width() {
        for first in (0..0x11_0000).step_by(500) {
            let text: Vec<u32> = (first..0x11_0000.min(first + 500)).collect();
            check(&text, |character| character as u8);
            check(&text, |character| character as u16);
            check(&text, |character| character);
        }
    }

    #[test]
    fn all_kinds_side_by_side() {
        const PARTS: [&[u32]; 14] = [
            &[0x61],
            &[0],
            &[0x7f],
            &[0x80],
            &[0xff],
            &[0x7ff],
            &[0x800],
            &[0xffff],
            &[0x10000],
            &[0x10_ffff],
            &[0xd83d, 0xde42],
            &[0xd800],
            &[0xdfff],
            &[0xd800, 0x61],
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..600 {
            let kinds = [3, 5, 8, 10, 14][round % 5];
            let mut text = Vec::new();
            for _ in 0..round / 3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let part = PARTS[(state >> 32) as usize % kinds];
                let times = if state >> 20 & 7 == 0 { 70 } else { 1 };
                text.extend_from_slice(&part.repeat(times));
            }
            check(&text, |character| character as u8);
            check(&text, |character| character as u16);
            check(&text, |character| character);
        }
    }
}
