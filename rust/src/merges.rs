//! The table of merges: which pairs of tokens become which token, and in what order.

/// The merges by their pair of ids, and what merging needs of the tokens; never changed after loading.
///
/// A slot of the table is `left << 44 | right << 24 | rank`: open addressing, at most half full. Pairs of single bytes,
/// with which every merge begins, have a table of their own that needs no probing.
pub struct Merges {
    slots: Vec<u64>,
    shift: u32,
    /// A bit for each merge at its hash: most pairs have no merge, and this says so from 64 KiB of memory.
    filter: Vec<u64>,
    products: Vec<u32>,
    byte_ids: [u32; 256],
    byte_pairs: Vec<u32>,
    lengths: Vec<u32>,
}

const EMPTY: u64 = u64::MAX;
const FILTER_WORDS: usize = 1 << 13;

impl Merges {
    /// The rank after every other: no merge.
    pub const NONE: u32 = (1 << 24) - 1;
    /// More tokens than this do not fit a slot.
    pub const MAX_TOKENS: usize = (1 << 20) - 1;

    pub(crate) fn with_capacity(count: usize, byte_ids: [u32; 256]) -> Self {
        let slots = (2 * count).next_power_of_two().max(2);
        Self {
            slots: vec![EMPTY; slots],
            shift: 64 - slots.trailing_zeros(),
            filter: vec![0; FILTER_WORDS],
            products: Vec::with_capacity(count),
            byte_ids,
            byte_pairs: Vec::new(),
            lengths: Vec::new(),
        }
    }

    #[inline(always)]
    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Where the filter has a key.
    #[inline(always)]
    fn filter_bit(key: u64) -> (usize, u64) {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> 45) as usize >> 6 & (FILTER_WORDS - 1), 1 << (hash >> 45 & 63))
    }

    /// Add the merge that ranks after all so far; false where the pair is there already, or there are too many.
    pub(crate) fn push(&mut self, left: u32, right: u32, product: u32) -> bool {
        let rank = self.products.len() as u64;
        let key = u64::from(left) << 20 | u64::from(right);
        let mut slot = self.slot(key);
        if rank >= u64::from(Self::NONE) || self.products.len() >= self.slots.len() / 2 {
            return false;
        }
        while self.slots[slot] != EMPTY {
            if self.slots[slot] >> 24 == key {
                return false;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = key << 24 | rank;
        let (word, bit) = Self::filter_bit(key);
        self.filter[word] |= bit;
        self.products.push(product);
        true
    }

    /// Fill what follows from the merges; `lengths` are the tokens' in bytes.
    pub(crate) fn finish(&mut self, lengths: Vec<u32>) {
        self.lengths = lengths;
        let mut byte_of = vec![None; self.lengths.len()];
        for (byte, &id) in self.byte_ids.iter().enumerate() {
            byte_of[id as usize] = Some(byte);
        }
        self.byte_pairs = vec![Self::NONE; 1 << 16];
        for &slot in self.slots.iter().filter(|&&slot| slot != EMPTY) {
            let (left, right) = ((slot >> 44) as usize, (slot >> 24) as usize & Self::MAX_TOKENS);
            if let (Some(left), Some(right)) = (byte_of[left], byte_of[right]) {
                self.byte_pairs[left << 8 | right] = slot as u32 & Self::NONE;
            }
        }
    }

    /// The rank of the merge of two adjacent tokens, [`Merges::NONE`] where there is none.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let key = u64::from(left) << 20 | u64::from(right);
        let (word, bit) = Self::filter_bit(key);
        if self.filter[word] & bit == 0 {
            return Self::NONE;
        }
        let mut slot = self.slot(key);
        loop {
            let found = self.slots[slot];
            if found >> 24 == key {
                return found as u32 & Self::NONE;
            }
            if found == EMPTY {
                return Self::NONE;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// The same for two single bytes.
    #[inline(always)]
    pub fn rank_of_bytes(&self, left: u8, right: u8) -> u32 {
        self.byte_pairs[usize::from(left) << 8 | usize::from(right)]
    }

    /// The token that the merge of a rank makes.
    #[inline(always)]
    pub fn product(&self, rank: u32) -> u32 {
        self.products[rank as usize]
    }

    /// The id of a single byte.
    #[inline(always)]
    pub fn byte_id(&self, byte: u8) -> u32 {
        self.byte_ids[byte as usize]
    }

    /// The bytes of a token.
    #[inline(always)]
    pub fn token_len(&self, id: u32) -> usize {
        self.lengths[id as usize] as usize
    }
}
