//! Pieces whose ids come later: room for them is kept in the output, which goes on behind it.
//!
//! What a text brings for the first time is looked for in tables that are not in the processor's caches, and merged in
//! steps of which each waits for the one before. A piece alone waits for all that; some together wait once.

use crate::output::Output;
use crate::words::{Key, SHORT};

/// Room in the output for the ids of a piece of up to 15 bytes, which has as many ids at most.
#[derive(Clone, Copy)]
pub struct Hole {
    pub key: Key,
    pub hash: u64,
    /// Where the output ended when the piece's turn was.
    at: usize,
    pub ids: [u32; SHORT],
    pub count: usize,
}

/// Pieces that are looked up and merged together.
pub const HOLES: usize = 16;

/// The holes of an output, in order.
pub struct Holes {
    holes: [Hole; HOLES],
    count: usize,
}

impl Default for Holes {
    fn default() -> Self {
        Self { holes: [Hole { key: 0, hash: 0, at: 0, ids: [0; SHORT], count: 0 }; HOLES], count: 0 }
    }
}

impl Holes {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Leave room for the ids of a piece; true where there may be no more holes.
    pub fn leave<O: Output>(&mut self, key: Key, hash: u64, out: &mut O) -> bool {
        let hole = &mut self.holes[self.count];
        (hole.key, hole.hash, hole.at) = (key, hash, out.count());
        let room = hole.room();
        out.reserve(room);
        // SAFETY: room was made; what it holds is replaced before anyone sees it.
        unsafe { out.advance(room) };
        self.count += 1;
        self.count == HOLES
    }

    pub fn get(&mut self) -> &mut [Hole] {
        &mut self.holes[..self.count]
    }

    /// Put the ids into the holes, and move together what was put between them.
    pub fn close<O: Output>(&mut self, out: &mut O) {
        let len = out.count();
        let end = out.end();
        let place = |at: usize| unsafe { end.sub(len - at) };
        let mut to = self.holes[0].at;
        for i in 0..self.count {
            let hole = &self.holes[i];
            for (i, &id) in hole.ids[..hole.count].iter().enumerate() {
                unsafe { O::put(place(to + i), id) };
            }
            to += hole.count;
            let from = hole.at + hole.room();
            let next = self.holes[..self.count].get(i + 1).map_or(len, |hole| hole.at);
            unsafe { std::ptr::copy(place(from), place(to), next - from) };
            to += next - from;
        }
        if self.count > 0 {
            unsafe { out.retract(len - to) };
        }
        self.count = 0;
    }
}

impl Hole {
    /// As many bytes as the piece has.
    fn room(&self) -> usize {
        (self.key >> 120) as usize
    }
}
