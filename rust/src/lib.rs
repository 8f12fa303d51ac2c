//! GPT-2's byte-level BPE tokenizer: the split into pieces, the merge loop, and batches over threads.
//!
//! Nothing here but `py` and what is below it knows Python. The journey of a text: [`characters`] makes UTF-8 of it,
//! [`scan`] cuts that into the pieces of [`pretokenize`], [`encoder`] looks each piece up in [`cache`] and, some at a time
//! ([`holes`]), in [`words`], or merges it ([`merge`]) by the tables of [`vocabulary`]; [`batch`] does so for many texts on
//! many threads, and [`decoder`] goes back. [`jsonl`] reads the texts of corpora.

pub mod batch;
pub mod cache;
pub mod caches;
pub mod characters;
pub mod classify;
pub mod decoder;
pub mod encoder;
mod gpt2;
pub mod holes;
mod join;
pub mod jsonl;
pub mod lane;
pub mod lazy;
pub mod merge;
pub mod merges;
pub mod output;
pub mod pairs;
pub mod prefixes;
pub mod pretokenize;
pub mod scan;
mod symbols;
pub mod table;
pub mod unicode;
mod unicode_table;
pub mod utf8;
pub mod vocabulary;
pub mod words;

#[cfg(feature = "python")]
mod py;
