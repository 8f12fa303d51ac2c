//! GPT-2's split of a text into pieces, written out by hand.
//!
//! The pattern is `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` (Radford et al. 2019, the
//! published encoder). Its alternatives never need to go back by more than one character, so one pass with one
//! character of look-ahead finds the same pieces, in linear time for any text.

pub mod classify;
pub mod scan;

use crate::unicode::{decode, Class, ASCII, NON_ASCII};

/// The pieces of a text, in order, together exactly the text.
///
/// Bytes that are not UTF-8 are kept: each counts as a character that is no letter, number or space.
///
/// ```
/// let pieces: Vec<&[u8]> = _bpe::pretokenize::pieces(b"Hello's  world").collect();
/// assert_eq!(pieces, [&b"Hello"[..], b"'s", b" ", b" world"]);
/// ```
pub fn pieces(text: &[u8]) -> Pieces<'_> {
    Pieces { text, start: 0 }
}

/// Iterator over the pieces of a text; see [`pieces`].
pub struct Pieces<'a> {
    text: &'a [u8],
    start: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.start == self.text.len() {
            return None;
        }
        let end = piece_end(self.text, self.start);
        let piece = &self.text[self.start..end];
        self.start = end;
        Some(piece)
    }
}

/// The class and length of the character at `at`, which is inside the text.
#[inline(always)]
fn character(text: &[u8], at: usize) -> (u8, usize) {
    let class = ASCII[text[at] as usize];
    if class != NON_ASCII {
        return (class, 1);
    }
    let (class, length) = decode(&text[at..]);
    (class as u8, length)
}

/// Where the run of characters of `class` that contains `at` ends.
#[inline(always)]
fn run_end(text: &[u8], mut at: usize, class: u8) -> usize {
    while at < text.len() {
        let (found, length) = character(text, at);
        if found != class {
            break;
        }
        at += length;
    }
    at
}

/// Where the piece that starts at `start` ends; `start` is a border of pieces inside the text.
#[inline]
pub fn piece_end(text: &[u8], start: usize) -> usize {
    const SPACE: u8 = Class::Space as u8;
    let first = text[start];
    if first == b'\'' {
        match (text.get(start + 1), text.get(start + 2)) {
            (Some(b's' | b'd' | b'm' | b't'), _) => return start + 2,
            (Some(b'l'), Some(b'l')) | (Some(b'v' | b'r'), Some(b'e')) => return start + 3,
            _ => {}
        }
    }
    let (class, length) = character(text, start);
    if class != SPACE {
        return run_end(text, start + length, class);
    }
    if first == b' ' && start + 1 < text.len() {
        let (class, length) = character(text, start + 1);
        if class != SPACE {
            return run_end(text, start + 1 + length, class);
        }
    }
    // White space: all of it at the end of the text, else all but the last character, which may belong to what follows;
    // a single one is a piece.
    let mut last = start;
    let mut end = start + length;
    while end < text.len() {
        let (class, length) = character(text, end);
        if class != SPACE {
            return if last > start { last } else { end };
        }
        last = end;
        end += length;
    }
    end
}

/// The first place at or after `at` where a text, UTF-8 or characters, can be cut so that its pieces are those of its two
/// parts; its end where there is none.
///
/// That is between two letters' neighbours of different kinds: before a white space character that follows a
/// character that is none. (A piece may begin with one space, and never contains white space after anything else.)
pub fn safe_cut<U: Copy + Into<u32>>(text: &[U], at: usize) -> usize {
    let safe = |&cut: &usize| {
        let (before, after): (u32, u32) = (text[cut - 1].into(), text[cut].into());
        matches!(after, 0x20 | 0x09..=0x0d) && matches!(before, 0x21..=0x7e)
    };
    (at.max(1)..text.len()).find(safe).unwrap_or(text.len())
}

