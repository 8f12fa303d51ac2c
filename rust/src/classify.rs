//! What each level of processors does by vector instructions: 64 bytes at a time as bit masks, a bit for a byte, and pieces
//! as keys.

use crate::words::{self, Key};

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

/// A way of classifying bytes: what the processor can do.
pub trait Level {
    /// # Safety
    /// The processor must have this level's instructions.
    unsafe fn classify(block: &[u8; BLOCK]) -> Ascii;

    /// # Safety
    /// As [`Level::classify`].
    unsafe fn high_bits(block: &[u8; BLOCK]) -> HighBits;

    /// The block of a text's end, of less than 64 bytes, and zeros.
    ///
    /// # Safety
    /// As [`Level::classify`].
    #[inline(always)]
    unsafe fn load(end: &[u8]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..end.len()].copy_from_slice(end);
        block
    }

    /// Write down which bits are set, counted from `from`, in order. Beyond as many as there are, anything is written.
    ///
    /// # Safety
    /// As [`Level::classify`].
    #[inline(always)]
    unsafe fn places(mut bits: u64, from: usize, to: &mut [usize; BLOCK]) {
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

    /// As [`words::pack`].
    ///
    /// # Safety
    /// As [`Level::classify`], and `start < end <= text.len()`.
    #[inline(always)]
    unsafe fn pack(text: &[u8], start: usize, end: usize) -> Key {
        words::pack(text, start, end)
    }

    /// Whether two keys are equal.
    ///
    /// # Safety
    /// As [`Level::classify`].
    #[inline(always)]
    unsafe fn are_equal(one: &Key, other: &Key) -> bool {
        one == other
    }
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

    #[inline(always)]
    unsafe fn high_bits(block: &[u8; BLOCK]) -> HighBits {
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
pub mod x86 {
    //! The same by vector instructions.

    use super::{Ascii, HighBits, Level, BLOCK};
    use crate::words::Key;
    use std::arch::x86_64::*;

    /// SSE2, which every x86-64 processor has.
    pub struct Sse2;
    /// AVX2 (x86-64-v3).
    pub struct Avx2;
    /// AVX-512 with BW, VL and VBMI2.
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

        #[inline(always)]
        unsafe fn high_bits(block: &[u8; BLOCK]) -> HighBits {
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

        #[inline(always)]
        unsafe fn high_bits(block: &[u8; BLOCK]) -> HighBits {
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
        unsafe fn are_equal(one: &Key, other: &Key) -> bool {
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

        #[inline(always)]
        unsafe fn high_bits(block: &[u8; BLOCK]) -> HighBits {
            // SAFETY: the whole block; the caller has AVX-512 BW.
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
        unsafe fn load(end: &[u8]) -> [u8; BLOCK] {
            let mut block = [0; BLOCK];
            // SAFETY: bytes that are masked out are not read; the caller has AVX-512 BW.
            unsafe {
                let bytes = _mm512_maskz_loadu_epi8((1 << (end.len() & 63)) - 1, end.as_ptr().cast());
                _mm512_storeu_si512(block.as_mut_ptr().cast(), bytes);
            }
            block
        }

        #[inline(always)]
        unsafe fn places(bits: u64, from: usize, to: &mut [usize; BLOCK]) {
            // SAFETY: eight places at a time; the caller has AVX-512 VBMI2.
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
        unsafe fn pack(text: &[u8], start: usize, end: usize) -> Key {
            let length = end - start;
            // SAFETY: bytes that are masked out are not read, so it does not matter where the text ends.
            unsafe {
                let bytes = _mm_maskz_loadu_epi8(_bzhi_u32(!0, length as u32) as u16, text.as_ptr().add(start).cast());
                let key = _mm_insert_epi8::<15>(bytes, length as i32);
                (_mm_cvtsi128_si64(key) as u64 as Key) | (_mm_extract_epi64::<1>(key) as u64 as Key) << 64
            }
        }

        #[inline(always)]
        unsafe fn are_equal(one: &Key, other: &Key) -> bool {
            // SAFETY: who has AVX-512 has SSE4.1.
            unsafe { are_equal(one, other) }
        }
    }
}
