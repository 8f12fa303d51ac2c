//! What each level of processors does by vector instructions: 64 bytes at a time as bit masks, a bit for a byte, and pieces
//! as keys.

use crate::simd::Portable;
use crate::unicode::class_of;
use tables::key::{self, Key};

/// Bytes that are looked at together.
pub const BLOCK: usize = 64;

/// The classes of a block of bytes as far as ASCII goes, a bit for a byte.
#[derive(Clone, Copy, Default)]
pub struct Ascii {
    pub letter: u64,
    pub number: u64,
    pub white: u64,
    pub space: u64,
    pub apostrophe: u64,
    /// Bytes of characters above ASCII.
    pub high: u64,
}

/// Bits of bytes that tell how long a character above ASCII is.
#[derive(Clone, Copy, Default)]
pub struct HighBits {
    /// Bytes with the bit 0x40: above ASCII these begin a character, the others go on with one.
    pub six: u64,
    /// Bytes with the bit 0x20: where a character begins, of three or four bytes.
    pub five: u64,
    /// Bytes with the bit 0x10: of four.
    pub four: u64,
}

/// What a level of instructions does; a value of it stands for a processor that has them.
pub trait Level: Copy {
    /// The classes of the block's ASCII bytes.
    fn classify(self, block: &[u8; BLOCK]) -> Ascii;

    /// The upper bits of the block's bytes.
    fn high_bits(self, block: &[u8; BLOCK]) -> HighBits;

    /// The classes of the characters of two and three bytes that begin at the places of two masks and end inside the
    /// block: the low bit and the high bit of each. None where one is written with more bytes than it needs. (Surrogates
    /// are no UTF-8 either, but of class Other like bytes that are not.)
    #[inline(always)]
    fn classes(self, block: &[u8; BLOCK], mut two: u64, mut three: u64) -> Option<[u64; 2]> {
        let (mut low, mut top, mut good) = (0, 0, true);
        let bits = |i: u32, mask: u8| u32::from(block[i as usize & (BLOCK - 1)] & mask);
        let mut add = |i: u32, code_point: u32, least: u32| {
            // No branches on the class: in most scripts they would be taken at random.
            let class = class_of(code_point) as u64;
            low |= (class & 1) << i;
            top |= (class >> 1) << i;
            good &= code_point >= least;
        };
        while two != 0 {
            let i = two.trailing_zeros();
            two &= two - 1;
            add(i, bits(i, 0x1f) << 6 | bits(i + 1, 0x3f), 0x80);
        }
        while three != 0 {
            let i = three.trailing_zeros();
            three &= three - 1;
            add(i, bits(i, 0x0f) << 12 | bits(i + 1, 0x3f) << 6 | bits(i + 2, 0x3f), 0x800);
        }
        good.then_some([low, top])
    }

    /// The block of a text's end, of less than 64 bytes, and zeros.
    #[inline(always)]
    fn load(self, end: &[u8]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..end.len()].copy_from_slice(end);
        block
    }

    /// Write the positions of the bits that are set, in order, counted from `from`. What `to` holds behind them is
    /// undefined.
    #[inline(always)]
    fn places(self, mut bits: u64, from: usize, to: &mut [usize; BLOCK]) {
        // Some at a time, as how many there are cannot be predicted.
        for part in to.chunks_exact_mut(8) {
            for place in part {
                *place = from + bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
            }
            if bits == 0 {
                break;
            }
        }
    }

    /// As [`key::pack`].
    ///
    /// # Panics
    /// Where that is not inside the text, or empty.
    #[inline(always)]
    fn pack(self, text: &[u8], start: usize, end: usize) -> Key {
        key::pack(text, start, end)
    }

    /// Whether two keys are equal.
    #[inline(always)]
    fn are_equal(self, one: &Key, other: &Key) -> bool {
        one == other
    }
}

