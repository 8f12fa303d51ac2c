//! GPT-2's byte-level BPE tokenizer: the split into pieces, the merge loop, and batches over threads.
//!
//! Nothing here but [`py`] knows Python. The journey of a text: [`text`] makes UTF-8 of it, [`pretokenize`] cuts that into
//! pieces, [`encode`] looks each piece up in its cache and in the [`vocabulary`], or merges it ([`merge`]); [`batch`] does
//! so for many texts on many threads, and [`encode::decoder`] goes back. From the top down:
//!
//! | room | what it is |
//! |---|---|
//! | `py` | the Python module: arguments in, the GIL released round one call, results out |
//! | `batch` | many texts, or one long one, on many threads |
//! | `text` | texts as callers have them: Python's characters, the lines of JSON files |
//! | `encode` | added tokens found in texts; pieces to ids: caches, deferred pieces, where ids are written; and back |
//! | `vocabulary` | tokens by their bytes and ids: GPT-2's, compiled in, and those of files |
//! | `merge` | the merge loop, the table of merges, the trie of tokens |
//! | `pretokenize` | GPT-2's split pattern, one character or 64 bytes at a time |
//! | `unicode` | classes of characters, UTF-8 |
//! | `safetensors` | headers of files of tensors; nothing of the tokenizer's |
//! | `simd` | the levels of processors' instructions, found out once |
//!
//! Below them is the crate [`tables`]: merges, words and what they lie in.

pub mod batch;
pub mod encode;
pub mod merge;
pub mod pretokenize;
pub mod safetensors;
pub mod simd;
pub mod text;
pub mod unicode;
pub mod vocabulary;

#[cfg(feature = "python")]
mod py;
