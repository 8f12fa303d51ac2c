//! Many texts, or one long one, on many threads; the ids are those of one thread.

use crate::characters::Characters;
use crate::encoder::{Cache, Id, Tokenizer};
use crate::words::prefetch;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Mutex;

/// Bytes or characters that one thread takes at once: large against the cost of taking them, small against the caches.
const CHUNK: usize = 1 << 18;

/// A part of a text that is encoded in one go.
struct Chunk<'a> {
    text: Characters<'a>,
    /// Which text it belongs to.
    document: usize,
}

/// Cut the texts into chunks of about [`CHUNK`]; a chunk never spans two texts.
fn cut<'a>(texts: &[Characters<'a>]) -> Vec<Chunk<'a>> {
    let mut chunks = Vec::new();
    for (document, &(mut rest)) in texts.iter().enumerate() {
        while !rest.is_empty() {
            let at = if rest.len() <= 2 * CHUNK { rest.len() } else { CHUNK };
            let text;
            (text, rest) = rest.split_at_safe_cut(at);
            chunks.push(Chunk { text, document });
        }
    }
    chunks
}

/// The caches of threads that are not encoding just now, for the next ones to use.
///
/// Without a lock: one that another thread holds while the process forks stays locked in the child for ever. Here a
/// fork loses at most the caches that were in use.
#[derive(Default)]
pub struct Caches([AtomicPtr<Cache>; 32]);

