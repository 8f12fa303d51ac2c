//! The ids that several threads have made, put together in the order of the texts.

use crate::batch::on_threads;
use crate::encode::Id;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use tables::memory::large_pages;

/// So many ids are worth being moved by several threads.
const IDS_FOR_THREADS: usize = 1 << 18;

/// What one thread has made of its runs of texts.
pub struct Made<I> {
    pub ids: Vec<I>,
    /// Where each text ends, counted from the beginning of its run.
    ends: Vec<usize>,
    runs: Vec<Begun>,
}

/// A run by its number among all of them, and where its ids and ends begin.
struct Begun {
    number: usize,
    ids: usize,
    ends: usize,
}

impl<I> Default for Made<I> {
    fn default() -> Self {
        Self { ids: Vec::new(), ends: Vec::new(), runs: Vec::new() }
    }
}

impl<I: Id> Made<I> {
    /// What comes now is of the run of this number.
    pub fn begin(&mut self, number: usize) {
        self.runs.push(Begun { number, ids: self.ids.len(), ends: self.ends.len() });
    }

    /// A text of the run ends here.
    pub fn end_text(&mut self) {
        let start = self.runs.last().map_or(0, |run| run.ids);
        self.ends.push(self.ids.len() - start);
    }

    /// The runs: number, ids, ends.
    fn runs(&self) -> impl Iterator<Item = (usize, &[I], &[usize])> {
        self.runs.iter().enumerate().map(|(i, run)| {
            let (ids, ends) = self.runs.get(i + 1).map_or((self.ids.len(), self.ends.len()), |run| (run.ids, run.ends));
            (run.number, &self.ids[run.ids..ids], &self.ends[run.ends..ends])
        })
    }
}

/// A run, and where it goes.
struct Move<'a, I> {
    ids: &'a [I],
    to: &'a mut [MaybeUninit<I>],
    ends: &'a [usize],
    offsets: &'a mut [i64],
    /// Ids that come before.
    before: usize,
}

impl<I: Id> Move<'_, I> {
    fn go(self) {
        for (to, &id) in self.to.iter_mut().zip(self.ids) {
            to.write(id);
        }
        for (offset, &end) in self.offsets.iter_mut().zip(self.ends) {
            *offset = (self.before + end) as i64;
        }
    }
}

/// All ids in one array, and the offsets of the texts.
pub fn join<I: Id>(made: &[Made<I>], num_threads: usize) -> (Vec<I>, Vec<i64>) {
    let mut runs: Vec<_> = made.iter().flat_map(Made::runs).collect();
    runs.sort_unstable_by_key(|&(number, ..)| number);
    let total = made.iter().map(|made| made.ids.len()).sum();
    let mut all: Vec<I> = Vec::with_capacity(total);
    large_pages(all.as_mut_ptr(), total);
    let mut offsets = vec![0; 1 + made.iter().map(|made| made.ends.len()).sum::<usize>()];

    let (mut ids_left, mut offsets_left) = (&mut all.spare_capacity_mut()[..total], &mut offsets[1..]);
    let mut moves = Vec::with_capacity(runs.len());
    for (_, ids, ends) in runs {
        let before = total - ids_left.len();
        let (to, offsets);
        (to, ids_left) = ids_left.split_at_mut(ids.len());
        (offsets, offsets_left) = offsets_left.split_at_mut(ends.len());
        moves.push(Move { ids, to, ends, offsets, before });
    }
    let moves = Mutex::new(moves);
    on_threads(if total < IDS_FOR_THREADS { 1 } else { num_threads }, || loop {
        let next = moves.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(next) = next else { break };
        next.go();
    });
    // SAFETY: each id of each run has been moved, and that is all of them.
    unsafe { all.set_len(total) };
    (all, offsets)
}
