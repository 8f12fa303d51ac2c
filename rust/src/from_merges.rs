//! A vocabulary whose ids follow from its merges, as GPT-2's do: read in a few milliseconds from merges.txt alone.
//!
//! Performance notes (30 November 2026): GPT-2's list took 9 to 13 ms with a table of its own for the tokens read so
//! far and the tree of `prefixes.rs` made at once; the tree alone is 5 ms. Tokens looked up in the table that encoding
//! uses afterwards, by the bytes packed into one key, and the tree left until a text needs it: 5 to 7. Some lines read
//! ahead so that their table lines are fetched: 4.4, most of it memory touched for the first time.

use crate::merges::Merges;
use crate::vocabulary::{byte_symbols, Vocabulary, VocabularyError};
use crate::words::Words;

/// Lines that are read together.
const BATCH: usize = 32;
/// No byte.
const NONE: u16 = 256;

/// The vocabulary and its table of words: the 256 byte symbols in the order of their code points, the products in the
/// order of the merges, then `special`.
///
/// The caller vouches that every token is the encoding of its own bytes.
///
/// # Errors
/// Names the line where the text is not such a list of merges.
pub fn from_merges(text: &[u8], special: &str) -> Result<(Vocabulary, Words), VocabularyError> {
    let symbols = byte_symbols();
    let mut byte_of = [NONE; 0x144];
    let mut by_symbol: Vec<u8> = (0..=255).collect();
    by_symbol.sort_by_key(|&byte| symbols[byte as usize]);
    let count = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let mut words = Words::with_capacity(256 + count);
    let mut byte_ids = [0; 256];
    for (id, &byte) in (0..).zip(&by_symbol) {
        byte_ids[byte as usize] = id;
        byte_of[symbols[byte as usize] as usize] = u16::from(byte);
        words.insert(&[byte], id);
    }
    let mut merges = Merges::with_capacity(count, byte_ids);
    // A token has no more bytes than its line; behind the last one there is room for a key to be read.
    let mut bytes = by_symbol;
    bytes.resize(256 + text.len() + 16, 0);
    let mut offsets: Vec<u32> = Vec::with_capacity(256 + count + 2);
    offsets.extend(0..=256);
    let wrong = |line: usize, what: &str| Err(VocabularyError::Merges(format!("line {line} {what}")));
    let mut lines = (1..).zip(text.split(|&byte| byte == b'\n'));
    let mut batch = [(0, 0, 0); BATCH];
    loop {
        // Some lines ahead, so that what is looked up for them is on its way from memory.
        let (mut count, mut start) = (0, *offsets.last().unwrap_or(&256) as usize);
        for (number, line) in &mut lines {
            if line.is_empty() || (number == 1 && line.starts_with(b"#version")) {
                continue;
            }
            let Some((middle, end)) = read_line(line, &byte_of, &mut bytes, start) else {
                return wrong(number, "is not two symbols and one space");
            };
            words.prefetch_key(&bytes, start, middle);
            words.prefetch_key(&bytes, middle, end);
            words.prefetch_key(&bytes, start, end);
            batch[count] = (number, middle, end);
            (count, start) = (count + 1, end);
            if count == BATCH {
                break;
            }
        }
        if count == 0 {
            break;
        }
        for &(number, middle, end) in &batch[..count] {
            let id = offsets.len() as u32 - 1;
            let start = *offsets.last().unwrap_or(&256) as usize;
            let (left, right) = (words.find(&bytes, start, middle), words.find(&bytes, middle, end));
            let (Some(left), Some(right)) = (left, right) else {
                return wrong(number, "merges what no line before makes");
            };
            if id as usize >= Merges::MAX_TOKENS - 1 || !words.insert_new(&bytes, start, end, id) {
                return wrong(number, "makes what is there, or one token too many");
            }
            if !merges.push(left, right, id) {
                return wrong(number, "is there twice");
            }
            offsets.push(end as u32);
        }
    }
    bytes.truncate(*offsets.last().unwrap_or(&256) as usize);
    bytes.extend_from_slice(special.as_bytes());
    let specials = vec![(special.to_owned(), offsets.len() as u32 - 1)];
    offsets.push(bytes.len() as u32);
    merges.finish(offsets.windows(2).map(|pair| pair[1] - pair[0]), true);
    Ok((Vocabulary { bytes, offsets, specials, merges }, words))
}

/// Put the bytes of a line's two symbols at `start`: where the second one's begin and end, None where it is no merge.
#[inline(always)]
fn read_line(line: &[u8], byte_of: &[u16; 0x144], bytes: &mut [u8], start: usize) -> Option<(usize, usize)> {
    let (mut end, mut middle) = (start, None);
    let mut rest = line.iter();
    while let Some(&first) = rest.next() {
        if first == b' ' {
            if middle.replace(end).is_some() {
                return None;
            }
            continue;
        }
        // Byte symbols are of one or two bytes of UTF-8.
        let code_point = match first {
            ..0x80 => usize::from(first),
            0xc2..=0xdf => match rest.next() {
                Some(&next @ 0x80..0xc0) => usize::from(first & 0x1f) << 6 | usize::from(next & 0x3f),
                _ => return None,
            },
            _ => return None,
        };
        match byte_of.get(code_point) {
            Some(&byte) if byte != NONE => bytes[end] = byte as u8,
            _ => return None,
        }
        end += 1;
    }
    middle.filter(|&middle| start < middle && middle < end).map(|middle| (middle, end))
}
