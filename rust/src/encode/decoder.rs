//! Ids back to bytes.
//!
//! A token is copied as 16 bytes, whatever its length: one load and one store instead of a call that copies a few bytes.

use crate::vocabulary::Vocabulary;
use std::mem::MaybeUninit;

/// Tokens of up to this many bytes, nearly all, are copied as so many: one load and one store.
const AT_ONCE: usize = 16;

/// The first bytes of every token, and its length.
pub struct Decoder {
    tokens: Vec<([u8; AT_ONCE], u32)>,
}

impl Decoder {
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let token = |id: u32| {
            let token = vocabulary.token(id).unwrap_or_default();
            let mut head = [0; AT_ONCE];
            let inside = token.len().min(AT_ONCE);
            head[..inside].copy_from_slice(&token[..inside]);
            (head, token.len() as u32)
        };
        Self { tokens: (0..vocabulary.len() as u32).map(token).collect() }
    }

    /// How many bytes the tokens are.
    ///
    /// # Errors
    /// The position of the first id that is not in the vocabulary.
    pub fn length(&self, ids: &[u32]) -> Result<usize, usize> {
        let mut length = 0;
        for (position, &id) in ids.iter().enumerate() {
            length += self.tokens.get(id as usize).ok_or(position)?.1 as usize;
        }
        Ok(length)
    }

    /// Write the bytes of the tokens to the beginning of `out`; their number. What comes after them may be written, too.
    ///
    /// # Panics
    /// Where `out` is shorter than the [`Decoder::length`] of the ids.
    pub fn write(&self, vocabulary: &Vocabulary, ids: &[u32], out: &mut [MaybeUninit<u8>]) -> usize {
        let mut at = 0;
        for &id in ids {
            let (head, length) = &self.tokens[id as usize];
            let length = *length as usize;
            match out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<AT_ONCE>()) {
                Some(target) if length <= AT_ONCE => *target = head.map(MaybeUninit::new),
                _ => {
                    let token = vocabulary.token(id).unwrap_or_default();
                    for (target, &byte) in out[at..at + length].iter_mut().zip(token) {
                        target.write(byte);
                    }
                }
            }
            at += length;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    #[test]
    fn tokens_of_every_length() {
        let words: Vec<String> = (2..40).map(|length| "ab".repeat(length)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let vocabulary = Vocabulary::parse(vocabulary_json(&words).as_bytes(), b"", &[]).expect("good");
        let decoder = Decoder::new(&vocabulary);
        for last in 0..vocabulary.len() as u32 {
            let ids: Vec<u32> = (0..last).map(|id| id * 7 % vocabulary.len() as u32).chain([last]).collect();
            let expected: Vec<u8> = ids.iter().flat_map(|&id| vocabulary.token(id).expect("an id").to_vec()).collect();
            let mut out = vec![MaybeUninit::new(0); decoder.length(&ids).expect("ids")];
            assert_eq!(decoder.write(&vocabulary, &ids, &mut out), out.len());
            // SAFETY: initialised twice.
            let out: Vec<u8> = out.into_iter().map(|byte| unsafe { byte.assume_init() }).collect();
            assert_eq!(out, expected);
        }
        assert_eq!(decoder.length(&[0u32, 1, 5000]), Err(2));
    }
}
