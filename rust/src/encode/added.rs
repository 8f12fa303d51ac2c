//! Added tokens: texts that are one token wherever they stand, found before anything else is done with a text.
//!
//! The rules are those of Hugging Face's tokenizers: of the tokens that match at the leftmost place the longest counts;
//! those that are to be looked for in the text as it is (`normalized: false`) are found first, the others in what is left
//! between them; a token may take the white space beside it, and may have to be a word of its own.
//!
//! Performance notes (1 December 2026), ms of processor time for 1.6 MB of documentation seen before, which holds none of
//! the tokens, on a two-core AVX-512 machine that had other work too; least of fifteen:
//!
//! | added tokens | 0 | 1 | 4 | 100 | 1000 |
//! |---|---|---|---|---|---|
//! | ms | 2.4 | 2.6 | 2.7 | 3.6 | 6.5 |
//!
//! - A few are searched for by vector instructions, as `aho-corasick` does; many by a table of transitions.
//! - A table for more than 8 kB of tokens gained nothing: 6.5 ms for 1000, too.

use crate::encode::{Cache, Output, Tokenizer};
use crate::pretokenize::{last_cut, safe_cut};
use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, BuildError, MatchKind};
use std::ops::Range;
use std::sync::Arc;

/// A text that is one token, and how it is looked for.
#[derive(Clone, Debug)]
pub struct AddedToken {
    pub text: String,
    pub id: u32,
    /// White space to the left belongs to it, to the right.
    pub lstrip: bool,
    pub rstrip: bool,
    /// It counts only where no letter, digit, mark or `_` stands beside it.
    pub single_word: bool,
    /// It is looked for after those that are not.
    pub normalized: bool,
}

/// The added tokens that are found in texts, and whether a space goes before what is between them.
#[derive(Clone, Default)]
pub struct Added {
    inside: Option<Arc<Inside>>,
}

struct Inside {
    tokens: Vec<AddedToken>,
    first: Option<Matcher>,
    second: Option<Matcher>,
    prefix_space: bool,
    /// The bytes of the longest token.
    longest: usize,
}

/// What a text consists of: added tokens, and what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Between,
    Token(u32),
}

/// Finds some of the tokens.
struct Matcher {
    automaton: AhoCorasick,
    /// By the automaton's numbers.
    tokens: Vec<AddedToken>,
}

/// Bytes of tokens up to which the automaton is a table of all transitions, the fastest and largest kind.
const DFA_BYTES: usize = 1 << 13;
/// Places that are tried in a row for cutting a text in two.
const TRIES: usize = 1 << 10;

impl Matcher {
    fn new(tokens: Vec<AddedToken>) -> Result<Option<Self>, BuildError> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let small = tokens.iter().map(|token| token.text.len()).sum::<usize>() <= DFA_BYTES;
        let automaton = AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(small.then_some(AhoCorasickKind::DFA))
            .build(tokens.iter().map(|token| &token.text))?;
        Ok(Some(Self { automaton, tokens }))
    }

    /// Call `part` for each part of the text, in order; `at` is added to where they are.
    fn split(&self, text: &[u8], at: usize, part: &mut impl FnMut(Range<usize>, Part)) {
        let mut done = 0;
        for found in self.automaton.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if token.single_word && (ends_with_word(&text[..start]) || starts_with_word(&text[end..])) {
                continue;
            }
            if token.lstrip {
                start = done.max(trim_end(&text[..start]));
            }
            if token.rstrip {
                end += trim_start(&text[end..]);
            }
            if done < start {
                part(at + done..at + start, Part::Between);
            }
            // White space that the token before took may be its beginning.
            part(at + start.max(done)..at + end.max(done), Part::Token(token.id));
            done = end.max(done);
        }
        if done < text.len() {
            part(at + done..at + text.len(), Part::Between);
        }
    }
}

impl Added {
    /// # Errors
    /// Where there are more tokens than an automaton can be made of.
    pub fn new(tokens: Vec<AddedToken>, prefix_space: bool) -> Result<Self, BuildError> {
        if tokens.is_empty() && !prefix_space {
            return Ok(Self::default());
        }
        let (second, first) = tokens.iter().cloned().partition(|token| token.normalized);
        let inside = Inside {
            first: Matcher::new(first)?,
            second: Matcher::new(second)?,
            prefix_space,
            longest: tokens.iter().map(|token| token.text.len()).max().unwrap_or(0),
            tokens,
        };
        Ok(Self { inside: Some(Arc::new(inside)) })
    }

