//! Many texts, or one long one, on many threads; the ids are those of one thread.
//!
//! Threads take runs of texts one after the other, and look at a text only then: where it is, how long it is, and what it
//! says is read at once, by the thread that needs it, while the others are busy with theirs.
//!
//! Performance notes (30 November 2026), 100,000 lines of 110 bytes from Python, seen before, two cores; medians of
//! interleaved processes, MB/s by one thread and by two, into arrays:
//! - All texts looked at with Python's lock held, then their bytes in a second array, then chunks in a third, each of
//!   which takes some MB: 375 and 530, 1.43 times.
//! - Each thread reads what Python notes of a text when it comes to it: 425 and 745, 1.77 times. Runs of half the size,
//!   smaller towards the end, so that no thread waits for the last one, are part of that.
//! - The ids moved to one array by both threads instead of one, 0.6 ms of 8: 10 MB of 2 kB each 1255 to 1310, one text
//!   1330 to 1380.
//! - What is left for one thread: holding the texts by a tuple, 5 % of the time of one thread.

pub mod decode;
mod join;

use crate::batch::join::{join, Made};
use crate::encode::added::Added;
use crate::encode::caches::Caches;
use crate::encode::{Cache, Id, Tokenizer};
use crate::text::characters::Characters;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tables::key::prefetch;
use tables::memory::large_pages;

/// Bytes or characters that one thread takes at once: large against the cost of taking them, small against the caches.
const RUN: usize = 1 << 17;
/// Of a longer text, parts are taken.
const LONGEST_WHOLE: usize = 1 << 19;
/// What a short text costs beside its bytes.
const TEXT_OVERHEAD: usize = 32;
/// Texts that are fetched while one is encoded: short ones lie about in memory, each one a wait.
const AHEAD: usize = 3;

/// Texts that any thread may read.
pub trait Texts: Sync {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, i: usize) -> Characters<'_>;

    /// Have the processor fetch the beginning of text i, if there is one; where it is longer, the processor sees by itself
    /// how it goes on.
    fn fetch(&self, i: usize);
}

impl Texts for [Characters<'_>] {
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Characters<'_> {
        self[i]
    }

    #[inline(always)]
    fn fetch(&self, i: usize) {
        match self.get(i) {
            Some(Characters::Utf8(text) | Characters::Latin1(text)) => fetch_lines(text),
            Some(Characters::Ucs2(text)) => fetch_lines(text),
            Some(Characters::Ucs4(text)) => fetch_lines(text),
            None => {}
        }
    }
}

/// Have the processor fetch the first four lines of memory.
#[inline(always)]
fn fetch_lines<T>(text: &[T]) {
    text.chunks(64 / size_of::<T>()).take(4).for_each(|line| prefetch(&line[0]));
}

/// What a thread does at once: some texts, or a part of one.
struct Run<'a> {
    /// The first is 0.
    number: usize,
    texts: Range<usize>,
    part: Option<Part<'a>>,
}

struct Part<'a> {
    text: Characters<'a>,
    is_last: bool,
}

/// Deals out runs.
struct Runs<'a, T: ?Sized> {
    texts: &'a T,
    added: &'a Added,
    num_threads: usize,
    /// The next run, the next text, and what is left of the one before it.
    number: usize,
    next: usize,
    rest: Option<Characters<'a>>,
}

impl<'a, T: Texts + ?Sized> Iterator for Runs<'a, T> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let first = self.next;
        if self.rest.is_none() {
            // Less and less, so that the threads come to an end together.
            let most = ((self.texts.len() - first) / (4 * self.num_threads)).max(16);
            let mut size = 0;
            while self.next < self.texts.len() && self.next - first < most && size < RUN {
                self.texts.fetch(self.next + 2 * AHEAD);
                let text = self.texts.get(self.next);
                if text.len() > LONGEST_WHOLE {
                    if self.next == first {
                        self.next += 1;
                        self.rest = Some(text);
                    }
                    break;
                }
                size += text.len() + TEXT_OVERHEAD;
                self.next += 1;
            }
        }
        let part = self.rest.map(|rest| {
            let at = if rest.len() <= LONGEST_WHOLE { rest.len() } else { 2 * RUN };
            let (text, rest) = rest.split_for(self.added, at);
            self.rest = (!rest.is_empty()).then_some(rest);
            Part { text, is_last: rest.is_empty() }
        });
        let texts = if part.is_some() { self.next - 1..self.next } else { first..self.next };
        self.number += 1;
        (!texts.is_empty()).then_some(Run { number: self.number - 1, texts, part })
    }
}

