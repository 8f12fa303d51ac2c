//! The tables that encoding reads: of the merges, and of the tokens by their bytes.
//!
//! A crate of its own because two programs make them: the crate's `build.rs`, of GPT-2's list of merges, and the
//! tokenizer, when it loads files. From the top down: [`merges`] has [`pairs`] and the [`trie`]; [`words`] has keys
//! ([`key`]); [`symbols`] are the characters of the files; [`memory`] is what large tables lie in.

pub mod key;
pub mod memory;
pub mod merges;
pub mod pairs;
pub mod symbols;
pub mod trie;
pub mod words;
