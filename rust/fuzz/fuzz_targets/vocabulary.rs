//! Any two files: they are read or refused, and what is read encodes and decodes.
//!
//! `make fuzz` runs it.

#![no_main]

use _bpe::encode::{Cache, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|files: (&[u8], &[u8], &[u8])| {
    let (vocabulary, merges, text) = files;
    // A vocabulary by chance never holds all bytes, so it is also tried behind a full one.
    let mut json = String::from("{");
    for (id, symbol) in _bpe::vocabulary::byte_symbols().iter().enumerate() {
        json.push_str(&format!("{symbol:?}: {id}, "));
    }
    json.push_str(&String::from_utf8_lossy(vocabulary));
    for vocabulary in [vocabulary, json.as_bytes()] {
        if let Ok(tokenizer) = Tokenizer::new(vocabulary, merges, &[]) {
            let mut ids: Vec<u32> = Vec::new();
            tokenizer.encode(text, &mut Cache::default(), &mut ids);
            let tokens = ids.iter().flat_map(|&id| tokenizer.vocabulary().token(id).expect("a token"));
            assert!(tokens.eq(text));
        }
    }
});
