//! The table of merges: which pairs of tokens become which token, in what order, and which tokens stand side by side.

use crate::pairs::Pairs;
use crate::trie::{Builder, Trie};
use once_cell::race::OnceBox;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The age of a token that is not the encoding of its bytes.
const NEVER: u32 = u32::MAX;

/// The merges by their pair of ids, and what merging needs of the tokens; never changed after loading.
pub struct Merges {
    pub pairs: Pairs,
    /// The pairs until all are known.
    pub pushed: HashSet<[u32; 2]>,
    /// Left and right token by rank.
    pub list: Cow<'static, [[u32; 2]]>,
    /// The token that each makes; empty where they follow one by one.
    pub products: Vec<u32>,
    /// The product of rank 0 then.
    pub first_product: Option<u32>,
    pub byte_ids: [u32; 256],
    /// The ranks of the merges of two single bytes, with which every piece begins.
    pub byte_pairs: Cow<'static, [u32]>,
    /// By token: the rank of the last of its merges and one, 0 for a single byte, [`NEVER`] for a token that is not the
    /// encoding of its bytes.
    pub ages: Cow<'static, [u32]>,
    /// By token: how many bytes it has.
    pub lengths: Cow<'static, [u32]>,
    /// Every merge ranks after those that make its two tokens.
    pub in_order: bool,
    /// Made when it is first asked for, without a lock, which a thread might hold while the process forks.
    pub trie: OnceBox<Option<Trie>>,
    /// About how many bytes have been searched through.
    pub searched: AtomicUsize,
}

impl Merges {
    /// The rank after every other: no merge.
    pub const NONE: u32 = Pairs::NONE;
    /// No token, which merges with none.
    pub const NO_TOKEN: u32 = Self::MAX_TOKENS as u32;
    /// More tokens than this, or merges, are not supported.
    pub const MAX_TOKENS: usize = Pairs::NONE as usize;

    pub fn with_capacity(count: usize, byte_ids: [u32; 256]) -> Self {
        Self {
            pairs: Pairs::new(&[]),
            pushed: HashSet::new(),
            list: Vec::with_capacity(count).into(),
            products: Vec::with_capacity(count),
            first_product: None,
            byte_ids,
            byte_pairs: Cow::default(),
            ages: Cow::default(),
            lengths: Cow::default(),
            in_order: false,
            trie: OnceBox::new(),
            searched: AtomicUsize::new(0),
        }
    }

    /// Add the merge that ranks after all so far; false where the pair is there already, or there are too many.
    pub fn push(&mut self, left: u32, right: u32, product: u32) -> bool {
        if self.list.len() >= Self::NONE as usize || !self.pushed.insert([left, right]) {
            return false;
        }
        self.list.to_mut().push([left, right]);
        self.products.push(product);
        true
    }

    /// Find out how each token comes about; `lengths` are the tokens' in bytes.
    ///
    /// Of the merges that make a token the one that happens is the one whose two tokens are the encoding of its bytes
    /// as far as lower ranks go; that is known when the ranks are gone through from the lowest, unless a merge ranks
    /// before one that makes its own tokens.
    pub fn finish(&mut self, lengths: impl Iterator<Item = u32>) {
        self.pairs = Pairs::new(&self.list);
        self.pushed = HashSet::new();
        self.lengths = lengths.collect();
        let mut byte_of = vec![0; self.lengths.len()];
        self.ages = vec![NEVER; self.lengths.len()].into();
        for (byte, id) in self.byte_ids.into_iter().enumerate() {
            byte_of[id as usize] = byte;
            self.ages.to_mut()[id as usize] = 0;
        }
        let mut byte_pairs = vec![Self::NONE; 1 << 16];
        let mut passed_over: Vec<[u32; 2]> = Vec::new();
        for rank in 0..self.list.len() as u32 {
            let (merge @ [left, right], product) = (self.list[rank as usize], self.products[rank as usize]);
            if (self.ages[left as usize], self.ages[right as usize]) == (0, 0) {
                byte_pairs[byte_of[left as usize] << 8 | byte_of[right as usize]] = rank;
            }
            if self.is_never(left) || self.is_never(right) {
                passed_over.push(merge);
            } else if self.is_never(product) && self.stay_apart_below(left, right, rank) {
                self.ages.to_mut()[product as usize] = rank + 1;
            }
        }
        self.byte_pairs = byte_pairs.into();
        self.in_order = passed_over.iter().all(|&[left, right]| self.is_never(left) || self.is_never(right));
        let first = self.products.first().copied();
        self.first_product =
            first.filter(|&first| self.products.iter().copied().eq(first..first + self.list.len() as u32));
        if self.first_product.is_some() {
            self.products = Vec::new();
        }
    }

