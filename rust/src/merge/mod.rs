//! A piece of bytes becomes the ids of its tokens.
//!
//! The published algorithm: of all adjacent pairs that the merges list names, the one with the lowest rank (the leftmost
//! of equals) is merged, until there is none. [`merge_by_heap`] does that in n log n steps, for any list of merges.
//!
//! # Windows
//! Write `encode(x)` for the tokens of x. A border between two tokens of `encode(x)` was never crossed by a merge, so
//! what is left and right of it came about independently: any run of adjacent tokens is the encoding of its own bytes.
//! Conversely, if every two neighbours of a sequence of tokens are together the encoding of their bytes, the sequence is
//! the encoding of the whole: the first merge to cross one of its borders would, as nothing crossed before, happen in
//! those two neighbours alone as well. So if the encodings of two overlapping windows share a token at the same place,
//! the first window's tokens before it and the second's from it on are exactly the encoding of both together.
//!
//! [`merge`] takes pieces of up to 62 bytes as one window ([`crate::merge::window`]), longer ones four windows at a time.
//!
//! # Without merging
//! Windows of a run (`=====…`, with tokens as long as they are) share no token; there the text is searched through. By
//! the above, any sequence of tokens of which every two neighbours stay apart ([`Merges::stay_apart`]) is the one right
//! encoding, however it was found. [`search`] looks for it from left to right: the longest token that the rest begins
//! with and that stays apart from the one before, and where none does, back by one token. A place from which nothing
//! goes on is remembered: the tokens up to a place are its encoding whatever follows, so coming back to it would end the
//! same way. So no place is gone on from twice: linear. The idea and its proof are those of the crate `bpe` of GitHub's
//! rust-gems (<https://github.com/github/rust-gems/tree/main/crates/bpe>). Where the list of merges has one before those
//! that make its own tokens, `stay_apart` cannot tell, and [`merge_by_heap`] does the same work; nobody trains such lists.
//!
//! Performance notes (30 November 2026), one thread, a million bytes in one piece, MB/s:
//! - One window of 64 bytes at a time, its tokens a linked list, pairs looked up in a table with probing behind a
//!   filter: 33 of random letters, 31 digits, 54 mixed case, 74 Chinese, 40 of one letter; 6 of `=`, where windows grew.
//! - Search alone, without windows: 20, 17, 27, 47, 172; 162 of `=`. It looks at two candidates a token and six pairs,
//!   and the processor guesses each of these branches wrongly half of the time.
//! - Four windows side by side, a bit mask for the list, pairs looked up without a branch, search where
//!   windows do not join: 73, 71, 95, 105, 136; 159 of `=`. Kept.

pub mod window;

#[cfg(target_arch = "x86_64")]
use crate::merge::window::Register;
use crate::merge::window::{border, Keys, Window, LARGEST_WINDOW};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512;
use crate::simd::{level, CpuLevel};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tables::merges::Merges;
use tables::trie::Trie;

/// Reusable memory for [`merge`].
#[derive(Default)]
pub struct Scratch {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, usize)>>,
    window: Vec<u32>,
    /// A bit for each place of a piece from which no tokens go on to its end.
    dead: Vec<u64>,
}

/// Append the tokens of `piece` to `out`.
#[inline]
pub fn merge(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    merge_at(level(), piece, merges, scratch, out);
}

