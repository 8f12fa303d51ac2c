//! Pieces whose ids come later: room for them is kept in the output, which goes on behind it.
//!
//! What a text brings for the first time is looked for in tables that are not in the processor's caches: a wait for each
//! piece that is looked up alone, one for all that are looked up together, after their lines of memory have been asked for.

use crate::encode::output::Output;
use tables::key::{Key, SHORT_PIECE};

/// Pieces that are looked up together: with 8 text not seen before takes 3 % longer, with 32 no less.
const MOST_DEFERRED: usize = 16;

/// Room in the output for the ids of a piece of up to 15 bytes, which has as many ids at most.
#[derive(Clone, Copy, Default)]
pub struct DeferredPiece {
    pub key: Key,
    /// Of the key.
    pub hash: u64,
    /// Where it begins in the output.
    at: usize,
    ids: [u32; SHORT_PIECE],
    count: usize,
}

impl DeferredPiece {
    /// How many bytes the piece has, and how much room is kept.
    fn room(&self) -> usize {
        (self.key >> 120) as usize
    }

    /// What the piece is filled with: at most as many ids as the piece has bytes.
    #[inline(always)]
    pub fn fill(&mut self, ids: impl ExactSizeIterator<Item = u32>) {
        self.count = ids.len().min(self.room());
        for (to, id) in self.ids.iter_mut().zip(ids) {
            *to = id;
        }
    }
}

/// The deferred of an output, in order.
#[derive(Default)]
pub struct Deferred {
    deferred: [DeferredPiece; MOST_DEFERRED],
    count: usize,
}

impl Deferred {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keep room for the ids of a piece; true where there may be no more deferred.
    pub fn leave<O: Output>(&mut self, key: Key, hash: u64, out: &mut O) -> bool {
        let piece = &mut self.deferred[self.count];
        *piece = DeferredPiece { key, hash, at: out.count(), ..*piece };
        out.reserve(16);
        let end = out.end();
        // SAFETY: room was made, and that of the piece is less.
        unsafe {
            O::put_eight(end, &[0; 8]);
            O::put_eight(end.add(8), &[0; 8]);
            out.advance(piece.room());
        }
        self.count += 1;
        self.count == MOST_DEFERRED
    }

    /// The deferred, to be filled.
    pub fn all(&mut self) -> &mut [DeferredPiece] {
        &mut self.deferred[..self.count]
    }

    /// Put the ids into the deferred, and move together what was put between them.
    pub fn close<O: Output>(&mut self, out: &mut O) {
        let deferred = &self.deferred[..std::mem::take(&mut self.count)];
        let (Some(first), len, end) = (deferred.first(), out.count(), out.end()) else { return };
        let mut to = first.at;
        for (piece, next) in deferred.iter().zip(deferred[1..].iter().map(|piece| piece.at).chain([len])) {
            let from = piece.at + piece.room();
            // SAFETY: `to <= piece.at` and `from <= next <= len`, all of them in the output, which ends at `end`; a piece has
            // room for its ids.
            unsafe {
                let place = |at: usize| end.sub(len - at);
                for (i, &id) in piece.ids[..piece.count].iter().enumerate() {
                    O::put(place(to + i), id);
                }
                to += piece.count;
                std::ptr::copy(place(from), place(to), next - from);
            }
            to += next - from;
        }
        // SAFETY: so many were moved over.
        unsafe { out.retract(len - to) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(length: usize) -> Key {
        (length as Key) << 120 | 0x61
    }

    fn check<O: Output>(mut out: O) -> O {
        let mut deferred = Deferred::default();
        assert!(deferred.is_empty());
        out.extend([1, 2]);
        for (i, length) in [3, 1, 15, 4].into_iter().enumerate() {
            assert!(!deferred.leave(key(length), 7, &mut out));
            out.extend((0..i as u32).map(|id| 100 * id));
        }
        for (piece, count) in deferred.all().iter_mut().zip([3, 1, 2, 1]) {
            assert_eq!(piece.hash, 7);
            piece.fill((0..count).map(|id| 10 + id));
        }
        deferred.close(&mut out);
        assert!(deferred.is_empty());
        deferred.close(&mut out);
        out
    }

    #[test]
    fn what_is_between_moves_together() {
        let expected = [1, 2, 10, 11, 12, 10, 0, 10, 11, 0, 100, 10, 0, 100, 200];
        assert_eq!(check(Vec::<u32>::new()), expected);
        assert_eq!(check(Vec::<u16>::new()), expected.map(|id| id as u16));
        assert_eq!(check(0usize), expected.len());
    }

    #[test]
    fn there_is_an_end_to_deferred_pieces() {
        let (mut deferred, mut out) = (Deferred::default(), Vec::<u32>::new());
        for i in 1..=MOST_DEFERRED {
            assert_eq!(deferred.leave(key(2), 0, &mut out), i == MOST_DEFERRED);
        }
        deferred.all().iter_mut().for_each(|piece| piece.fill([5].into_iter()));
        deferred.close(&mut out);
        assert_eq!(out, [5; MOST_DEFERRED]);
    }
}
