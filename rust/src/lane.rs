//! A short piece that is being merged: the published algorithm on a few cache lines.
//!
//! A bit mask says where tokens begin, so that the one before and the one after are found by counting zeros, and an array
//! holds the rank of every pair, whose minimum is the next merge. A step has one branch, whether there is a merge at
//! all; so the processor runs several lanes side by side as if they were one (`merge.rs`).

use crate::merges::Merges;

/// The largest piece that a [`Lane`] takes.
pub const LARGEST: usize = 62;

/// A piece of less than N bytes that is being merged: places 1 and on are its bytes, the two beside them stay empty.
pub struct Lane<const N: usize> {
    /// The token that begins at a place.
    ids: [u32; 64],
    /// `rank << 6 | place` of the merge of that token and the next one.
    keys: [u32; N],
    /// A bit for each place where a token begins, and for the two empty ones.
    begins: u64,
}

impl<const N: usize> Lane<N> {
    const NONE: u32 = Merges::NONE << 6;

    #[inline(always)]
    pub fn new(piece: &[u8], merges: &Merges) -> Self {
        let mut lane =
            Self { ids: [Merges::NO_TOKEN; 64], keys: [Self::NONE; N], begins: !0 >> (LARGEST - piece.len()) };
        for (id, &byte) in lane.ids[1..].iter_mut().zip(piece) {
            *id = merges.byte_id(byte);
        }
        for ((place, key), pair) in (1..).zip(&mut lane.keys[1..]).zip(piece.windows(2)) {
            *key = merges.rank_of_bytes(pair[0], pair[1]) << 6 | place;
        }
        lane
    }

    /// One merge; false where there is none.
    #[inline(always)]
    pub fn step(&mut self, merges: &Merges) -> bool {
        // `min` of a slice stays a loop of branches; this becomes vector instructions.
        let mut least = [Self::NONE; 16];
        for part in self.keys.chunks_exact(16) {
            for (least, &key) in least.iter_mut().zip(part) {
                *least = if key < *least { key } else { *least };
            }
        }
        let best = least.into_iter().fold(Self::NONE, |a, b| if b < a { b } else { a });
        if best >= Self::NONE {
            return false;
        }
        let at = best as usize & (N - 1);
        let id = merges.product(best >> 6);
        let after = self.begins & (!1 << at);
        let gone = after.trailing_zeros() as usize & (N - 1);
        let next = (after & after.wrapping_sub(1)).trailing_zeros() as usize & 63;
        let previous = 63 - (self.begins & !(!0 << at) | 1).leading_zeros() as usize;
        self.begins ^= 1 << gone;
        self.ids[at] = id;
        self.keys[gone] = Self::NONE;
        self.keys[at] = merges.rank(id, self.ids[next]) << 6 | at as u32;
        self.keys[previous & (N - 1)] = merges.rank(self.ids[previous], id) << 6 | previous as u32;
        true
    }

    /// Append the tokens that begin at `place` or later.
    #[inline(always)]
    pub fn put(&self, place: usize, out: &mut Vec<u32>) {
        let mut begins = self.begins & (!0 << place);
        out.reserve(LARGEST);
        // The last is the empty place behind.
        while begins & (begins - 1) != 0 {
            out.push(self.ids[begins.trailing_zeros() as usize]);
            begins &= begins - 1;
        }
    }

    /// Join the tokens, of a window from `begin` on, to those in `out` from `first` on, which are the encoding of what
    /// comes before `end`; false where the two share no token.
    #[inline(always)]
    pub fn join(&self, begin: usize, end: usize, merges: &Merges, first: usize, out: &mut Vec<u32>) -> bool {
        let (mut index, mut place) = border(&out[first..], merges, end, begin);
        while place < end {
            let token = out[first + index];
            if place >= begin {
                let here = place - begin + 1;
                if self.begins >> here & 1 != 0 && self.ids[here] == token {
                    out.truncate(first + index);
                    self.put(here, out);
                    return true;
                }
            }
            index += 1;
            place += merges.token_len(token);
        }
        if end == 0 {
            self.put(1, out);
        }
        end == 0
    }
}

/// The last of the tokens of `end` bytes that begins at or before `place`: which it is, and where it begins.
#[inline(always)]
pub fn border(tokens: &[u32], merges: &Merges, end: usize, place: usize) -> (usize, usize) {
    let (mut index, mut begin) = (tokens.len(), end);
    while index > 0 && begin > place {
        index -= 1;
        begin -= merges.token_len(tokens[index]);
    }
    (index, begin)
}
