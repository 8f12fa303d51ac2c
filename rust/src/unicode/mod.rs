//! The four classes of characters that GPT-2's split pattern tells apart, as of Unicode 16.0.

mod table;
pub mod utf8;

use crate::unicode::table::{BLOCKS, INDEX};

/// What the split pattern sees in a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// `[^\s\p{L}\p{N}]`: punctuation, symbols, marks, controls, and bytes that are not UTF-8.
    Other = 0,
    /// `\p{L}`
    Letter = 1,
    /// `\p{N}`
    Number = 2,
    /// `\s`
    Space = 3,
}

/// The class of a code point.
#[inline(always)]
pub fn class_of(code_point: u32) -> Class {
    const CLASSES: [Class; 4] = [Class::Other, Class::Letter, Class::Number, Class::Space];
    let two_bits = match LOW.0.get(code_point as usize >> 2) {
        Some(four) => four >> ((code_point & 3) * 2),
        None => two_bits_of(code_point),
    };
    CLASSES[two_bits as usize & 3]
}

/// From the generated table: the class in the low two bits.
const fn two_bits_of(code_point: u32) -> u8 {
    let block = (code_point >> 8) as usize;
    let last = INDEX.len() - 1;
    let index = INDEX[if block < last { block } else { last }] as usize;
    let offset = (code_point & 0xff) as usize;
    BLOCKS[index][offset >> 2] >> ((offset & 3) * 2)
}

/// The same for code points below U+10000 without the index: nearly all text finds its class with one load.
pub static LOW: Low = Low(low());

/// Its bytes, four classes in each, to be read four bytes at a time as well.
#[repr(C, align(64))]
pub struct Low(pub [u8; 1 << 14]);

const fn low() -> [u8; 1 << 14] {
    let mut table = [0; 1 << 14];
    let mut four = 0;
    while four < table.len() {
        let offset = four & 63;
        table[four] = BLOCKS[INDEX[four >> 6] as usize][offset];
        four += 1;
    }
    table
}

/// The class of an ASCII character, and `NON_ASCII` for the bytes above.
pub static ASCII: [u8; 256] = ascii();

/// The entry of [`ASCII`] for a byte that starts or continues a longer character.
pub const NON_ASCII: u8 = 4;

const fn ascii() -> [u8; 256] {
    let mut table = [NON_ASCII; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter as u8,
            b'0'..=b'9' => Class::Number as u8,
            b' ' | b'\t'..=b'\r' => Class::Space as u8,
            _ => Class::Other as u8,
        };
        byte += 1;
    }
    table
}

/// The character at the start of `bytes`: its class and its length in bytes, `(Other, 1)` where it is not UTF-8.
///
/// A byte that is no part of a valid character counts as one character of its own, classed as U+FFFD would be.
#[inline(always)]
pub fn decode(bytes: &[u8]) -> (Class, usize) {
    // Zeros after the end are no continuation bytes.
    let word = match bytes.first_chunk::<4>() {
        Some(word) => u32::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)),
    };
    let bits = |shift: u32, mask: u32| word >> shift & mask;
    // The marks of the first byte and of the continuation bytes, all in one comparison.
    if word & 0xc0e0 == 0x80c0 {
        let code_point = bits(0, 0x1f) << 6 | bits(8, 0x3f);
        if code_point >= 0x80 {
            return (class_of(code_point), 2);
        }
    } else if word & 0x00c0_c0f0 == 0x0080_80e0 {
        let code_point = bits(0, 0x0f) << 12 | bits(8, 0x3f) << 6 | bits(16, 0x3f);
        if code_point >= 0x800 && code_point & 0xf800 != 0xd800 {
            return (class_of(code_point), 3);
        }
    } else if word & 0xc0c0_c0f8 == 0x8080_80f0 {
        let code_point = bits(0, 0x07) << 18 | bits(8, 0x3f) << 12 | bits(16, 0x3f) << 6 | bits(24, 0x3f);
        if (0x10000..0x110000).contains(&code_point) {
            return (class_of(code_point), 4);
        }
    } else if word & 0x80 == 0 {
        return (class_of(word & 0x7f), 1);
    }
    (Class::Other, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_agrees_with_the_table() {
        for byte in 0..128u8 {
            assert_eq!(ASCII[byte as usize], class_of(u32::from(byte)) as u8, "{byte:#x}");
        }
    }

    #[test]
    fn decode_agrees_with_char() {
        for code_point in 0..0x110000u32 {
            if let Some(character) = char::from_u32(code_point) {
                let mut buffer = [0; 4];
                let text = character.encode_utf8(&mut buffer);
                assert_eq!(decode(text.as_bytes()), (class_of(code_point), text.len()));
            }
        }
    }

    #[test]
    fn decode_finds_what_utf8_refuses() {
        // Every sequence of up to four bytes drawn from the borders of UTF-8's ranges.
        const EDGES: [u8; 14] = [0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0xa0, 0xbf, 0xc1, 0xc2, 0xe0, 0xed, 0xf0, 0xf4];
        for number in 0..EDGES.len().pow(4) {
            let bytes: Vec<u8> = (0..4).map(|i| EDGES[number / EDGES.len().pow(i) % EDGES.len()]).collect();
            let valid = (1..=4).find(|&n| std::str::from_utf8(&bytes[..n]).is_ok_and(|s| s.chars().count() == 1));
            assert_eq!(decode(&bytes).1, valid.unwrap_or(1), "{bytes:x?}");
        }
    }

    #[test]
    fn a_few_classes() {
        for (character, class) in
            [('é', Class::Letter), ('٣', Class::Number), ('Ⅷ', Class::Number), ('²', Class::Number)]
        {
            assert_eq!(class_of(character as u32), class);
        }
        for character in "\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{3000}".chars() {
            assert_eq!(class_of(character as u32), Class::Space);
        }
        for character in "\u{200b}\u{180e}\u{feff}_'\u{301}".chars() {
            assert_eq!(class_of(character as u32), Class::Other);
        }
        assert_eq!(class_of(0x10ffff), Class::Other);
    }
}
