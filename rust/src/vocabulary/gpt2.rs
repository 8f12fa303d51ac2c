//! GPT-2's own vocabulary, of the tables that `build.rs` made of its list of merges.
//!
//! They are part of the program: nothing is read or worked out when a process starts, and of the tables only those pages
//! are loaded that are looked at.

use crate::vocabulary::Vocabulary;
use std::borrow::Cow;
use std::collections::HashMap;
use tables::merges::Merges;
use tables::pairs::Pairs;
use tables::words::{Others, Words};

/// A file of `build.rs` as a slice of integers, or of arrays of them; it begins at a line of memory.
macro_rules! table {
    ($name:ident: $type:ty) => {{
        #[repr(C, align(64))]
        struct Lines<T: ?Sized>(T);
        static FILE: &Lines<[u8]> = &Lines(*include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name))));
        let values = FILE.0.as_ptr().cast::<$type>();
        // SAFETY: aligned, integers of this type and this processor's order, as many as fit into the file.
        Cow::Borrowed(unsafe { std::slice::from_raw_parts(values, FILE.0.len() / size_of::<$type>()) })
    }};
}

/// The vocabulary and its words; a test proves that they are what reading and checking both published files comes to.
pub fn gpt2() -> (Vocabulary, Words) {
    let multiplier: Cow<[u64]> = table!(pair_multiplier: u64);
    let pairs = Pairs {
        multiplier: multiplier[0],
        pilots: table!(pair_pilots: u16),
        entries: table!(pairs: u64),
        homeless: HashMap::new(),
    };
    let byte_ids: Cow<[u32]> = table!(byte_ids: u32);
    let merges = Merges {
        pairs,
        list: table!(list: [u32; 2]),
        first_product: Some(256),
        byte_ids: std::array::from_fn(|byte| byte_ids[byte]),
        byte_pairs: table!(byte_pairs: u32),
        ages: table!(ages: u32),
        lengths: table!(lengths: u32),
        in_order: true,
        ..Merges::with_capacity(0, [0; 256])
    };
    let others = Others {
        bytes: table!(long_words: u8),
        slots: table!(long_slots: [u32; 3]),
        seed: 0,
        shortest: 14,
        longest: 128,
    };
    let words = Words { pilots: table!(pilots: u8), entries: table!(entries: u128), others };
    let added = vec![("<|endoftext|>".to_owned(), 50256)];
    (Vocabulary { bytes: table!(bytes: u8), offsets: table!(offsets: u32), added, merges }, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_follows_from_its_merges() {
        let json = include_bytes!("../../../gpt2fast/data/gpt2/vocab.json");
        let merges = include_bytes!("../../../gpt2fast/data/gpt2/merges.txt");
        let read = Vocabulary::parse(json, merges, &[("<|endoftext|>".to_owned(), 50256)]).expect("good");
        let (built, words) = gpt2();
        assert_eq!(built.len(), 50257);
        assert!(built.unreachable().is_empty());
        assert!(words == read.words(0));
        assert!(built.bytes == read.bytes && built.offsets == read.offsets && built.added == read.added);
        let (built, read) = (built.merges(), read.merges());
        assert!(built.pairs == read.pairs);
        assert!(built.list == read.list && built.byte_pairs == read.byte_pairs && built.byte_ids == read.byte_ids);
        assert!(built.products == read.products && built.first_product == read.first_product);
        assert!(built.ages == read.ages && built.lengths == read.lengths && built.in_order == read.in_order);
    }
}