/// How many threads have enough to do, of so many.
fn threads_for<T: Texts + ?Sized>(texts: &T, num_threads: usize) -> usize {
    let mut size = 0;
    let mut i = 0;
    while i < texts.len() && size < num_threads * RUN && num_threads > 1 {
        size += texts.get(i).len() + TEXT_OVERHEAD;
        i += 1;
    }
    (size / RUN).clamp(1, num_threads.max(1))
}

/// Do `work` on several threads, this one among them.
pub fn on_threads(num_threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..num_threads {
            // Where the system gives no more threads, those there are do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, &work);
        }
        work();
    });
}

/// Do `work` for the runs of the texts on several threads: what each of them makes of its own.
fn in_parallel<'a, T: Texts + ?Sized, R: Default + Send>(
    tokenizer: &'a Tokenizer,
    texts: &'a T,
    num_threads: usize,
    caches: &Caches,
    work: impl Fn(Run<'a>, &mut Cache, &mut R) + Sync,
) -> Vec<R> {
    let added = tokenizer.added();
    let runs = Mutex::new(Runs { texts, added, num_threads, number: 0, next: 0, rest: None });
    let results = Mutex::new(Vec::with_capacity(num_threads));
    on_threads(num_threads, || {
        let mut result = R::default();
        caches.with(|cache| loop {
            let run = runs.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(run) = run else { break };
            work(run, cache, &mut result);
        });
        results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// An empty array with room for about the ids of the texts, which only becomes memory as it is filled.
pub fn room<I: Id>(texts: &(impl Texts + ?Sized)) -> Vec<I> {
    /// Beyond so many it grows as it is filled: the guess may be wrong, and address space has an end, too.
    const MOST_RESERVED: usize = 1 << 28;
    let looked_at = texts.len().min(64);
    let bytes: usize = (0..looked_at).map(|i| texts.get(i * texts.len() / looked_at).most_bytes()).sum();
    let guess = bytes as u128 * texts.len() as u128 / looked_at.max(1) as u128 / 2;
    let mut ids: Vec<I> = Vec::new();
    if ids.try_reserve_exact(guess.min(MOST_RESERVED as u128) as usize + 16).is_ok() {
        large_pages(ids.as_mut_ptr(), ids.capacity());
    }
    ids
}

/// The ids of all texts in one array, and offsets: text i is `ids[offsets[i]..offsets[i + 1]]`.
pub fn encode_batch<I: Id>(
    tokenizer: &Tokenizer,
    texts: &(impl Texts + ?Sized),
    num_threads: usize,
    caches: &Caches,
) -> (Vec<I>, Vec<i64>) {
    match threads_for(texts, num_threads) {
        1 => caches.with(|cache| encode_in_order(tokenizer, texts, cache)),
        num_threads => encode_in_parallel(tokenizer, texts, num_threads, caches),
    }
}

/// [`encode_batch`] on one thread, straight into one array.
fn encode_in_order<I: Id>(
    tokenizer: &Tokenizer,
    texts: &(impl Texts + ?Sized),
    cache: &mut Cache,
) -> (Vec<I>, Vec<i64>) {
    let mut ids: Vec<I> = room(texts);
    let mut offsets = Vec::with_capacity(texts.len() + 1);
    offsets.push(0);
    for i in 0..texts.len() {
        texts.fetch(i + AHEAD);
        texts.get(i).encode(tokenizer, cache, &mut ids);
        offsets.push(ids.len() as i64);
    }
    (ids, offsets)
}

fn encode_in_parallel<I: Id>(
    tokenizer: &Tokenizer,
    texts: &(impl Texts + ?Sized),
    num_threads: usize,
    caches: &Caches,
) -> (Vec<I>, Vec<i64>) {
    let made = in_parallel(tokenizer, texts, num_threads, caches, |run, cache, made: &mut Made<I>| {
        made.begin(run.number);
        if let Some(part) = run.part {
            part.text.encode(tokenizer, cache, &mut made.ids);
            if part.is_last {
                made.end_text();
            }
            return;
        }
        for i in run.texts.clone() {
            if i + AHEAD < run.texts.end {
                texts.fetch(i + AHEAD);
            }
            texts.get(i).encode(tokenizer, cache, &mut made.ids);
            made.end_text();
        }
    });
    join(&made, num_threads)
}

/// The number of ids of each text.
pub fn count_batch(
    tokenizer: &Tokenizer,
    texts: &(impl Texts + ?Sized),
    num_threads: usize,
    caches: &Caches,
) -> Vec<i64> {
    let num_threads = threads_for(texts, num_threads);
    let made = in_parallel(tokenizer, texts, num_threads, caches, |run, cache, counts: &mut Vec<(usize, usize)>| {
        if let Some(part) = run.part {
            return counts.push((run.texts.start, part.text.count(tokenizer, cache)));
        }
        for i in run.texts {
            texts.fetch(i + AHEAD);
            counts.push((i, texts.get(i).count(tokenizer, cache)));
        }
    });
    let mut counts = vec![0i64; texts.len()];
    for (i, count) in made.into_iter().flatten() {
        counts[i] += count as i64;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::added::AddedToken;
    use crate::vocabulary::tests::vocabulary_json;

    #[test]
    fn threads_and_chunks_change_nothing() {
        let json = vocabulary_json(&["ab", "Ġa"]);
        let tokenizer = Tokenizer::new(json.as_bytes(), "a b\nĠ a\n".as_bytes(), &[]).expect("good");
        let long = "ab a'll  b\n\n a 12 é\u{a0} x ".repeat(80_000);
        let endless = vec![b'a'; 3 * LONGEST_WHOLE];
        let mut texts = vec![b"ab".as_slice(), b"", long.as_bytes(), b" a", b"", &endless];
        texts.extend((0..9000).map(|i| &long.as_bytes()[17 * i..][..i % 97]));
        texts.extend([long.as_bytes(), b"", &long.as_bytes()[..LONGEST_WHOLE], b"ab"]);
        let caches = Caches::default();
        let mut expected: Vec<u32> = Vec::new();
        let mut borders = vec![0];
        for text in &texts {
            tokenizer.encode(text, &mut Cache::default(), &mut expected);
            borders.push(expected.len() as i64);
        }
        let texts: Vec<_> = texts.into_iter().map(Characters::Utf8).collect();
        for threads in [1, 2, 3, 64] {
            let (ids, offsets) = encode_batch::<u32>(&tokenizer, texts.as_slice(), threads, &caches);
            assert!(ids == expected && offsets == borders, "{threads} threads");
            let counts = count_batch(&tokenizer, texts.as_slice(), threads, &caches);
            assert!(counts.iter().zip(borders.windows(2)).all(|(&count, pair)| count == pair[1] - pair[0]));
        }
        let token = |text: &str, id, normalized| AddedToken {
            text: text.to_owned(),
            id,
            lstrip: false,
            rstrip: false,
            single_word: false,
            normalized,
        };
        let added =
            Added::new(vec![token("ab  b", 300, false), token("12 é", 301, true), token("aaa", 302, true)], true);
        let tokenizer = tokenizer.finding(added.expect("a few"));
        for (text, border) in texts.iter().zip(borders.windows(2)) {
            let mut alone: Vec<u32> = Vec::new();
            text.encode(&tokenizer, &mut Cache::default(), &mut alone);
            assert!(text.len() < 99 || alone.len() as i64 != border[1] - border[0]);
            let utf8 = text.to_utf8();
            let wide: Vec<u32> = std::str::from_utf8(&utf8).unwrap_or_default().chars().map(u32::from).collect();
            let wide = if wide.is_empty() { *text } else { Characters::Ucs4(&wide) };
            for text in [*text, wide] {
                for threads in [1, 2, 3] {
                    let (ids, _) = encode_batch::<u32>(&tokenizer, [text].as_slice(), threads, &caches);
                    assert!(ids == alone, "{threads} threads");
                }
            }
        }
        for threads in [1, 2] {
            let (ids, offsets) = encode_batch::<u16>(&tokenizer, [].as_slice(), threads, &caches);
            assert!(ids.is_empty() && offsets == [0]);
        }
    }

    #[test]
    fn runs_are_all_of_the_texts() {
        let text = "ab ".repeat(LONGEST_WHOLE);
        let lengths = [0, 5, 2 * LONGEST_WHOLE, 0, LONGEST_WHOLE, LONGEST_WHOLE + 1, RUN, 7, 3 * LONGEST_WHOLE];
        let all: Vec<usize> = lengths.into_iter().chain((0..5000).map(|i| i % 131)).chain(lengths).collect();
        let texts: Vec<_> = all.iter().map(|&length| Characters::Utf8(&text.as_bytes()[..length])).collect();
        for num_threads in [1, 2, 50] {
            let texts = texts.as_slice();
            let (mut next, mut inside) = (0, 0);
            for (i, run) in
                (Runs { texts, added: &Added::default(), num_threads, number: 0, next: 0, rest: None }).enumerate()
            {
                assert!(run.number == i && run.texts.start == next && !run.texts.is_empty());
                let Some(part) = run.part else {
                    assert!(inside == 0 && run.texts.clone().all(|i| all[i] <= LONGEST_WHOLE));
                    next = run.texts.end;
                    continue;
                };
                inside += part.text.len();
                assert!(run.texts.len() == 1 && part.text.len() <= LONGEST_WHOLE);
                if part.is_last {
                    assert!(inside == all[next]);
                    (next, inside) = (next + 1, 0);
                }
            }
            assert!(next == texts.len() && inside == 0);
        }
    }
}
