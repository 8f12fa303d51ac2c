//! Any bytes: the quick split is the slow one, the ids decode to the text, cached and vector code give the same ids; and
//! characters of one or two bytes have the ids of their UTF-8.
//!
//! `make fuzz` runs it.

#![no_main]

use _bpe::text::characters::Characters;
use _bpe::encode::{Cache, Tokenizer};
use _bpe::merge::{merge_by_heap, Scratch};
use _bpe::pretokenize::{pieces, safe_cut};
use _bpe::simd::levels;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::sync::LazyLock;

static GPT2: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::gpt2);

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

fuzz_target!(|text: &[u8]| {
    let mut expected = Vec::new();
    for piece in pieces(text) {
        merge_by_heap(piece, GPT2.vocabulary().merges(), &mut Scratch::default(), &mut expected);
    }
    let mut ids: Vec<u32> = Vec::new();
    CACHE.with_borrow_mut(|cache| GPT2.encode(text, cache, &mut ids));
    assert_eq!(ids, expected);
    assert_eq!(CACHE.with_borrow_mut(|cache| GPT2.count(text, cache)), ids.len());
    for level in levels() {
        let mut ids: Vec<u32> = Vec::new();
        CACHE.with_borrow_mut(|cache| GPT2.encode_at(level, text, cache, &mut ids));
        assert_eq!(ids, expected);
    }
    let decoded: Vec<u8> = ids.iter().flat_map(|&id| GPT2.vocabulary().token(id).expect("a token")).copied().collect();
    assert_eq!(decoded, text);
    let (left, right) = text.split_at(safe_cut(text, text.len() / 2));
    let mut halves: Vec<u32> = Vec::new();
    CACHE.with_borrow_mut(|cache| {
        GPT2.encode(left, cache, &mut halves);
        GPT2.encode(right, cache, &mut halves);
    });
    assert_eq!(halves, expected);
    let latin1: String = text.iter().copied().map(char::from).collect();
    same(Characters::Latin1(text), &latin1);
    let units: Vec<u16> = text.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    same(Characters::Ucs2(&units), &String::from_utf16_lossy(&units));
});

fn same(characters: Characters<'_>, text: &str) {
    let (mut ids, mut expected): (Vec<u32>, Vec<u32>) = Default::default();
    CACHE.with_borrow_mut(|cache| {
        characters.encode(&GPT2, cache, &mut ids);
        GPT2.encode(text.as_bytes(), cache, &mut expected);
    });
    assert_eq!(ids, expected);
}
