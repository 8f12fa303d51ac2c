//! The merge loop: a piece as ids of single bytes becomes the ids of its tokens.
//!
//! Of all adjacent pairs that the merges list names, the one with the lowest rank (the leftmost of equals) is merged,
//! until there is none. A piece of up to 256 bytes keeps `rank << 8 | position` of every pair in an array on the stack,
//! whose minimum is the next merge: one vector reduction. Longer pieces are merged window by window (below).
//!
//! # Windows
//! Write `encode(x)` for the tokens of x. A border between two tokens of `encode(x)` was never crossed by a merge, so
//! what is left and right of it came about independently: any run of adjacent tokens is the encoding of its own bytes.
//! Conversely, if every two neighbours of a sequence of tokens are together the encoding of their bytes, the sequence is
//! the encoding of the whole: the first merge to cross one of its borders would, as nothing crossed before, happen in
//! those two neighbours alone as well. So if the encodings of two overlapping windows share a token at the same place,
//! the first window's tokens before it and the second's from it on are exactly the encoding of both together. Where they
//! share none, a larger window is taken, and in the end the whole piece is merged with a heap: n log n at worst.

use crate::merges::Merges;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The largest piece for which positions fit their byte of a key.
const SCAN: usize = 256;
/// Bytes of the first window of a long piece.
const WINDOW: usize = 64;
/// Tokens that end closer than this to the end of a window are not trusted.
const MARGIN: usize = 12;

/// Reusable memory for [`merge`].
#[derive(Default)]
pub struct Scratch {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
    window: Vec<u32>,
    next_window: Vec<u32>,
}

/// Append the tokens of `piece` to `out`.
pub fn merge(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    if piece.len() <= SCAN {
        merge_short(piece, merges, out);
    } else {
        merge_long(piece, merges, scratch, out);
    }
}