    /// Whether the token is not the encoding of its own bytes; known only where the merges are [`Merges::in_order`].
    pub fn is_never(&self, id: u32) -> bool {
        self.ages[id as usize] == NEVER
    }

    /// Whether every merge ranks after those that make its two tokens: the order in which they are learned.
    pub fn in_order(&self) -> bool {
        self.in_order
    }

    /// The trie of the tokens, for a search through so many bytes; None where the merges are not [`Merges::in_order`], where
    /// it would be too large, and until many bytes have been asked for: making it takes as long as merging those by heap,
    /// and most processes never need it.
    pub fn trie(&self, bytes: usize) -> Option<&Trie> {
        const WORTH_A_TRIE: usize = 1 << 16;
        // Two threads at once may forget some: it is only about when the tree is made.
        let searched = self.searched.load(Ordering::Relaxed).saturating_add(bytes);
        self.searched.store(searched, Ordering::Relaxed);
        if !self.in_order || searched < WORTH_A_TRIE {
            return None;
        }
        self.trie.get_or_init(|| Box::new(self.make_trie())).as_ref()
    }

    #[cold]
    fn make_trie(&self) -> Option<Trie> {
        let mut builder = Builder::new(self.lengths.len(), &self.byte_ids);
        // Tokens in the order in which they come about, each made of two that are there.
        let mut bytes: Vec<u8> = (0..=255).collect();
        let mut places = vec![0..0; self.lengths.len()];
        for (byte, &id) in self.byte_ids.iter().enumerate() {
            places[id as usize] = byte..byte + 1;
        }
        for (rank, &[left, right]) in (0..).zip(&*self.list) {
            let product = self.product(rank);
            if self.ages[product as usize] == rank + 1 {
                let start = bytes.len();
                bytes.extend_from_within(places[left as usize].clone());
                bytes.extend_from_within(places[right as usize].clone());
                places[product as usize] = start..bytes.len();
                if !builder.insert(&bytes[start..], product) {
                    return None;
                }
            }
        }
        Some(builder.finish())
    }

    /// Whether two tokens are the encoding of their bytes together.
    #[inline(always)]
    pub fn stay_apart(&self, left: u32, right: u32) -> bool {
        self.stay_apart_below(left, right, Self::NONE)
    }

    /// The same as far as merges of a rank below `limit` go.
    ///
    /// The merges inside the two tokens happen in the order of their ranks, left before right. This goes back through
    /// them and looks, at every point in time, for a merge of the two that touch: it would happen if it came before the
    /// next of the merges inside, where that was the right token's also at the same rank, as the leftmost comes first.
    #[inline(always)]
    fn stay_apart_below(&self, mut left: u32, mut right: u32, mut limit: u32) -> bool {
        loop {
            if self.rank(left, right) < limit {
                return false;
            }
            let (before, after) = (self.ages[left as usize], self.ages[right as usize]);
            if before > after {
                limit = before - 1;
                left = self.list[limit as usize][1];
            } else if after > 0 {
                limit = after;
                right = self.list[limit as usize - 1][0];
            } else {
                return true;
            }
        }
    }

    /// The rank of the merge of two adjacent tokens, [`Merges::NONE`] where there is none.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        self.pairs.rank(left, right)
    }

    /// The same for two single bytes.
    #[inline(always)]
    pub fn rank_of_bytes(&self, left: u8, right: u8) -> u32 {
        self.byte_pairs[usize::from(left) << 8 | usize::from(right)]
    }

    /// The token that the merge of a rank makes.
    #[inline(always)]
    pub fn product(&self, rank: u32) -> u32 {
        match self.first_product {
            Some(first) => first + rank,
            None => self.products[rank as usize],
        }
    }

    /// The id of a single byte.
    #[inline(always)]
    pub fn byte_id(&self, byte: u8) -> u32 {
        self.byte_ids[byte as usize]
    }

    /// How many bytes a token has.
    #[inline(always)]
    pub fn token_len(&self, id: u32) -> usize {
        self.lengths[id as usize] as usize
    }
}
