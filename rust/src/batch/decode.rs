//! Many lists of ids back to bytes, on many threads.

use crate::batch::on_threads;
use crate::encode::decoder::Decoder;
use crate::vocabulary::Vocabulary;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// Ids that one thread takes at once.
const RUN_IDS: usize = 1 << 14;
/// A thread is worth starting for so many ids.
const IDS_FOR_A_THREAD: usize = 1 << 16;

/// Lists of ids, one after the other.
#[derive(Default)]
pub struct IdLists {
    pub ids: Vec<u32>,
    /// Where in `ids` each list ends.
    pub ends: Vec<usize>,
}

/// The bytes of lists of ids, one after the other.
pub struct DecodedLists {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl DecodedLists {
    /// The bytes of each list.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// What a thread decodes at once: some ids, whatever lists they are of.
struct Run<'a> {
    /// The position of the first.
    start: usize,
    ids: &'a [u32],
    /// The ends of the lists that end among them.
    ends: &'a [usize],
    /// How many bytes they are; the position of an id that is not in the vocabulary.
    length: Result<usize, usize>,
}

/// Where the bytes of a run go.
struct Target<'a> {
    run: &'a Run<'a>,
    bytes: &'a mut [MaybeUninit<u8>],
    /// The bytes before them.
    before: usize,
    ends: &'a mut [usize],
}

impl Target<'_> {
    fn fill(&mut self, vocabulary: &Vocabulary, decoder: &Decoder) {
        let (mut from, mut at) = (0, 0);
        for (end, byte_end) in self.run.ends.iter().zip(&mut *self.ends) {
            let to = end - self.run.start;
            at += decoder.write(vocabulary, &self.run.ids[from..to], &mut self.bytes[at..]);
            *byte_end = self.before + at;
            from = to;
        }
        at += decoder.write(vocabulary, &self.run.ids[from..], &mut self.bytes[at..]);
        assert_eq!(at, self.bytes.len(), "the decoded length");
    }
}

/// The bytes of each list.
///
/// # Errors
/// The position among all ids of the first one that is not in the vocabulary.
pub fn decode_batch(
    vocabulary: &Vocabulary,
    decoder: &Decoder,
    lists: &IdLists,
    num_threads: usize,
) -> Result<DecodedLists, usize> {
    let IdLists { ids, ends } = lists;
    let num_threads = (ids.len() / IDS_FOR_A_THREAD).clamp(1, num_threads.max(1));
    let mut runs: Vec<Run> = Vec::with_capacity(ids.len() / RUN_IDS + 1);
    let mut ends_left = ends.as_slice();
    // One run at least, of which empty lists are a part.
    for start in (0..ids.len().max(1)).step_by(RUN_IDS) {
        let end = ids.len().min(start + RUN_IDS);
        let inside;
        (inside, ends_left) = ends_left.split_at(ends_left.partition_point(|&list_end| list_end <= end));
        runs.push(Run { start, ids: &ids[start..end], ends: inside, length: Ok(0) });
    }
    for_each(&mut runs, num_threads, |run| {
        run.length = decoder.length(run.ids).map_err(|position| run.start + position);
    });

    let total = runs.iter().map(|run| run.length).sum::<Result<usize, usize>>()?;
    let (mut bytes, mut byte_ends) = (Vec::with_capacity(total), vec![0; ends.len()]);
    let (mut bytes_left, mut ends_left) = (&mut bytes.spare_capacity_mut()[..total], byte_ends.as_mut_slice());
    let mut targets = Vec::with_capacity(runs.len());
    for run in &runs {
        let before = total - bytes_left.len();
        let (bytes, ends);
        (bytes, bytes_left) = bytes_left.split_at_mut(run.length?);
        (ends, ends_left) = ends_left.split_at_mut(run.ends.len());
        targets.push(Target { run, bytes, before, ends });
    }
    for_each(&mut targets, num_threads, |target| target.fill(vocabulary, decoder));
    // SAFETY: each run has filled its bytes, and that is all of them.
    unsafe { bytes.set_len(total) };
    Ok(DecodedLists { bytes, ends: byte_ends })
}

/// Do `work` for each of the items, on several threads.
fn for_each<T: Send>(items: &mut [T], num_threads: usize, work: impl Fn(&mut T) + Sync) {
    let items = Mutex::new(items.iter_mut());
    on_threads(num_threads, || loop {
        let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(item) = next else { break };
        work(item);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    #[test]
    fn lists_of_every_length_on_any_threads() {
        let vocabulary = Vocabulary::parse(vocabulary_json(&["ab", "abababababababababab"]).as_bytes(), b"", &[]);
        let vocabulary = vocabulary.expect("good");
        let decoder = Decoder::new(&vocabulary);
        let count = vocabulary.len() as u32;
        for lengths in [
            vec![],
            vec![0],
            vec![0, 0, 1, 0],
            vec![RUN_IDS, RUN_IDS, 0, 1],
            vec![RUN_IDS - 1, 0, 2, 5 * RUN_IDS, 0, 7],
            (0..9000).map(|i| i % 37).collect(),
            vec![20 * RUN_IDS + 5],
        ] {
            let mut lists = IdLists::default();
            for length in lengths {
                let first = lists.ids.len() as u32;
                lists.ids.extend((0..length as u32).map(|i| (first + i).wrapping_mul(2_654_435_761) % count));
                lists.ends.push(lists.ids.len());
            }
            let starts = std::iter::once(&0).chain(&lists.ends);
            let expected: Vec<Vec<u8>> = starts
                .zip(&lists.ends)
                .map(|(&start, &end)| {
                    lists.ids[start..end].iter().flat_map(|&id| vocabulary.token(id).expect("an id").to_vec()).collect()
                })
                .collect();
            for num_threads in [1, 2, 5] {
                let decoded = decode_batch(&vocabulary, &decoder, &lists, num_threads).expect("ids");
                assert!(decoded.iter().eq(expected.iter().map(Vec::as_slice)), "{num_threads} threads");
            }
            if let Some(last) = lists.ids.last_mut() {
                *last = count;
                assert_eq!(decode_batch(&vocabulary, &decoder, &lists, 2).err(), Some(lists.ids.len() - 1));
            }
        }
    }
}