    /// Whether there is nothing to find, and nothing to put before a text.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.inside.is_none()
    }

    /// Call `part` for each part of the text, in order: together they are the text.
    pub fn split(&self, text: &[u8], mut part: impl FnMut(Range<usize>, Part)) {
        let Some(inside) = &self.inside else { return part(0..text.len(), Part::Between) };
        let mut later = |place: Range<usize>, found: Part| match (found, &inside.second) {
            (Part::Between, Some(second)) => second.split(&text[place.clone()], place.start, &mut part),
            _ => part(place, found),
        };
        match &inside.first {
            Some(first) => first.split(text, 0, &mut later),
            None if text.is_empty() => {}
            None => later(0..text.len(), Part::Between),
        }
    }

    /// Append the ids of the text to `out`, or count them.
    pub fn encode<O: Output>(&self, text: &[u8], tokenizer: &Tokenizer, cache: &mut Cache, out: &mut O) {
        self.split(text, |place, part| match part {
            Part::Token(id) => out.extend([id]),
            Part::Between => self.encode_between(&text[place], tokenizer, cache, out),
        });
    }

    /// The same for what is between added tokens.
    pub fn encode_between<O: Output>(&self, text: &[u8], tokenizer: &Tokenizer, cache: &mut Cache, out: &mut O) {
        if !self.puts_space_before(text) {
            return tokenizer.encode_plain(text, cache, out);
        }
        // Up to where the pieces are the same with the space and without it.
        let (head, rest) = text.split_at(safe_cut(text, 1));
        tokenizer.encode_plain(&[b" ", head].concat(), cache, out);
        tokenizer.encode_plain(rest, cache, out);
    }

    /// Whether a space is put before such a text.
    pub fn puts_space_before(&self, text: &[u8]) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.prefix_space) && text.first().is_some_and(|&byte| byte != b' ')
    }

    /// How many bytes on each side of a cut [`Added::may_cut`] looks at.
    pub fn window(&self) -> usize {
        self.inside.as_ref().map_or(0, |inside| inside.longest)
    }

    /// Whether a text may be cut between these two, a border of pieces, so that the tokens found are those of its parts,
    /// whatever stands before and behind.
    pub fn may_cut(&self, left: &[u8], right: &[u8]) -> bool {
        let Some(inside) = &self.inside else { return true };
        if inside.prefix_space && right.first() != Some(&b' ') {
            return false;
        }
        let across = |token: &AddedToken| {
            let text = token.text.as_bytes();
            // White space that it would take, or a neighbour that decides, may be on the other side.
            let whole_left = (token.rstrip || token.single_word) && left.ends_with(text);
            let whole_right = token.single_word && right.starts_with(text);
            let parted = (1..text.len()).any(|at| {
                let (before, after) = text.split_at(at);
                let seen = after.len().min(right.len());
                left.ends_with(before) && right[..seen] == after[..seen]
            });
            whole_left || whole_right || parted
        };
        !inside.tokens.iter().any(across)
    }

    /// The last place where a text that goes on can be cut without changing an id; 0 where there is none.
    pub fn last_cut(&self, text: &[u8]) -> usize {
        let mut cut = last_cut(text);
        for _ in 0..TRIES {
            if cut == 0 || self.may_cut(&text[..cut], &text[cut..]) {
                return cut;
            }
            cut = last_cut(&text[..cut]);
        }
        0
    }

    /// How many places [`crate::batch`] tries for cutting a text.
    pub const TRIES: usize = TRIES;
}

/// The first character, of bytes that are no character a replacement.
fn first(text: &[u8]) -> Option<char> {
    let head = &text[..text.len().min(4)];
    head.utf8_chunks().next().map(|chunk| chunk.valid().chars().next().unwrap_or(char::REPLACEMENT_CHARACTER))
}

/// The last character.
fn last(text: &[u8]) -> Option<char> {
    let tail = &text[text.len().saturating_sub(4)..];
    let begins = tail.iter().rposition(|&byte| byte & 0xc0 != 0x80);
    let chunk = tail[begins.unwrap_or(0)..].utf8_chunks().last()?;
    Some(if chunk.invalid().is_empty() { chunk.valid().chars().last()? } else { char::REPLACEMENT_CHARACTER })
}

fn is_word(character: char) -> bool {
    // The tables are part of the program.
    regex_syntax::try_is_word_character(character).unwrap_or(false)
}

fn starts_with_word(text: &[u8]) -> bool {
    first(text).is_some_and(is_word)
}

fn ends_with_word(text: &[u8]) -> bool {
    last(text).is_some_and(is_word)
}

/// Where the white space at the end of a text begins.
fn trim_end(text: &[u8]) -> usize {
    let mut end = text.len();
    while let Some(character) = last(&text[..end]).filter(|character| character.is_whitespace()) {
        end -= character.len_utf8();
    }
    end
}

