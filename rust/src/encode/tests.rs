//! Ids equal to those of merging by hand, the slow way, at every level.

use super::*;
use crate::simd::levels;
use crate::vocabulary::tests::vocabulary_json;
use tables::merges::Merges;

fn tokenizer() -> Tokenizer {
    let json = vocabulary_json(&["ab", "abc", "bc", "Ġa", "zz"]);
    Tokenizer::new(json.as_bytes(), "b c\na b\nab c\nĠ a\n".as_bytes(), &[]).expect("a good vocabulary")
}

fn encode(text: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    tokenizer().encode(text, &mut Cache::default(), &mut out);
    out
}

#[test]
fn merges_go_by_rank() {
    assert_eq!(encode(b"abc"), [97, 258]); // `b c` comes before `a b`, so `abc` is never reached
    assert_eq!(encode(b"ab abab a"), [256, 32, 256, 256, 259]); // `a b` comes before `Ġ a`
    assert_eq!(encode(b"zz"), [122, 122]); // in the vocabulary, but no merge makes it
    assert_eq!(encode(b""), [0u32; 0]);
    assert_eq!(encode(&[255, 0]), [255, 0]);
    assert_eq!(tokenizer().unreachable_tokens(), [257, 260]);
}

/// Merge by hand, the slow way: every round merges the leftmost pair of the lowest rank.
fn by_hand(tokenizer: &Tokenizer, piece: &[u8]) -> Vec<u32> {
    let merges = tokenizer.vocabulary().merges();
    let mut ids: Vec<u32> = piece.iter().map(|&byte| merges.byte_id(byte)).collect();
    while let Some((rank, at)) =
        (1..ids.len()).map(|i| (merges.rank(ids[i - 1], ids[i]), i)).min().filter(|&(rank, _)| rank < Merges::NONE)
    {
        ids[at - 1] = merges.product(rank);
        ids.remove(at);
    }
    ids
}

#[test]
fn pieces_of_every_length_agree_with_the_slow_way() {
    for length in (1..140).chain([255, 256, 257, 258, 300, 511, 512, 513, 1000]) {
        for unit in [&b"abcbcaab"[..], b"a", b"ab", b"zzab", b"bca"] {
            let text: Vec<u8> = unit.iter().copied().cycle().take(length).collect();
            assert_eq!(encode(&text), by_hand(&tokenizer(), &text), "{length}");
        }
    }
}

#[test]
fn where_a_long_piece_is_looks_like_no_short_piece() {
    let tokenizer = tokenizer();
    let more: String = (0..3000).map(|i| format!("{i} ")).collect();
    for end in [16, 64, 4096] {
        let (mut cache, mut out) = (Cache::default(), Vec::<u32>::new());
        for length in 1..=SHORT_PIECE {
            let piece = &((end as Key) << 60).to_le_bytes()[..length];
            tokenizer.encode(piece, &mut cache, &mut out);
        }
        // So many that the cache grows.
        tokenizer.encode(more.as_bytes(), &mut cache, &mut out);
        out.clear();
        tokenizer.encode(&vec![0xff; end], &mut cache, &mut out);
        assert_eq!(out, vec![255; end]);
    }
}

#[test]
fn every_level_counts_and_encodes_the_same() {
    let text =
        "Hello  wörld's 12\n\n\u{3000}漢字, isn't it?  ab\u{a0}a abcabc   verylongwordwithoutanyspaces ".repeat(40);
    let tokenizer = tokenizer();
    let pieces = crate::pretokenize::pieces(text.as_bytes());
    let expected: Vec<u32> = pieces.flat_map(|piece| by_hand(&tokenizer, piece)).collect();
    for level in levels() {
        let (mut wide, mut narrow, mut count) = (Vec::<u32>::new(), Vec::<u16>::new(), 0_usize);
        tokenizer.encode_at(level, text.as_bytes(), &mut Cache::default(), &mut wide);
        assert_eq!(wide, expected, "{level:?}");
        tokenizer.encode_at(level, text.as_bytes(), &mut Cache::default(), &mut narrow);
        assert!(wide.iter().copied().eq(narrow.iter().map(|&id| u32::from(id))), "{level:?}");
        tokenizer.encode_at(level, text.as_bytes(), &mut Cache::default(), &mut count);
        assert_eq!(count, wide.len(), "{level:?}");
    }
}

#[test]
fn ids_by_bytes() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.id_of(b" a"), Some(259));
    assert_eq!(tokenizer.id_of(b"a"), Some(97));
    assert_eq!(tokenizer.id_of(b"zz"), Some(260));
    assert_eq!(tokenizer.id_of(b""), None);
    assert_eq!(tokenizer.id_of(b"nothing like this"), None);
}
