//! The longest token that a text begins with: a trie of all beginnings of tokens.
//!
//! The branches of all nodes are in one table, open addressing at most half full, by node and byte. Nodes 0 to 255 are
//! the single bytes, so the first step needs no look-up. A branch has 24 bits for its node: a vocabulary that would take
//! more nodes has no trie, and is merged by heap.

use crate::memory::Table;

/// The trie; never changed after loading.
pub struct Trie {
    /// `key << 32 | node that it leads to`, zero where there is none.
    branches: Table<u64>,
    shift: u32,
    /// The longest token at or above each node.
    longest: Vec<u32>,
    /// By token: the longest token that is a beginning of it and not all of it.
    shorter: Vec<u32>,
}

/// Where a trie is made.
pub struct Builder {
    trie: Trie,
    parents: Vec<u32>,
    /// Nodes that there may be.
    most: usize,
}

/// Spreads keys over the slots.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The last node's number and one leave a key of 32 bits.
const MOST_NODES: usize = (1 << 24) - 1;

/// Of a branch; never zero.
#[inline(always)]
fn key(node: u32, byte: u8) -> u64 {
    (u64::from(node) << 8 | u64::from(byte)) + 1
}

impl Trie {
    /// No token.
    pub const NONE: u32 = u32::MAX;

    /// The node that a branch leads to, or the slot where it belongs.
    #[inline(always)]
    fn find(&self, key: u64) -> Result<u32, usize> {
        let mut slot = (key.wrapping_mul(MULTIPLIER) >> self.shift) as usize;
        loop {
            let found = self.branches[slot];
            if found >> 32 == key {
                return Ok(found as u32);
            }
            if found == 0 {
                return Err(slot);
            }
            slot = (slot + 1) & (self.branches.len() - 1);
        }
    }

    /// The longest token that `text`, which is not empty, begins with.
    #[inline(always)]
    pub fn longest(&self, text: &[u8]) -> u32 {
        let mut node = u32::from(text[0]);
        for &byte in &text[1..] {
            match self.find(key(node, byte)) {
                Ok(next) => node = next,
                Err(_) => break,
            }
        }
        self.longest[node as usize]
    }

    /// The longest token that `token` begins with and is not, [`Trie::NONE`] for a single byte.
    #[inline(always)]
    pub fn shorter(&self, token: u32) -> u32 {
        self.shorter[token as usize]
    }
}

impl Builder {
    /// A trie of single bytes, with room for so many bytes of further tokens.
    pub fn new(tokens: usize, byte_ids: &[u32; 256]) -> Self {
        let slots = (4 * tokens).next_power_of_two().max(256);
        let trie = Trie {
            branches: Table::new(slots),
            shift: 64 - slots.trailing_zeros(),
            longest: byte_ids.to_vec(),
            shorter: vec![Trie::NONE; tokens],
        };
        Self { trie, parents: vec![0; 256], most: MOST_NODES }
    }

    /// Add a token; false where the nodes are too many.
    #[must_use]
    pub fn insert(&mut self, token: &[u8], id: u32) -> bool {
        if self.parents.len() + token.len() > self.most {
            return false;
        }
        let mut node = u32::from(token[0]);
        for &byte in &token[1..] {
            let key = key(node, byte);
            node = match self.trie.find(key) {
                Ok(next) => next,
                Err(slot) => {
                    let next = self.parents.len() as u32;
                    let slot = if 2 * self.parents.len() < self.trie.branches.len() { slot } else { self.grow(key) };
                    self.trie.branches[slot] = key << 32 | u64::from(next);
                    self.parents.push(node);
                    self.trie.longest.push(Trie::NONE);
                    next
                }
            };
        }
        self.trie.longest[node as usize] = id;
        true
    }

    /// Twice as many slots; the one for a new key.
    #[cold]
    fn grow(&mut self, key: u64) -> usize {
        let more = Table::new(2 * self.trie.branches.len());
        self.trie.shift -= 1;
        for &branch in std::mem::replace(&mut self.trie.branches, more).iter().filter(|&&branch| branch != 0) {
            if let Err(slot) = self.trie.find(branch >> 32) {
                self.trie.branches[slot] = branch;
            }
        }
        self.trie.find(key).map_or_else(|slot| slot, |_| 0)
    }

    pub fn finish(mut self) -> Trie {
        let Trie { longest, shorter, .. } = &mut self.trie;
        // Parents come before their children, so what is above a node is known when the node is reached.
        for (node, &parent) in self.parents.iter().enumerate().skip(256) {
            let above = longest[parent as usize];
            match longest[node] {
                Trie::NONE => longest[node] = above,
                token => shorter[token as usize] = above,
            }
        }
        self.trie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        Builder::new(1000, &std::array::from_fn(|byte| byte as u32))
    }

    #[test]
    fn the_longest_token() {
        let mut builder = builder();
        for (token, id) in [("ab", 300), ("abcd", 301), ("b", 98)] {
            assert!(builder.insert(token.as_bytes(), id));
        }
        let trie = builder.finish();
        assert_eq!([b"abcde".as_slice(), b"abc", b"ax", b"x"].map(|text| trie.longest(text)), [301, 300, 97, 120]);
        assert_eq!([301, 300, 97].map(|token| trie.shorter(token)), [300, 97, Trie::NONE]);
    }

    #[test]
    fn too_many_nodes_are_no_trie() {
        let mut builder = builder();
        builder.most = 260;
        assert!(builder.insert(b"abcd", 300));
        assert!(!builder.insert(b"efgh", 301));
        assert_eq!(key(MOST_NODES as u32 - 1, 255) >> 32, 0);
    }
}