/// Where the white space at the beginning of a text ends.
fn trim_start(text: &[u8]) -> usize {
    let mut start = 0;
    while let Some(character) = first(&text[start..]).filter(|character| character.is_whitespace()) {
        start += character.len_utf8();
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::vocabulary_json;

    fn token(text: &str, id: u32) -> AddedToken {
        let text = text.to_owned();
        AddedToken { text, id, lstrip: false, rstrip: false, single_word: false, normalized: false }
    }

    /// The parts of a text: tokens by their ids in brackets.
    fn split(tokens: &[AddedToken], text: &str) -> String {
        let added = Added::new(tokens.to_vec(), false).expect("a few");
        let (mut shown, mut end) = (String::new(), 0);
        added.split(text.as_bytes(), |place, part| {
            assert_eq!(place.start, end, "in order");
            end = place.end;
            match part {
                Part::Between => shown += &text[place],
                Part::Token(id) => shown += &format!("[{id}]"),
            }
        });
        assert_eq!(end, text.len());
        shown
    }

    #[test]
    fn the_longest_at_the_leftmost_place() {
        let tokens = [token("ab", 1), token("abc", 2), token("bcd", 3)];
        assert_eq!(split(&tokens, "xabcdab"), "x[2]d[1]");
        assert_eq!(split(&tokens, ""), "");
        assert_eq!(split(&tokens, "abab"), "[1][1]");
        assert_eq!(split(&[], "ab"), "ab");
    }

    #[test]
    fn those_that_are_not_normalized_come_first() {
        let later = AddedToken { normalized: true, ..token("ab", 1) };
        assert_eq!(split(&[later.clone(), token("bc", 2)], "abc ab"), "a[2] [1]");
        assert_eq!(split(&[token("ab", 1), token("bc", 2)], "abc ab"), "[1]c [1]");
    }

    #[test]
    fn white_space_beside_a_token() {
        let left = AddedToken { lstrip: true, ..token("<l>", 1) };
        let right = AddedToken { rstrip: true, ..token("<r>", 2) };
        let tokens = [left, right, token(" x", 3)];
        assert_eq!(split(&tokens, "a \u{a0}\n<l> b"), "a[1] b");
        assert_eq!(split(&tokens, "a <r> \u{2003} b"), "a [2]b");
        assert_eq!(split(&tokens, "<r>  <l>  <l>"), "[2][1][1]");
        assert_eq!(split(&tokens, "<r> x"), "[2][3]");
    }

    #[test]
    fn words_of_their_own() {
        let word = AddedToken { single_word: true, ..token("cat", 1) };
        for (text, expected) in [
            ("cat", "[1]"),
            ("a cat, cats", "a [1], cats"),
            ("concat cat_ _cat cat9 écat caté", "concat cat_ _cat cat9 écat caté"),
            ("cat\u{301} ²cat² 🙂cat-cat", "cat\u{301} ²[1]² 🙂[1]-[1]"),
        ] {
            assert_eq!(split(std::slice::from_ref(&word), text), expected);
        }
    }

    #[test]
    fn cuts_change_nothing() {
        let json = vocabulary_json(&["ab", "Ġa"]);
        let mut tokens = vec![token("New York", 300), token("a,", 301), token("< b", 302)];
        tokens.push(AddedToken { lstrip: true, ..token("<l>", 303) });
        tokens.push(AddedToken { rstrip: true, ..token("<r>", 304) });
        tokens.push(AddedToken { single_word: true, normalized: true, ..token("cat", 305) });
        for prefix_space in [false, true] {
            let added = Added::new(tokens.clone(), prefix_space).expect("a few");
            let tokenizer = Tokenizer::new(json.as_bytes(), "a b\nĠ a\n".as_bytes(), &[]).expect("good");
            let tokenizer = tokenizer.finding(added);
            let text = "New York a, < b  <l> <r>  \n\nx cat cats <r>x ab\u{a0}a. café, <l>,cat.New  York ".repeat(3);
            let encode = |text: &str| {
                let mut ids = Vec::<u32>::new();
                tokenizer.encode(text.as_bytes(), &mut Cache::default(), &mut ids);
                ids
            };
            let (all, mut cuts) = (encode(&text), 0);
            for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
                let cut = tokenizer.added().last_cut(&text.as_bytes()[..end]);
                cuts += usize::from(cut > 0);
                assert_eq!([encode(&text[..cut]), encode(&text[cut..])].concat(), all, "{:?}", &text[..cut]);
            }
            assert!(cuts > text.len() / 2);
        }
    }

    #[test]
    fn a_space_before_what_is_between() {
        let json = vocabulary_json(&["ab", "Ġa"]);
        let tokenizer = Tokenizer::new(json.as_bytes(), "a b\nĠ a\n".as_bytes(), &[]).expect("good");
        let with_space = tokenizer.finding(Added::new(vec![token("<m>", 300)], true).expect("one"));
        for (text, expected) in
            [("", ""), ("ab", " ab"), (" ab", " ab"), ("'s\n ab", " 's\n ab"), ("\n\nab", " \n\nab")]
        {
            let (mut ids, mut plain) = (Vec::<u32>::new(), Vec::<u32>::new());
            with_space.encode(text.as_bytes(), &mut Cache::default(), &mut ids);
            tokenizer.encode(expected.as_bytes(), &mut Cache::default(), &mut plain);
            assert_eq!(ids, plain, "{text:?}");
        }
        let mut ids = Vec::<u32>::new();
        with_space.encode(b"a<m>a", &mut Cache::default(), &mut ids);
        assert_eq!(ids, [257, 300, 257]);
    }
}
