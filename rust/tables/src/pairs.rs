//! The ranks of merges by their pairs of tokens: a table without collisions.
//!
//! A perfect hash by pilots, as in PTHash (Pibiri & Trani 2021, https://arxiv.org/abs/2104.10402): the uppermost bits of a
//! pair's hash choose one of the pilots, and that was chosen so that the pairs which share it have
//! entries of their own. So a look-up reads one line of the table and has no branch, which is what counts, as nobody can
//! predict which pairs merge.
//!
//! Performance notes (30 November 2026), one thread, the 20,033 words of 5 MB of English that are no token, 8 bytes each,
//! ns for each, warm, on a machine with other work; and MB/s of a million random letters, of which four windows are merged
//! at once:
//! - Slots of 64 bits with the whole pair, in one of two places (cuckoo hashing), 1 MiB: 280; 72. Three quarters of that
//!   was waiting for the table.
//! - Slots of 32 bits with a part of the hash, half a MiB, the pair compared when it is its turn: 180-220; 64. Two slots
//!   for a place, a quarter of a MiB: no better. (On the day of the next line: 143; 64.)
//! - This table, whole pairs in half a MiB, one load after that of a pilot: 149; 76. Kept: nothing is compared later, and
//!   long pieces, digits and Chinese came a sixth faster. A single short piece waits for two loads, not one.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The ranks by pair; never changed.
#[derive(PartialEq)]
pub struct Pairs {
    /// Makes the hash of a pair.
    pub multiplier: u64,
    /// What the place of a pair is moved by, for each group of pairs.
    pub pilots: Cow<'static, [u16]>,
    /// A pair and its rank.
    pub entries: Cow<'static, [u64]>,
    /// Pairs for which there is no place, which takes a list of merges made for that.
    pub homeless: HashMap<u64, u32>,
}

impl Pairs {
    const RANK_BITS: u32 = 20;
    /// The rank after every other: none.
    pub const NONE: u32 = (1 << Self::RANK_BITS) - 1;
    const EMPTY: u64 = !0;

    /// The pairs of a list, each of them once, in the order of their ranks; ids and ranks are below [`Pairs::NONE`].
    pub fn new(list: &[[u32; 2]]) -> Self {
        let entries = (list.len() + list.len() / 4).next_power_of_two().max(8);
        let mut pairs = Self {
            multiplier: 0,
            pilots: vec![0; entries / 4].into(),
            entries: vec![Self::EMPTY; entries].into(),
            homeless: HashMap::new(),
        };
        let mut groups = Vec::new();
        // Pilots move all pairs of a group alike, so no two of them may begin at one place.
        for turn in 0..16 {
            pairs.multiplier = 0x9e37_79b9_7f4a_7c15_u64.rotate_left(turn) | 1;
            groups = vec![Vec::new(); entries / 4];
            for (rank, &[left, right]) in (0..).zip(list) {
                let pair = Self::pair(left, right);
                let hash = pairs.hash(pair);
                groups[pairs.group(hash)].push((pairs.base(hash), pair, rank));
            }
            let alone = |group: &mut Vec<(usize, u64, u32)>| {
                group.sort_unstable();
                group.windows(2).all(|pair| pair[0].0 != pair[1].0)
            };
            if groups.iter_mut().all(alone) {
                break;
            }
        }
        // The largest first, as long as there is room.
        groups.sort_by_key(|group| Reverse(group.len()));
        for group in groups.iter().filter(|group| !group.is_empty()) {
            if !pairs.insert(group) {
                pairs.homeless.extend(group.iter().map(|&(_, pair, rank)| (pair, rank)));
            }
        }
        pairs
    }

    /// Find a pilot for a group's places, pairs and ranks; false where there is none.
    fn insert(&mut self, group: &[(usize, u64, u32)]) -> bool {
        let entries = self.entries.to_mut();
        let place = |base: usize, pilot: u16| (base ^ usize::from(pilot)) & (entries.len() - 1);
        let fits = |&pilot: &u16| group.iter().all(|&(base, ..)| entries[place(base, pilot)] == Self::EMPTY);
        let alone = group.windows(2).all(|pair| pair[0].0 != pair[1].0);
        let Some(pilot) = (0..=u16::MAX).find(fits).filter(|_| alone) else { return false };
        for &(base, pair, rank) in group {
            let at = (base ^ usize::from(pilot)) & (entries.len() - 1);
            entries[at] = pair << Self::RANK_BITS | u64::from(rank);
        }
        let group = self.group(self.hash(group[0].1));
        self.pilots.to_mut()[group] = pilot;
        true
    }

    #[inline(always)]
    fn pair(left: u32, right: u32) -> u64 {
        u64::from(left) << 20 | u64::from(right)
    }

    #[inline(always)]
    fn hash(&self, pair: u64) -> u64 {
        pair.wrapping_mul(self.multiplier)
    }

    #[inline(always)]
    fn group(&self, hash: u64) -> usize {
        (hash >> (64 - self.pilots.len().trailing_zeros())) as usize
    }

    /// Where a pair would be that is moved by nothing.
    #[inline(always)]
    fn base(&self, hash: u64) -> usize {
        (hash >> 30) as usize & (self.entries.len() - 1)
    }

    /// The rank of a pair, [`Pairs::NONE`] where it does not merge.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let pair = Self::pair(left, right);
        let hash = self.hash(pair);
        let pilot = usize::from(self.pilots[self.group(hash)]);
        let entry = self.entries[(self.base(hash) ^ pilot) & (self.entries.len() - 1)];
        // Of other pairs, and where there is none, NONE or more is left.
        let rank = (entry ^ pair << Self::RANK_BITS).min(u64::from(Self::NONE)) as u32;
        if !self.homeless.is_empty() {
            return self.homeless.get(&pair).copied().unwrap_or(rank);
        }
        rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_pair_has_its_rank_and_others_have_none() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 20) % limit) as u32
        };
        let mut homeless = 0;
        for count in (0..40).chain([100, 800, 1000, 5000, 52_000]) {
            for ids in [8, 300, u64::from(Pairs::NONE) + 1] {
                let (mut list, mut ranks) = (Vec::new(), HashMap::new());
                for _ in 0..count.min(ids * ids / 2) {
                    let pair = [random(ids), random(ids)];
                    ranks.entry(pair).or_insert_with(|| {
                        list.push(pair);
                        list.len() as u32 - 1
                    });
                }
                let pairs = Pairs::new(&list);
                homeless += pairs.homeless.len();
                for (pair @ [left, right], rank) in ranks.clone() {
                    assert_eq!(pairs.rank(left, right), rank, "{pair:?}");
                }
                for _ in 0..1000 {
                    let [left, right] = [random(ids), random(ids)];
                    assert_eq!(pairs.rank(left, right), ranks.get(&[left, right]).copied().unwrap_or(Pairs::NONE));
                }
            }
        }
        assert!(homeless > 0, "those are tested, too");
    }
}