impl Level for Portable {
    #[inline(always)]
    fn classify(self, block: &[u8; BLOCK]) -> Ascii {
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

    #[inline(always)]
    fn high_bits(self, block: &[u8; BLOCK]) -> HighBits {
        let mut found = HighBits::default();
        for (i, &byte) in block.iter().enumerate() {
            found.six |= u64::from(byte >> 6 & 1) << i;
            found.five |= u64::from(byte >> 5 & 1) << i;
            found.four |= u64::from(byte >> 4 & 1) << i;
        }
        found
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same by vector instructions.

    use super::{Ascii, HighBits, Level, BLOCK};
    use crate::simd::{Avx2, Avx512, Sse2};
    use crate::unicode::LOW;
    use std::arch::x86_64::*;
    use tables::key::Key;

    impl Level for Sse2 {
        #[inline(always)]
        fn classify(self, block: &[u8; BLOCK]) -> Ascii {
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

        #[inline(always)]
        fn high_bits(self, block: &[u8; BLOCK]) -> HighBits {
            let mut found = HighBits::default();
            for part in 0..4 {
                // SAFETY: as above. A shift moves the bit to where a mask is made of it.
                unsafe {
                    let bytes = _mm_loadu_si128(block.as_ptr().add(16 * part).cast());
                    let mask = |x: __m128i| u64::from(_mm_movemask_epi8(x) as u32 as u16) << (16 * part);
                    found.six |= mask(_mm_slli_epi16::<1>(bytes));
                    found.five |= mask(_mm_slli_epi16::<2>(bytes));
                    found.four |= mask(_mm_slli_epi16::<3>(bytes));
                }
            }
            found
        }
    }

    impl Level for Avx2 {
        #[inline(always)]
        fn classify(self, block: &[u8; BLOCK]) -> Ascii {
            let mut found = Ascii::default();
            for part in 0..2 {
                // SAFETY: 32 bytes from one of the block's halves; an `Avx2` is there.
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

        #[inline(always)]
        fn high_bits(self, block: &[u8; BLOCK]) -> HighBits {
            let mut found = HighBits::default();
            for part in 0..2 {
                // SAFETY: as above. A shift moves the bit to where a mask is made of it.
                unsafe {
                    let bytes = _mm256_loadu_si256(block.as_ptr().add(32 * part).cast());
                    let mask = |x: __m256i| u64::from(_mm256_movemask_epi8(x) as u32) << (32 * part);
                    found.six |= mask(_mm256_slli_epi16::<1>(bytes));
                    found.five |= mask(_mm256_slli_epi16::<2>(bytes));
                    found.four |= mask(_mm256_slli_epi16::<3>(bytes));
                }
            }
            found
        }

        #[inline(always)]
        fn are_equal(self, one: &Key, other: &Key) -> bool {
            // SAFETY: who has AVX2 has SSE4.1.
            unsafe { are_equal(one, other) }
        }
    }

    /// # Safety
    /// The processor has SSE4.1.
    #[inline(always)]
    unsafe fn are_equal(one: &Key, other: &Key) -> bool {
        // SAFETY: 16 bytes each.
        unsafe {
            let [one, other] = [one, other].map(|key| _mm_loadu_si128(std::ptr::from_ref(key).cast()));
            let different = _mm_xor_si128(one, other);
            _mm_testz_si128(different, different) == 1
        }
    }

    /// The numbers of a block's bytes.
    static ALL: [u8; BLOCK] = {
        let mut all = [0; BLOCK];
        let mut i = 0;
        while i < BLOCK {
            all[i] = i as u8;
            i += 1;
        }
        all
    };

    impl Level for Avx512 {
        #[inline(always)]
        fn classify(self, block: &[u8; BLOCK]) -> Ascii {
            // SAFETY: the whole block; an `Avx512` is there.
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

        #[inline(always)]
        fn high_bits(self, block: &[u8; BLOCK]) -> HighBits {
            // SAFETY: the whole block; an `Avx512` is there.
            unsafe {
                let bytes = _mm512_loadu_si512(block.as_ptr().cast());
                HighBits {
                    six: _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(0x40)),
                    five: _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(0x20)),
                    four: _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(0x10)),
                }
            }
        }

        #[inline(always)]
        fn classes(self, block: &[u8; BLOCK], two: u64, three: u64) -> Option<[u64; 2]> {
            let begins = two | three;
            // SAFETY: the whole block, and pages of the table; an `Avx512` is there.
            unsafe {
                let bytes = _mm512_loadu_si512(block.as_ptr().cast());
                // The first bytes of these at most 32 characters side by side, their second ones, and their third ones.
                let nth = |nth| _mm512_castsi512_si256(_mm512_maskz_compress_epi8(begins << nth, bytes));
                let [first, second, third] = [nth(0), nth(1), nth(2)];
                let is_two = _mm256_cmplt_epu8_mask(first, _mm256_set1_epi8(0xe0_u8 as i8));
                // Sixty-four code points are a page.
                let [high, low] = [first, second].map(|bytes| _mm512_cvtepu8_epi16(bytes));
                let and = |bits, mask| _mm512_and_si512(bits, _mm512_set1_epi16(mask));
                let page_of_three = _mm512_or_si512(_mm512_slli_epi16::<6>(and(high, 0x0f)), and(low, 0x3f));
                let page = _mm512_mask_blend_epi16(is_two, page_of_three, and(high, 0x1f));
                let least = _mm512_mask_blend_epi16(is_two, _mm512_set1_epi16(0x800 >> 6), _mm512_set1_epi16(2));
                let count = begins.count_ones();
                let there = ((1_u64 << count) - 1) as u32;
                if _mm512_mask_cmplt_epu16_mask(there, page, least) != 0 {
                    return None;
                }
                let between = |from: u16, to: u16| {
                    let offset = _mm512_sub_epi16(page, _mm512_set1_epi16(from as i16));
                    _mm512_cmplt_epu16_mask(offset, _mm512_set1_epi16((to - from) as i16))
                };
                // Of Chinese characters and Korean syllables each is on another page, but all are letters.
                let letters = between(0x4e00 >> 6, 0xa000 >> 6) | between(0xac00 >> 6, 0xd780 >> 6);
                let place = _mm256_and_si256(_mm256_mask_blend_epi8(is_two, third, second), _mm256_set1_epi8(0x3f));
                let four = _mm256_and_si256(_mm256_srli_epi16::<2>(place), _mm256_set1_epi8(0x0f));
                let mut classes = _mm256_set1_epi8(0x55);
                let mut pages = [0_u16; 32];
                _mm512_storeu_si512(pages.as_mut_ptr().cast(), page);
                let mut left = there & !letters;
                while left != 0 {
                    let number = pages[left.trailing_zeros() as usize];
                    let same = left & _mm512_cmpeq_epi16_mask(page, _mm512_set1_epi16(number as i16));
                    let table = LOW.0.as_ptr().add(16 * usize::from(number & 0x3ff));
                    let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                    classes = _mm256_mask_shuffle_epi8(classes, same, table, four);
                    left &= !same;
                }
                // Four classes are in each byte; which of them it is, the place says.
                let bit = |first: i32| {
                    let bits = _mm256_set1_epi32(first.wrapping_mul(0x4010_0401));
                    let wanted = _mm256_and_si256(place, _mm256_set1_epi8(3));
                    u64::from(_mm256_test_epi8_mask(classes, _mm256_shuffle_epi8(bits, wanted)) & there)
                };
                Some([_pdep_u64(bit(1), begins), _pdep_u64(bit(2), begins)])
            }
        }

        #[inline(always)]
        fn load(self, end: &[u8]) -> [u8; BLOCK] {
            let mut block = [0; BLOCK];
            // SAFETY: bytes that are masked out are not read; an `Avx512` is there.
            unsafe {
                let bytes = _mm512_maskz_loadu_epi8((1 << (end.len() & 63)) - 1, end.as_ptr().cast());
                _mm512_storeu_si512(block.as_mut_ptr().cast(), bytes);
            }
            block
        }

        #[inline(always)]
        fn places(self, bits: u64, from: usize, to: &mut [usize; BLOCK]) {
            // SAFETY: eight places at a time; an `Avx512` is there.
            unsafe {
                let all = _mm512_loadu_si512(ALL.as_ptr().cast());
                let mut set = [0u8; BLOCK];
                _mm512_storeu_si512(set.as_mut_ptr().cast(), _mm512_maskz_compress_epi8(bits, all));
                let from = _mm512_set1_epi64(from as i64);
                for (i, places) in to.chunks_exact_mut(8).enumerate() {
                    if i == 4 && bits.count_ones() <= 32 {
                        break;
                    }
                    let eight = _mm512_cvtepu8_epi64(_mm_loadl_epi64(set.as_ptr().add(8 * i).cast()));
                    _mm512_storeu_si512(places.as_mut_ptr().cast(), _mm512_add_epi64(from, eight));
                }
            }
        }

        #[inline(always)]
        fn pack(self, text: &[u8], start: usize, end: usize) -> Key {
            let length = end - start;
            // SAFETY: bytes that are masked out are not read, so it does not matter where the text ends; an `Avx512` is there.
            unsafe {
                let bytes = _mm_maskz_loadu_epi8(_bzhi_u32(!0, length as u32) as u16, text.as_ptr().add(start).cast());
                let key = _mm_insert_epi8::<15>(bytes, length as i32);
                (_mm_cvtsi128_si64(key) as u64 as Key) | (_mm_extract_epi64::<1>(key) as u64 as Key) << 64
            }
        }

        #[inline(always)]
        fn are_equal(self, one: &Key, other: &Key) -> bool {
            // SAFETY: who has AVX-512 has SSE4.1.
            unsafe { are_equal(one, other) }
        }
    }
}