/// As [`merge`], for pieces of up to 256 bytes.
#[inline]
pub fn merge_short(piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        return unsafe { by_size_avx2(piece, merges, out) };
    }
    by_size(piece, merges, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn by_size_avx2(piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    by_size(piece, merges, out);
}

#[inline(always)]
fn by_size(piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    match piece.len() {
        0 => {}
        1 => out.push(merges.byte_id(piece[0])),
        2..=16 => scan::<16>(piece, merges, out),
        17..=64 => scan::<64>(piece, merges, out),
        _ => scan::<SCAN>(piece, merges, out),
    }
}

/// Merge a piece of 2 to N bytes; N is a power of two up to 256.
#[inline(always)]
fn scan<const N: usize>(piece: &[u8], merges: &Merges, out: &mut Vec<u32>) {
    const GONE: u32 = u32::MAX;
    const NONE: u32 = Merges::NONE << 8;
    let count = piece.len();
    let mut ids = [0u32; N];
    let mut keys = [GONE; N];
    let mut next = [0u8; N]; // 0 after the last: nothing comes before the first
    let mut previous = [0u8; N];
    for i in 0..count.min(N) {
        ids[i] = merges.byte_id(piece[i]);
        next[i] = (i + 1) as u8;
        previous[i] = i.wrapping_sub(1) as u8;
    }
    next[(count - 1) & (N - 1)] = 0;
    for i in 0..(count - 1).min(N) {
        keys[i] = merges.rank_of_bytes(piece[i], piece[i + 1]) << 8 | i as u32;
    }
    loop {
        // `min` of a slice stays a loop of branches; this becomes vector instructions.
        let mut least = [GONE; 16];
        for part in keys.chunks_exact(16) {
            for (least, &key) in least.iter_mut().zip(part) {
                *least = if key < *least { key } else { *least };
            }
        }
        let best = least.into_iter().fold(GONE, |a, b| if b < a { b } else { a });
        if best >= NONE {
            break;
        }
        let at = best as usize & (N - 1);
        let id = merges.product(best >> 8);
        let gone = next[at] as usize & (N - 1);
        let after = next[gone];
        ids[at] = id;
        next[at] = after;
        keys[gone] = GONE;
        keys[at] = GONE;
        if after != 0 {
            let after = after as usize & (N - 1);
            previous[after] = at as u8;
            keys[at] = merges.rank(id, ids[after]) << 8 | at as u32;
        }
        if at != 0 {
            let before = previous[at] as usize & (N - 1);
            keys[before] = merges.rank(ids[before], id) << 8 | before as u32;
        }
    }
    let mut at = 0;
    loop {
        out.push(ids[at]);
        at = next[at] as usize & (N - 1);
        if at == 0 {
            break;
        }
    }
}

/// Merge a piece of any length window by window; see the top of this file.
#[inline(never)]
fn merge_long(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    let before = out.len();
    let mut window = std::mem::take(&mut scratch.window);
    let mut next = std::mem::take(&mut scratch.next_window);
    let merged = |bytes: &[u8], tokens: &mut Vec<u32>| {
        tokens.clear();
        merge_short(bytes, merges, tokens);
    };
    // `out`, then the tokens of `window`, are the encoding of `piece[..end]`; the window begins at `start`.
    let (mut start, mut end) = (0, WINDOW.min(piece.len()));
    merged(&piece[..end], &mut window);
    let whole = loop {
        if end == piece.len() {
            out.extend_from_slice(&window);
            break true;
        }
        // The last token but the untrusted ones: the next window begins with it.
        let trusted = (end - start).saturating_sub(MARGIN);
        let (mut kept, mut at) = (0, 0);
        while kept + 1 < window.len()
            && at + merges.token_len(window[kept]) + merges.token_len(window[kept + 1]) <= trusted
        {
            at += merges.token_len(window[kept]);
            kept += 1;
        }
        let mut joined = false;
        if kept > 0 {
            let next_start = start + at;
            let next_end = (next_start + WINDOW.max(end - start)).min(piece.len());
            merged(&piece[next_start..next_end], &mut next);
            if next[0] == window[kept] {
                out.extend_from_slice(&window[..kept]);
                std::mem::swap(&mut window, &mut next);
                joined = true;
                start = next_start;
                end = next_end;
                // Back to small windows where a larger one was needed.
                if end - start > WINDOW && end < piece.len() {
                    let small = start + WINDOW;
                    merged(&piece[start..small], &mut next);
                    if next[0] == window[0] {
                        std::mem::swap(&mut window, &mut next);
                        end = small;
                    }
                }
            }
        }
        if !joined {
            let first = window[0];
            let larger = 2 * (end - start);
            if larger > SCAN {
                break false;
            }
            end = (start + larger).min(piece.len());
            merged(&piece[start..end], &mut window);
            if window[0] != first {
                break false;
            }
        }
    };
    scratch.window = window;
    scratch.next_window = next;
    if !whole {
        out.truncate(before);
        merge_by_heap(piece, merges, scratch, out);
    }
}

/// A token of a piece that is being merged, in a list by position.
#[derive(Clone, Copy)]
struct Node {
    id: u32,
    previous: u32,
    next: u32,
    /// The rank of this token's merge with the next one.
    rank: u32,
}

const END: u32 = u32::MAX;

#[inline(never)]
fn merge_by_heap(piece: &[u8], merges: &Merges, scratch: &mut Scratch, out: &mut Vec<u32>) {
    let Scratch { nodes, heap, .. } = scratch;
    nodes.clear();
    heap.clear();
    nodes.extend(piece.iter().enumerate().map(|(i, &byte)| Node {
        id: merges.byte_id(byte),
        previous: (i as u32).wrapping_sub(1),
        next: i as u32 + 1,
        rank: Merges::NONE,
    }));
    let last = nodes.len() - 1;
    nodes[last].next = END;
    for i in 0..last {
        nodes[i].rank = merges.rank(nodes[i].id, nodes[i + 1].id);
        if nodes[i].rank != Merges::NONE {
            heap.push(Reverse((nodes[i].rank, i as u32)));
        }
    }
    while let Some(Reverse((rank, at))) = heap.pop() {
        let node = nodes[at as usize];
        // An entry is current if its token still starts that merge; merged-away tokens have none.
        if node.rank != rank {
            continue;
        }
        let gone = node.next;
        let next = nodes[gone as usize].next;
        nodes[gone as usize].rank = Merges::NONE;
        nodes[at as usize] = Node { id: merges.product(rank), previous: node.previous, next, rank: Merges::NONE };
        if next != END {
            nodes[next as usize].previous = at;
        }
        for left in [node.previous, at] {
            if left == END || nodes[left as usize].next == END {
                continue;
            }
            let right = nodes[left as usize].next;
            let found = merges.rank(nodes[left as usize].id, nodes[right as usize].id);
            nodes[left as usize].rank = found;
            if found != Merges::NONE {
                heap.push(Reverse((found, left)));
            }
        }
    }
    let mut at = 0;
    while at != END {
        out.push(nodes[at as usize].id);
        at = nodes[at as usize].next;
    }
    // A piece of a gigabyte must not hold its memory for ever.
    if nodes.capacity() > 1 << 20 {
        *scratch = Scratch::default();
    }
}