impl Caches {
    /// Run `work` with a cache: a warm one if there is one.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Cache) -> R) -> R {
        let mut cache = self.take();
        let result = work(&mut cache);
        self.put(cache);
        result
    }

    #[inline]
    fn take(&self) -> Box<Cache> {
        for slot in &self.0 {
            if slot.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let cache = slot.swap(ptr::null_mut(), Ordering::Acquire);
            if !cache.is_null() {
                // SAFETY: `put` made the pointer of a box, and the swap gave it to this thread alone.
                return unsafe { Box::from_raw(cache) };
            }
        }
        Box::default()
    }

    #[inline]
    fn put(&self, cache: Box<Cache>) {
        let cache = Box::into_raw(cache);
        for slot in &self.0 {
            if slot.compare_exchange(ptr::null_mut(), cache, Ordering::Release, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        // SAFETY: the pointer is of the box above, and no slot took it.
        drop(unsafe { Box::from_raw(cache) });
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        for slot in &mut self.0 {
            if !slot.get_mut().is_null() {
                // SAFETY: as in `take`; nobody else has a reference to `self` now.
                drop(unsafe { Box::from_raw(*slot.get_mut()) });
            }
        }
    }
}

/// Encode each run of chunks with `work` on `num_threads` threads; the results, in order of the chunks.
fn in_parallel<'a, R: Send>(
    chunks: &[Chunk<'a>],
    num_threads: usize,
    caches: &Caches,
    work: impl Fn(&[Chunk<'a>], &mut Cache) -> R + Sync,
) -> Vec<R> {
    // Runs of small texts together are one piece of work.
    let mut runs: Vec<&[Chunk<'a>]> = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (i, chunk) in chunks.iter().enumerate() {
        bytes += chunk.text.len() + 32;
        if bytes >= CHUNK || i + 1 == chunks.len() {
            runs.push(&chunks[first..=i]);
            (first, bytes) = (i + 1, 0);
        }
    }
    let num_threads = num_threads.clamp(1, runs.len().max(1));
    if num_threads == 1 {
        return caches.with(|cache| runs.iter().map(|run| work(run, cache)).collect());
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(runs.len()));
    let take = || {
        caches.with(|cache| loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(i) else { break };
            let result = work(run, cache);
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, result));
        });
    };
    std::thread::scope(|scope| {
        for _ in 1..num_threads {
            // Where the system gives no more threads, those there are do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_unstable_by_key(|&(i, _)| i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Texts that are fetched while one is encoded: short ones lie about in memory, each one a wait.
const AHEAD: usize = 3;

/// Have the processor fetch the beginning of a text; where it is longer, the processor sees by itself how it goes on.
#[inline(always)]
fn fetch(text: Characters<'_>) {
    match text {
        Characters::Utf8(text) | Characters::Latin1(text) => {
            text.chunks(64).take(4).for_each(|line| prefetch(&line[0]))
        }
        Characters::Ucs2(text) => text.chunks(32).take(4).for_each(|line| prefetch(&line[0])),
        Characters::Ucs4(text) => text.chunks(16).take(4).for_each(|line| prefetch(&line[0])),
    }
}

/// The ids of all texts in one array, and offsets: text i is `ids[offsets[i]..offsets[i + 1]]`.
pub fn encode_batch<I: Id>(
    tokenizer: &Tokenizer,
    texts: &[Characters<'_>],
    num_threads: usize,
    caches: &Caches,
) -> (Vec<I>, Vec<i64>) {
    if num_threads == 1 {
        return caches.with(|cache| encode_in_order(tokenizer, texts, cache));
    }
    let chunks = cut(texts);
    let parts = in_parallel(&chunks, num_threads, caches, |run, cache| {
        let mut ids: Vec<I> = Vec::with_capacity(run.iter().map(|chunk| chunk.text.len()).sum::<usize>() / 4 + 16);
        let counts: Vec<usize> = run
            .iter()
            .enumerate()
            .map(|(i, chunk)| {
                if let Some(chunk) = run.get(i + AHEAD) {
                    fetch(chunk.text);
                }
                let before = ids.len();
                chunk.text.encode(tokenizer, cache, &mut ids);
                ids.len() - before
            })
            .collect();
        (ids, counts)
    });
    let mut offsets = vec![0i64; texts.len() + 1];
    let counts = parts.iter().flat_map(|(_, counts)| counts);
    for (chunk, &count) in chunks.iter().zip(counts) {
        offsets[chunk.document + 1] += count as i64;
    }
    for i in 1..offsets.len() {
        offsets[i] += offsets[i - 1];
    }
    if parts.len() == 1 {
        return (parts.into_iter().next().map(|(ids, _)| ids).unwrap_or_default(), offsets);
    }
    let mut all = Vec::with_capacity(parts.iter().map(|(ids, _)| ids.len()).sum());
    for (ids, _) in parts {
        all.extend_from_slice(&ids);
    }
    (all, offsets)
}

/// [`encode_batch`] on one thread, straight into one array.
fn encode_in_order<I: Id>(tokenizer: &Tokenizer, texts: &[Characters<'_>], cache: &mut Cache) -> (Vec<I>, Vec<i64>) {
    let mut ids: Vec<I> = Vec::with_capacity(texts.iter().map(|text| text.len()).sum::<usize>() / 4 + 16);
    let mut offsets = Vec::with_capacity(texts.len() + 1);
    offsets.push(0);
    for (i, text) in texts.iter().enumerate() {
        if let Some(&text) = texts.get(i + AHEAD) {
            fetch(text);
        }
        text.encode(tokenizer, cache, &mut ids);
        offsets.push(ids.len() as i64);
    }
    (ids, offsets)
}

/// The number of ids of each text.
pub fn count_batch(tokenizer: &Tokenizer, texts: &[Characters<'_>], num_threads: usize, caches: &Caches) -> Vec<i64> {
    let chunks = cut(texts);
    let parts = in_parallel(&chunks, num_threads, caches, |run, cache| {
        run.iter().map(|chunk| chunk.text.count(tokenizer, cache)).collect::<Vec<_>>()
    });
    let mut counts = vec![0i64; texts.len()];
    for (chunk, count) in chunks.iter().zip(parts.into_iter().flatten()) {
        counts[chunk.document] += count as i64;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    #[test]
    fn threads_and_chunks_change_nothing() {
        let json = vocabulary_json(&["ab", "Ġa"]);
        let tokenizer = Tokenizer::new(json.as_bytes(), "a b\nĠ a\n".as_bytes(), &[]).expect("good");
        let long = "ab a'll  b\n\n a 12 é\u{a0} x ".repeat(80_000);
        let texts = [b"ab".as_slice(), b"", long.as_bytes(), b" a", b"", &vec![b'a'; 3 * CHUNK]];
        let caches = Caches::default();
        let mut expected: Vec<u32> = Vec::new();
        let mut borders = vec![0];
        for text in texts {
            tokenizer.encode(text, &mut Cache::default(), &mut expected);
            borders.push(expected.len() as i64);
        }
        let texts = texts.map(Characters::Utf8);
        for threads in [1, 2, 3, 64] {
            let (ids, offsets) = encode_batch::<u32>(&tokenizer, &texts, threads, &caches);
            assert!(ids == expected && offsets == borders, "{threads} threads");
            let counts = count_batch(&tokenizer, &texts, threads, &caches);
            assert!(counts.iter().zip(borders.windows(2)).all(|(&count, pair)| count == pair[1] - pair[0]));
        }
        let (ids, offsets) = encode_batch::<u16>(&tokenizer, &[], 2, &caches);
        assert!(ids.is_empty() && offsets == [0]);
    }
}
