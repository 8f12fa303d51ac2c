//! GPT-2's tables, made of its list of merges when the crate is built; `src/vocabulary/gpt2.rs` has them.
//!
//! The tables are made by the crate `tables`, and written as the processor that they are for keeps integers.

use std::collections::HashMap;
use std::path::PathBuf;
use tables::merges::Merges;
use tables::symbols;
use tables::words::Words;

const MERGES: &str = "../gpt2fast/data/gpt2/merges.txt";
const SPECIAL: &str = "<|endoftext|>";

fn main() {
    println!("cargo::rerun-if-changed={MERGES}");
    let text = std::fs::read_to_string(MERGES).unwrap_or_else(|error| panic!("{MERGES}: {error}"));

    // Ids follow from the merges: the byte symbols in the order of their code points, then the products.
    let symbols = symbols::byte_symbols();
    let mut by_symbol: Vec<u8> = (0..=255).collect();
    by_symbol.sort_by_key(|&byte| symbols[byte as usize]);
    let mut byte_ids = [0; 256];
    let mut tokens: Vec<Vec<u8>> = by_symbol.iter().map(|&byte| vec![byte]).collect();
    let mut ids: HashMap<String, u32> = HashMap::new();
    for (id, &byte) in (0..).zip(&by_symbol) {
        byte_ids[byte as usize] = id;
        ids.insert(symbols[byte as usize].to_string(), id);
    }
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let mut merges = Merges::with_capacity(lines.clone().count(), byte_ids);
    for line in lines {
        let (left, right) = line.split_once(' ').unwrap_or_else(|| panic!("{MERGES}: {line:?} is no merge"));
        let (product, id) = (format!("{left}{right}"), tokens.len() as u32);
        let (left, right) = (ids[left], ids[right]);
        assert!(merges.push(left, right, id) && ids.insert(product, id).is_none(), "{MERGES}: {line:?} is there twice");
        tokens.push([&*tokens[left as usize], &*tokens[right as usize]].concat());
    }
    let words = Words::new(0, tokens.iter().map(Vec::as_slice).zip(0..));
    tokens.push(SPECIAL.as_bytes().to_vec());
    merges.finish(tokens.iter().map(|token| token.len() as u32));
    // What is written there besides the tables.
    assert!(merges.pairs.homeless.is_empty() && merges.in_order && merges.first_product == Some(256));
    assert!(words.others.shortest == 14 && words.others.longest == 128);

    write("pair_pilots", merges.pairs.pilots.iter().map(|pilot| pilot.to_le_bytes()));
    write("pair_multiplier", [merges.pairs.multiplier.to_le_bytes()]);
    write("pairs", merges.pairs.entries.iter().map(|entry| entry.to_le_bytes()));
    write("list", merges.list.as_flattened().iter().map(|id| id.to_le_bytes()));
    write("byte_ids", merges.byte_ids.map(u32::to_le_bytes));
    write("byte_pairs", merges.byte_pairs.iter().map(|rank| rank.to_le_bytes()));
    write("ages", merges.ages.iter().map(|age| age.to_le_bytes()));
    write("lengths", merges.lengths.iter().map(|length| length.to_le_bytes()));
    write("pilots", words.pilots.iter().map(|pilot| pilot.to_le_bytes()));
    write("entries", words.entries.iter().map(|entry| entry.to_le_bytes()));
    write("long_words", words.others.bytes.iter().map(|byte| byte.to_le_bytes()));
    write("long_slots", words.others.slots.as_flattened().iter().map(|part| part.to_le_bytes()));
    let ends = tokens.iter().scan(0, |end, token| {
        *end += token.len() as u32;
        Some(*end)
    });
    write("offsets", std::iter::once(0).chain(ends).map(u32::to_le_bytes));
    write("bytes", tokens.concat().into_iter().map(u8::to_le_bytes));
}

/// Write a table of integers, given by their bytes from the lowest on.
fn write<const N: usize>(name: &str, values: impl IntoIterator<Item = [u8; N]>) {
    let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let big_endian = variable("CARGO_CFG_TARGET_ENDIAN") == "big";
    let bytes: Vec<u8> = values
        .into_iter()
        .flat_map(|mut value| {
            if big_endian {
                value.reverse();
            }
            value
        })
        .collect();
    let path = PathBuf::from(variable("OUT_DIR")).join(name);
    std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
