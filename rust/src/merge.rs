//! The merge loop: a piece as ids of single bytes becomes the ids of its tokens.
//!
//! Of all adjacent pairs that the merges list names, the one with the lowest rank (the leftmost of equals) is merged,
//! until there is none. Short pieces scan for it, long ones keep the pairs in a heap: n log n at worst.

use crate::vocabulary::{Merge, Merges};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Up to this many bytes a scan over all pairs is faster than a heap.
const SCAN: usize = 48;

/// Reusable memory for [`merge`].
#[derive(Default)]
pub struct Scratch {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A token of a piece that is being merged, in a list by position.
#[derive(Clone, Copy)]
struct Node {
    id: u32,
    previous: u32,
    next: u32,
    /// The merge of this token with the next one, if there is one.
    merge: Merge,
}

const NONE: u32 = u32::MAX;

/// Append the tokens of `piece` to `out`.
pub fn merge(piece: &[u8], byte_ids: &[u32; 256], merges: &Merges, scratch: &mut Scratch, mut out: impl FnMut(u32)) {
    match piece.len() {
        0 => {}
        1 => out(byte_ids[piece[0] as usize]),
        2..=SCAN => {
            let mut ids = [0u32; SCAN];
            let mut pairs = [Merge::NONE; SCAN];
            let mut count = piece.len();
            for (id, &byte) in ids.iter_mut().zip(piece) {
                *id = byte_ids[byte as usize];
            }
            for i in 0..count - 1 {
                pairs[i] = merges.get(ids[i], ids[i + 1]);
            }
            loop {
                let mut best = Merge::NONE;
                let mut at = 0;
                for (i, &pair) in pairs[..count - 1].iter().enumerate() {
                    if pair.rank < best.rank {
                        best = pair;
                        at = i;
                    }
                }
                if best.rank == Merge::NONE.rank {
                    break;
                }
                ids[at] = best.id;
                ids.copy_within(at + 2..count, at + 1);
                pairs.copy_within(at + 1..count - 1, at);
                count -= 1;
                if at > 0 {
                    pairs[at - 1] = merges.get(ids[at - 1], ids[at]);
                }
                if at + 1 < count {
                    pairs[at] = merges.get(ids[at], ids[at + 1]);
                } else if count == 1 {
                    break;
                }
            }
            ids[..count].iter().for_each(|&id| out(id));
        }
        _ => merge_long(piece, byte_ids, merges, scratch, out),
    }
}

fn merge_long(piece: &[u8], byte_ids: &[u32; 256], merges: &Merges, scratch: &mut Scratch, mut out: impl FnMut(u32)) {
    let Scratch { nodes, heap } = scratch;
    nodes.clear();
    heap.clear();
    nodes.extend(piece.iter().enumerate().map(|(i, &byte)| Node {
        id: byte_ids[byte as usize],
        previous: (i as u32).wrapping_sub(1),
        next: i as u32 + 1,
        merge: Merge::NONE,
    }));
    let last = nodes.len() - 1;
    nodes[last].next = NONE;
    for i in 0..last {
        nodes[i].merge = merges.get(nodes[i].id, nodes[i + 1].id);
        if nodes[i].merge.rank != Merge::NONE.rank {
            heap.push(Reverse((nodes[i].merge.rank, i as u32)));
        }
    }
    while let Some(Reverse((rank, at))) = heap.pop() {
        let node = nodes[at as usize];
        // An entry is current if its token still starts that merge; merged-away tokens have none.
        if node.merge.rank != rank {
            continue;
        }
        let gone = node.next;
        let next = nodes[gone as usize].next;
        nodes[gone as usize].merge = Merge::NONE;
        nodes[at as usize] = Node { id: node.merge.id, previous: node.previous, next, merge: Merge::NONE };
        if next != NONE {
            nodes[next as usize].previous = at;
        }
        for left in [node.previous, at] {
            if left == NONE || nodes[left as usize].next == NONE {
                continue;
            }
            let right = nodes[left as usize].next;
            let found = merges.get(nodes[left as usize].id, nodes[right as usize].id);
            nodes[left as usize].merge = found;
            if found.rank != Merge::NONE.rank {
                heap.push(Reverse((found.rank, left)));
            }
        }
    }
    let mut at = 0;
    while at != NONE {
        out(nodes[at as usize].id);
        at = nodes[at as usize].next;
    }
    // A piece of a gigabyte must not hold its memory for ever.
    if nodes.capacity() > 1 << 20 {
        *scratch = Scratch::default();
    }
}