/// As [`merge`], by the instructions of one level.
#[inline]
pub fn merge_at(level: CpuLevel, piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    match level {
        // SAFETY: a level that is there.
        #[cfg(target_arch = "x86_64")]
        CpuLevel::Avx512(level) if piece.len() < Register::PLACES => unsafe { one_avx512(level, piece, merges, out) },
        // SAFETY: as above; AVX-512 comes with AVX2.
        #[cfg(target_arch = "x86_64")]
        CpuLevel::Avx512(_) | CpuLevel::Avx2(_) => unsafe { by_size_avx2(piece, merges, scratch, out) },
        _ => by_size(piece, merges, scratch, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,bmi1,bmi2,lzcnt")]
fn one_avx512(level: Avx512, piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    one::<Register>(level, piece, merges, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn by_size_avx2(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    by_size(piece, merges, scratch, out);
}

#[inline(always)]
fn by_size(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    match piece.len() {
        0..=15 => one::<[u32; 16]>((), piece, merges, out),
        16..=31 => one::<[u32; 32]>((), piece, merges, out),
        32..=LARGEST_WINDOW => one::<[u32; 64]>((), piece, merges, out),
        _ => merge_long(piece, merges, scratch, out),
    }
}

#[inline(always)]
fn one<K: Keys>(level: K::Level, piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    let mut window = Window::<K>::new(level, piece, merges);
    while window.step(merges) {}
    window.put(1, out);
}

/// How many windows of a long piece are merged side by side: while one waits for memory the others go on.
const WINDOWS: usize = 4;
/// From where one window begins to where the next does.
const STRIDE: usize = 46;
/// Bytes that are searched through where two windows share no token.
const SEARCHED: usize = 4096;

/// Merge a piece of any length window by window; see the top of this file.
#[inline(always)]
fn merge_long(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    let first = out.len();
    // The tokens from `first` on are the encoding of `piece[..end]`.
    let mut end = 0;
    while end < piece.len() {
        let (_, from) = border(&out[first..], merges, end, end.saturating_sub(LARGEST_WINDOW - STRIDE));
        let bytes_at = |place: usize| &piece[place.min(piece.len())..(place + LARGEST_WINDOW).min(piece.len())];
        let mut windows: [Window<[u32; 64]>; WINDOWS] =
            std::array::from_fn(|number| Window::new((), bytes_at(from + number * STRIDE), merges));
        let mut busy = [true; WINDOWS];
        while busy != [false; WINDOWS] {
            for (window, busy) in windows.iter_mut().zip(&mut busy) {
                *busy = *busy && window.step(merges);
            }
        }
        for (number, window) in windows.iter().enumerate() {
            let begin = from + number * STRIDE;
            let next_end = (begin + LARGEST_WINDOW).min(piece.len());
            if end == piece.len() {
                return;
            }
            if next_end <= end || !window.join(begin, end, merges, first, out) {
                end = match search_on(piece, end, merges, scratch, first, out) {
                    Some(next_end) => next_end,
                    None => {
                        out.truncate(first);
                        return search(piece, merges, scratch, out);
                    }
                };
                break;
            }
            end = next_end;
        }
    }
}

/// Go on from the tokens from `first` on, which are the encoding of `piece[..end]`, by a larger window.
///
/// Where that ends; None where it cannot be joined to what is there.
#[cold]
fn search_on(
    piece: &[u8],
    end: usize,
    merges: &Merges,
    scratch: &mut Scratch,
    first: usize,
    out: &mut Vec<u32>,
) -> Option<usize> {
    let (index, begin) = border(&out[first..], merges, end, end.saturating_sub(4 * LARGEST_WINDOW));
    let next_end = (begin + SEARCHED).min(piece.len());
    if next_end <= end {
        return None;
    }
    let mut window = std::mem::take(&mut scratch.window);
    window.clear();
    search(&piece[begin..next_end], merges, scratch, &mut window);
    let joined = out.get(first + index).is_none_or(|token| *token == window[0]);
    if joined {
        out.truncate(first + index);
        out.extend_from_slice(&window);
    }
    scratch.window = window;
    joined.then_some(next_end)
}

/// A piece of a gigabyte must not hold its memory for ever.
fn forget_if_large(scratch: &mut Scratch) {
    if scratch.nodes.capacity() > 1 << 20 || scratch.dead.capacity() > 1 << 20 {
        *scratch = Scratch::default();
    }
}

/// As [`merge`], from left to right; see the top of this file.
#[inline(never)]
fn search(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    match merges.trie(piece.len()) {
        Some(prefixes) => search_with(prefixes, piece, merges, scratch, out),
        None => merge_by_heap(piece, merges, scratch, out),
    }
}

fn search_with(trie: &Trie, piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    let dead = &mut scratch.dead;
    dead.clear();
    dead.resize(piece.len() / 64 + 1, 0);
    let first = out.len();
    let mut at = 0;
    while at < piece.len() {
        let mut token = trie.longest(&piece[at..]);
        loop {
            let end = at + merges.token_len(token);
            if dead[end / 64] >> (end % 64) & 1 == 0
                && out[first..].last().is_none_or(|&last| merges.stay_apart(last, token))
            {
                out.push(token);
                at = end;
                break;
            }
            token = trie.shorter(token);
            if token == Trie::NONE {
                dead[at / 64] |= 1 << (at % 64);
                // There is one: the first byte alone is a token, and something goes on from one of its places.
                token = out.pop().unwrap_or_default();
                at -= merges.token_len(token);
            }
        }
    }
    forget_if_large(scratch);
}

/// A token of a piece that is being merged, in a list by position.
#[derive(Clone, Copy)]
struct Node {
    id: u32,
    /// The rank of this token's merge with the next one.
    rank: u32,
    previous: usize,
    next: usize,
}

const END: usize = usize::MAX;

/// As [`merge`], by the published algorithm.
#[inline(never)]
pub fn merge_by_heap(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    if piece.is_empty() {
        return;
    }
    let Scratch { nodes, heap, .. } = scratch;
    nodes.clear();
    heap.clear();
    nodes.extend(piece.iter().enumerate().map(|(i, &byte)| Node {
        id: merges.byte_id(byte),
        rank: Merges::NONE,
        previous: i.wrapping_sub(1),
        next: i + 1,
    }));
    let last = nodes.len() - 1;
    nodes[last].next = END;
    for i in 0..last {
        nodes[i].rank = merges.rank(nodes[i].id, nodes[i + 1].id);
        if nodes[i].rank != Merges::NONE {
            heap.push(Reverse((nodes[i].rank, i)));
        }
    }
    while let Some(Reverse((rank, at))) = heap.pop() {
        let node = nodes[at];
        // An entry is current if its token still starts that merge; merged-away tokens have none.
        if node.rank != rank {
            continue;
        }
        let next = nodes[node.next].next;
        nodes[node.next].rank = Merges::NONE;
        nodes[at] = Node { id: merges.product(rank), rank: Merges::NONE, previous: node.previous, next };
        if next != END {
            nodes[next].previous = at;
        }
        for left in [node.previous, at] {
            if left == END || nodes[left].next == END {
                continue;
            }
            let found = merges.rank(nodes[left].id, nodes[nodes[left].next].id);
            nodes[left].rank = found;
            if found != Merges::NONE {
                heap.push(Reverse((found, left)));
            }
        }
    }
    let mut at = 0;
    while at != END {
        out.push(nodes[at].id);
        at = nodes[at].next;
    }
    forget_if_large(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::levels;
    use crate::vocabulary::gpt2::gpt2;
    use crate::vocabulary::tests::vocabulary_json;
    use crate::vocabulary::Vocabulary;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 33) as usize % limit
        }
    }

    /// All ways, by the published algorithm first.
    fn check(piece: &[u8], merges: &Merges) {
        let scratch = &mut Scratch::default();
        let (mut expected, mut searched, mut merged) = (Vec::new(), Vec::new(), Vec::new());
        merge_by_heap(piece, merges, scratch, &mut expected);
        if let Some(prefixes) = merges.trie(usize::MAX) {
            search_with(prefixes, piece, merges, scratch, &mut searched);
            assert_eq!(searched, expected, "search {:?}", String::from_utf8_lossy(piece));
        }
        merge(piece, merges, scratch, &mut merged);
        assert_eq!(merged, expected, "merge {:?}", String::from_utf8_lossy(piece));
        for level in levels() {
            merged.clear();
            merge_at(level, piece, merges, scratch, &mut merged);
            assert_eq!(merged, expected, "{level:?} {:?}", String::from_utf8_lossy(piece));
        }
    }

    #[test]
    fn any_list_of_merges() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let mut in_order = 0;
        for round in 0..300 {
            let mut tokens: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
            let mut lines: Vec<String> = Vec::new();
            for _ in 0..3 + random.below(20) {
                let (left, right) = (random.below(tokens.len()), random.below(tokens.len()));
                let product = tokens[left].clone() + &tokens[right];
                let line = format!("{} {}", tokens[left], tokens[right]);
                if product.len() <= 70 && !lines.contains(&line) {
                    // Now and then a second merge for the same token.
                    if !tokens.contains(&product) {
                        tokens.push(product);
                    }
                    lines.push(line);
                }
            }
            if round % 3 == 0 {
                let (one, other) = (random.below(lines.len()), random.below(lines.len()));
                lines.swap(one, other);
            }
            let products: Vec<&str> = tokens[3..].iter().map(String::as_str).collect();
            let vocabulary = vocabulary_json(&products);
            let vocabulary = Vocabulary::parse(vocabulary.as_bytes(), lines.join("\n").as_bytes(), &[]).expect("good");
            in_order += usize::from(vocabulary.merges().in_order());
            for length in [0, 1, 2, 5, 15, 16, 31, 32, 61, 62, 63, 64, 107, 108, 109, 200, 300, 9000] {
                let letters = 1 + random.below(3);
                let piece: Vec<u8> = (0..length).map(|_| b"abc"[random.below(letters)]).collect();
                check(&piece, vocabulary.merges());
            }
        }
        assert!((200..300).contains(&in_order), "{in_order}");
    }

    #[test]
    fn gpt2s_merges() {
        let (vocabulary, _) = gpt2();
        let mut random = Random(0x0fed_cba9_8765_4321);
        let alphabets = ["etaoinshrdlu", "0123456789", "=", "a", "=-", "ÃÂ", "漢字仮名", " _*", "ab"];
        for round in 0..500 {
            let alphabet: Vec<char> = alphabets[round % alphabets.len()].chars().collect();
            let mut piece = String::new();
            for _ in 0..random.below(1 << (3 + round % 9)) {
                // Runs, so that windows cannot always be joined.
                let run = 1 + random.below(if round % 2 == 0 { 1 } else { 200 });
                piece.extend(std::iter::repeat_n(alphabet[random.below(alphabet.len())], run));
            }
            check(piece.as_bytes(), vocabulary.merges());
        }
    }
}
