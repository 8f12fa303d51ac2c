//! Texts as callers have them: Python's strings by their characters, and the lines and arrays of JSON files.

pub mod characters;
pub mod json_array;
pub mod jsonl;