/// The last place where a text that goes on can be cut so that its pieces are those of its two parts, whatever follows;
/// 0 where there is none.
///
/// That is between two characters of different classes, the first of them no white space (which may lead what follows)
/// and no apostrophe (which may begin `'ll`). Bytes that are not UTF-8, or not yet, are no place to cut.
pub fn last_cut(text: &[u8]) -> usize {
    let mut cut = text.len();
    let mut after: Option<u8> = None;
    while cut > 0 {
        let begins = |&at: &usize| text[at] & 0xc0 != 0x80;
        let start = (cut.saturating_sub(4)..cut).rev().find(begins).unwrap_or(cut - 1);
        let (class, length) = character(&text[..cut], start);
        let whole = length == cut - start && (length > 1 || text[start].is_ascii());
        if let (true, Some(after)) = (whole, after) {
            if class != after && class != Class::Space as u8 && text[start] != b'\'' {
                return cut;
            }
        }
        after = whole.then_some(class);
        cut = start;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        pieces(text.as_bytes()).map(|piece| std::str::from_utf8(piece).expect("characters stay whole")).collect()
    }

    #[test]
    fn alternatives_of_the_pattern() {
        for (text, expected) in [
            ("", vec![]),
            ("Hello world", vec!["Hello", " world"]),
            ("we'll've'd'S '", vec!["we", "'ll", "'ve", "'d", "'", "S", " '"]),
            ("'lx 're '' 's", vec!["'", "lx", " '", "re", " ''", " '", "s"]),
            ("a1 1a _1", vec!["a", "1", " 1", "a", " _", "1"]),
            ("a  b", vec!["a", " ", " b"]),
            ("a   b", vec!["a", "  ", " b"]),
            ("a \n b", vec!["a", " \n", " b"]),
            ("a\n\nb", vec!["a", "\n", "\n", "b"]),
            ("a\tb", vec!["a", "\t", "b"]),
            ("a  ", vec!["a", "  "]),
            ("  ", vec!["  "]),
            (" ", vec![" "]),
            ("\u{a0}\u{a0}x", vec!["\u{a0}", "\u{a0}", "x"]),
            (" é1٣", vec![" é", "1٣"]),
        ] {
            assert_eq!(split(text), expected, "{text:?}");
        }
    }

    #[test]
    fn invalid_bytes_are_other_characters() {
        let found: Vec<&[u8]> = pieces(b"a\xff\x80! \xe2\x82z").collect();
        assert_eq!(found, [&b"a"[..], b"\xff\x80!", b" \xe2\x82", b"z"]);
    }

    #[test]
    fn last_cuts_hold_whatever_follows() {
        let text = "It's  a\u{a0} b\n\n  café，... 12x  ' s\t\tend we'll？\u{3000}x 一二三。".repeat(2);
        let borders = |text: &[u8]| {
            let ends = pieces(text).scan(0, |end, piece| {
                *end += piece.len();
                Some(*end)
            });
            ends.collect::<Vec<_>>()
        };
        let all = borders(text.as_bytes());
        let mut found = 0;
        for end in 0..=text.len() {
            let cut = last_cut(&text.as_bytes()[..end]);
            assert!(cut <= end && (cut == 0 || all.contains(&cut)), "{end} {cut}");
            found += usize::from(end > 0 && cut + 12 >= end);
        }
        assert!(found > text.len() - 12, "{found} of {}", text.len());
        for (text, cut) in
            [("", 0), ("abc", 0), ("a", 0), ("a ", 1), ("a  ", 1), ("a'", 1), ("'s", 0), ("!s", 1), ("é!", 2)]
        {
            assert_eq!(last_cut(text.as_bytes()), cut, "{text:?}");
        }
        for bytes in [&b"\xff"[..], b"a\xff", b"\xff a\xe2\x82", b"a\xe2\x82", b"\x80\x80\x80\x80\x80\x80", b"\x80 "] {
            assert!(last_cut(bytes) <= 2, "{bytes:?}");
        }
    }

    #[test]
    fn cuts_are_borders() {
        let text = "It's  a\u{a0} b\n\n  café ... 12  x ' s\t\tend  ".repeat(3);
        let mut borders = vec![0];
        for piece in pieces(text.as_bytes()) {
            borders.push(borders[borders.len() - 1] + piece.len());
        }
        for at in 0..=text.len() {
            let cut = safe_cut(text.as_bytes(), at);
            assert!(cut >= at && borders.contains(&cut), "{at} {cut}");
            let mut both: Vec<&[u8]> = pieces(&text.as_bytes()[..cut]).collect();
            both.extend(pieces(&text.as_bytes()[cut..]));
            assert!(both.into_iter().eq(pieces(text.as_bytes())), "{cut}");
        }
    }
}
