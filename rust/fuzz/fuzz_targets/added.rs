//! Any added tokens in any text: their parts are the text, and a cut where one is allowed changes no id.
//!
//! `make fuzz` runs it.

#![no_main]

use _bpe::encode::added::{Added, AddedToken};
use _bpe::encode::{Cache, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static GPT2: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::gpt2);

fuzz_target!(|input: (Vec<(String, u8)>, bool, &[u8])| {
    let (tokens, prefix_space, text) = input;
    let token = |(i, (text, flags)): (usize, (String, u8))| AddedToken {
        text,
        id: i as u32,
        lstrip: flags & 1 != 0,
        rstrip: flags & 2 != 0,
        single_word: flags & 4 != 0,
        normalized: flags & 8 != 0,
    };
    let tokens = tokens.into_iter().filter(|(text, _)| !text.is_empty()).take(100).enumerate().map(token).collect();
    let tokenizer = GPT2.finding(Added::new(tokens, prefix_space).expect("a few"));
    let encode = |text: &[u8]| {
        let mut ids: Vec<u32> = Vec::new();
        tokenizer.encode(text, &mut Cache::default(), &mut ids);
        ids
    };
    let mut end = 0;
    tokenizer.added().split(text, |place, _| {
        assert_eq!(place.start, end);
        end = place.end;
    });
    assert_eq!(end, text.len());
    let cut = tokenizer.added().last_cut(text);
    assert_eq!([encode(&text[..cut]), encode(&text[cut..])].concat(), encode(text));
});
