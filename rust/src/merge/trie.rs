//! The longest token that a text begins with: a tree of all beginnings of tokens.
//!
//! The branches of all nodes are in one table, open addressing at most half full, by node and byte. Nodes 0 to 255 are
//! the single bytes, so the first step needs no look-up.

use crate::memory::table::Table;

/// The tree; never changed after loading.
pub struct Trie {
    /// `key << 32 | node that it leads to`, zero where there is none.
    branches: Table<u64>,
    shift: u32,
    /// The longest token at or above each node.
    longest: Vec<u32>,
    /// By token: the longest token that is a beginning of it and not all of it.
    shorter: Vec<u32>,
}

/// Where a tree is made.
pub struct Builder {
    tree: Trie,
    parents: Vec<u32>,
}

const MANY: u64 = 0x9e37_79b9_7f4a_7c15;

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
        let mut slot = (key.wrapping_mul(MANY) >> self.shift) as usize;
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
    /// A tree of single bytes, with room for so many bytes of further tokens.
    pub fn new(tokens: usize, byte_ids: &[u32; 256]) -> Self {
        let slots = (4 * tokens).next_power_of_two().max(256);
        let tree = Trie {
            branches: Table::new(slots),
            shift: 64 - slots.trailing_zeros(),
            longest: byte_ids.to_vec(),
            shorter: vec![Trie::NONE; tokens],
        };
        Self { tree, parents: vec![0; 256] }
    }

    pub fn insert(&mut self, token: &[u8], id: u32) {
        let mut node = u32::from(token[0]);
        for &byte in &token[1..] {
            let key = key(node, byte);
            node = match self.tree.find(key) {
                Ok(next) => next,
                Err(slot) => {
                    let next = self.parents.len() as u32;
                    let slot = if 2 * self.parents.len() < self.tree.branches.len() { slot } else { self.grow(key) };
                    self.tree.branches[slot] = key << 32 | u64::from(next);
                    self.parents.push(node);
                    self.tree.longest.push(Trie::NONE);
                    next
                }
            };
        }
        self.tree.longest[node as usize] = id;
    }

    /// Twice as many slots; the one for a new key.
    #[cold]
    fn grow(&mut self, key: u64) -> usize {
        let more = Table::new(2 * self.tree.branches.len());
        self.tree.shift -= 1;
        for &branch in std::mem::replace(&mut self.tree.branches, more).iter().filter(|&&branch| branch != 0) {
            if let Err(slot) = self.tree.find(branch >> 32) {
                self.tree.branches[slot] = branch;
            }
        }
        self.tree.find(key).map_or_else(|slot| slot, |_| 0)
    }

    pub fn finish(mut self) -> Trie {
        let Trie { longest, shorter, .. } = &mut self.tree;
        // Parents come before their children, so what is above a node is known when the node is reached.
        for (node, &parent) in self.parents.iter().enumerate().skip(256) {
            let above = longest[parent as usize];
            match longest[node] {
                Trie::NONE => longest[node] = above,
                token => shorter[token as usize] = above,
            }
        }
        self.tree
    }
}
