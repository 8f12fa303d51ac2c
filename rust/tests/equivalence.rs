//! The encoder against the algorithm as it is published: cut, then merge the leftmost pair of the lowest rank until
//! there is none. Everything clever (bit masks, tables, windows, threads) must come to the same ids.

use _bpe::batch::{count_batch, encode_batch};
use _bpe::encode::caches::Caches;
use _bpe::encode::decoder::Decoder;
use _bpe::encode::{Cache, Tokenizer};
use _bpe::pretokenize::pieces;
use _bpe::simd::levels;
use _bpe::text::characters::Characters;
use std::collections::HashMap;

const VOCABULARY: &[u8] = include_bytes!("../../gpt2fast/data/gpt2/vocab.json");
const MERGES: &str = include_str!("../../gpt2fast/data/gpt2/merges.txt");

/// The published algorithm over the symbols of the files themselves.
struct Published {
    symbols: [char; 256],
    ids: HashMap<String, u32>,
    ranks: HashMap<(String, String), usize>,
}

impl Published {
    fn new() -> Self {
        let ids = serde_json::from_slice(VOCABULARY).expect("the published vocabulary");
        let pairs = MERGES.lines().skip(1).filter_map(|line| line.split_once(' '));
        let ranks =
            pairs.enumerate().map(|(rank, (left, right))| ((left.to_owned(), right.to_owned()), rank)).collect();
        Self { symbols: _bpe::vocabulary::byte_symbols(), ids, ranks }
    }

    fn encode(&self, text: &[u8]) -> Vec<u32> {
        pieces(text).flat_map(|piece| self.encode_piece(piece)).collect()
    }

    fn encode_piece(&self, piece: &[u8]) -> Vec<u32> {
        let mut parts: Vec<String> = piece.iter().map(|&byte| self.symbols[byte as usize].to_string()).collect();
        loop {
            let rank = |i: usize| self.ranks.get(&(parts[i].clone(), parts[i + 1].clone()));
            let Some((_, at)) = (0..parts.len() - 1).filter_map(|i| rank(i).map(|rank| (rank, i))).min() else { break };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        parts.iter().map(|part| self.ids[part]).collect()
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % limit
    }
}

fn gpt2() -> Tokenizer {
    Tokenizer::new(VOCABULARY, MERGES.as_bytes(), &[("<|endoftext|>".to_owned(), 50256)]).expect("published files")
}

fn check(tokenizer: &Tokenizer, published: &Published, cache: &mut Cache, text: &[u8]) {
    let expected = published.encode(text);
    let shown = String::from_utf8_lossy(text);
    // Twice: the second time pieces come from the cache.
    for round in 0..2 {
        let mut ids: Vec<u32> = Vec::new();
        tokenizer.encode(text, cache, &mut ids);
        assert_eq!(ids, expected, "round {round} of {shown:?}");
    }
    for level in levels() {
        let mut short: Vec<u16> = Vec::new();
        tokenizer.encode_at(level, text, &mut Cache::default(), &mut short);
        assert!(short.iter().map(|&id| u32::from(id)).eq(expected.iter().copied()), "{level:?}, {shown:?}");
    }
    assert_eq!(tokenizer.count(text, cache), expected.len(), "{shown:?}");
    let decoded = Decoder::new(tokenizer.vocabulary());
    assert_eq!(decoded.length(&expected), Ok(text.len()));
}

#[test]
fn texts_of_words_and_odd_bytes() {
    let (tokenizer, published, mut cache) = (gpt2(), Published::new(), Cache::default());
    let mut random = Random(0x1234_5678_9abc_def1);
    let parts: Vec<&[u8]> = [
        "the",
        " The",
        "ing",
        " don't",
        "'ll",
        "'S",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "é",
        "漢字",
        " Größe",
        "привет",
        "🙂",
        "\u{a0}",
        "\u{3000}",
        "12",
        "٣",
        "½",
        ".",
        "...",
        "=====",
        "--",
        "_",
        "\u{301}",
        "\0",
        "x",
        "q",
        "antidisestablishmentarianism",
    ]
    .iter()
    .map(|part| part.as_bytes())
    .chain([&b"\xff"[..], b"\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80"])
    .collect();
    for _ in 0..300 {
        let mut text = Vec::new();
        for _ in 0..random.below(40) {
            text.extend_from_slice(parts[random.below(parts.len())]);
        }
        check(&tokenizer, &published, &mut cache, &text);
    }
}

#[test]
fn long_pieces() {
    let (tokenizer, published, mut cache) = (gpt2(), Published::new(), Cache::default());
    let mut random = Random(0x0fed_cba9_8765_4321);
    let alphabets = ["a", "ab", "etaoinshr", "0123456789", "=-", "あいう漢", "abcdefghijklmnopqrstuvwxyz", "aé"];
    for alphabet in alphabets {
        let letters: Vec<char> = alphabet.chars().collect();
        for length in [15, 16, 17, 47, 48, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 520] {
            let text: String = (0..length).map(|_| letters[random.below(letters.len())]).collect();
            check(&tokenizer, &published, &mut cache, text.as_bytes());
        }
    }
    // Periodic text is where windows are hardest to join.
    for unit in ["aaaaaaaaaaaaaaab", "ababac", "the", "anan", " \n", "é"] {
        check(&tokenizer, &published, &mut cache, unit.repeat(400 / unit.len()).as_bytes());
    }
}

#[test]
fn bytes_at_random() {
    let (tokenizer, published, mut cache) = (gpt2(), Published::new(), Cache::default());
    let mut random = Random(0x5555_aaaa_1111_7777);
    for _ in 0..200 {
        let length = random.below(150);
        let text: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        check(&tokenizer, &published, &mut cache, &text);
    }
}

#[test]
fn batches_at_random() {
    let (tokenizer, published) = (gpt2(), Published::new());
    let mut random = Random(0x0102_0304_0506_0708);
    let caches = Caches::default();
    let texts: Vec<Vec<u8>> = (0..60)
        .map(|_| {
            (0..random.below(30))
                .flat_map(|_| [b"It's ".as_slice(), b"12", b"\n\n", b" x"][random.below(4)].to_vec())
                .collect()
        })
        .collect();
    let views: Vec<Characters> = texts.iter().map(|text| Characters::Utf8(text)).collect();
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| published.encode(text)).collect();
    for threads in [1, 2, 7] {
        let (ids, offsets) = encode_batch::<u32>(&tokenizer, views.as_slice(), threads, &caches);
        for (pair, expected) in offsets.windows(2).zip(&expected) {
            assert_eq!(&ids[pair[0] as usize..pair[1] as usize], expected.as_slice());
        }
        let counts = count_batch(&tokenizer, views.as_slice(), threads, &caches);
        assert!(counts.iter().zip(&expected).all(|(&count, ids)| count as usize == ids.len()));
    }
}
