//! Texts as callers have them: Python's strings by their characters, and the lines of JSON files.

pub mod characters;
pub mod jsonl;
