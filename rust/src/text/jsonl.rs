//! The texts of JSON lines: one field of each line's object, on many threads.
//!
//! Everything else in a line is checked to be JSON and skipped. What is wrong with a line is said, line by line, and the
//! others are read all the same: who calls decides whether that is an error.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Bytes that are worth a thread.
const CHUNK: usize = 1 << 18;

/// The texts of some lines, one after the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// UTF-8.
    pub data: Vec<u8>,
    /// Text i is `data[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<i64>,
    /// Lines without a text, by their number from 0, and why.
    pub bad: Vec<(usize, String)>,
    /// Lines that were not UTF-8 and have been mended.
    pub mended: usize,
}

/// The texts that `field` holds in the lines of `block`; lines of white space are none.
///
/// Half of a surrogate pair (`\ud83d` alone) becomes U+FFFD, as everywhere in the tokenizer. Bytes that are not UTF-8 make
/// a bad line, or with `mend` become U+FFFD, too.
///
/// ```
/// let texts = _bpe::text::jsonl::read(b"{\"text\": \"a\\n\"}\n\n{\"id\": 1}\n", "text", false, 1);
/// assert_eq!((texts.data, texts.offsets), (b"a\n".to_vec(), vec![0, 2]));
/// assert_eq!(texts.bad, [(2, "there is no field \"text\", but \"id\"".to_owned())]);
/// ```
pub fn read(block: &[u8], field: &str, mend: bool, num_threads: usize) -> Texts {
    let parts = cut(block, num_threads.clamp(1, block.len() / CHUNK + 1));
    if parts.len() <= 1 {
        return read_part(block, field, mend).1;
    }
    let results: Vec<(usize, Texts)> = std::thread::scope(|scope| {
        let started: Vec<_> = parts[1..]
            .iter()
            .map(|&part| (part, std::thread::Builder::new().spawn_scoped(scope, move || read_part(part, field, mend))))
            .collect();
        let mut results = vec![read_part(parts[0], field, mend)];
        for (part, thread) in started {
            // Where the system gives no thread, this one does the work.
            let done = thread.ok().and_then(|thread| thread.join().ok());
            results.push(done.unwrap_or_else(|| read_part(part, field, mend)));
        }
        results
    });
    let mut all = Texts { offsets: vec![0], ..Texts::default() };
    all.data.reserve(results.iter().map(|(_, texts)| texts.data.len()).sum());
    let mut first_line = 0;
    for (lines, texts) in results {
        let start = all.data.len() as i64;
        all.data.extend_from_slice(&texts.data);
        all.offsets.extend(texts.offsets[1..].iter().map(|offset| start + offset));
        all.bad.extend(texts.bad.into_iter().map(|(line, message)| (first_line + line, message)));
        all.mended += texts.mended;
        first_line += lines;
    }
    all
}

/// About `count` parts of about the same size, each of whole lines.
fn cut(block: &[u8], count: usize) -> Vec<&[u8]> {
    let mut parts = Vec::with_capacity(count);
    let mut rest = block;
    for left in (2..=count).rev() {
        let at = rest.len() / left;
        let Some(newline) = rest[at..].iter().position(|&byte| byte == b'\n') else { break };
        let (part, after) = rest.split_at(at + newline + 1);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts
}

/// The number of lines in `part`, and their texts.
fn read_part(part: &[u8], field: &str, mend: bool) -> (usize, Texts) {
    let mut texts = Texts { data: Vec::with_capacity(part.len()), offsets: vec![0], ..Texts::default() };
    let mut lines = 0;
    for line in part.split_inclusive(|&byte| byte == b'\n') {
        if !line.iter().all(u8::is_ascii_whitespace) {
            match std::str::from_utf8(line) {
                Ok(line) => texts.add(lines, line.as_bytes(), field),
                Err(_) if mend => {
                    texts.mended += 1;
                    texts.add(lines, String::from_utf8_lossy(line).as_bytes(), field);
                }
                Err(error) => texts.bad.push((lines, format!("not UTF-8 at byte {} of the line", error.valid_up_to()))),
            }
        }
        lines += 1;
    }
    (lines, texts)
}

impl Texts {
    fn add(&mut self, number: usize, line: &[u8], field: &str) {
        let mut json = serde_json::Deserializer::from_slice(line);
        let mut text = json.deserialize_map(Line(field)).and_then(|text| json.end().map(|()| text));
        // Strings taken as bytes may hold control characters, which JSON has as escapes only.
        if line.trim_ascii_end().iter().any(u8::is_ascii_control) {
            text = serde_json::from_slice::<IgnoredAny>(line).and(text);
        }
        match text {
            Ok(Some(text)) => {
                push_text(&mut self.data, &text);
                self.offsets.push(self.data.len() as i64);
            }
            Ok(None) => self.bad.push((number, missing(line, field))),
            Err(error) => self.bad.push((number, explain(&error, field))),
        }
    }
}

/// Append a text that is UTF-8 but for lone surrogates, which are three bytes that begin with ED, A0 or more.
fn push_text(data: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Err(error) = std::str::from_utf8(rest) {
        let (good, bad) = rest.split_at(error.valid_up_to());
        data.extend_from_slice(good);
        data.extend_from_slice("\u{fffd}".as_bytes());
        rest = &bad[bad.len().min(3)..];
    }
    data.extend_from_slice(rest);
}

fn missing(line: &[u8], field: &str) -> String {
    let found: BTreeMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
    let mut names: Vec<String> = found.keys().take(8).map(|name| format!("{name:?}")).collect();
    if found.len() > names.len() {
        names.push("...".to_owned());
    }
    match names.is_empty() {
        true => format!("there is no field {field:?}, nor any other"),
        false => format!("there is no field {field:?}, but {}", names.join(", ")),
    }
}

fn explain(error: &serde_json::Error, field: &str) -> String {
    let message = error.to_string();
    // Each line is a document of its own to the parser, which calls it line 1.
    let message = message.split(" at line 1 column ").collect::<Vec<_>>().join(" at byte ");
    match error.is_data() {
        true if message.contains("expected a JSON object") => message,
        true => format!("the field {field:?}: {message}"),
        false => format!("not JSON: {message}"),
    }
}

/// Takes a line's object and gives the text of the field of this name, the last one where there are several.
struct Line<'a>(&'a str);

impl<'de> Visitor<'de> for Line<'_> {
    type Value = Option<Cow<'de, [u8]>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(wanted) = map.next_key_seed(Key(self.0))? {
            if wanted {
                found = Some(map.next_value_seed(Value)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Takes a key and tells whether it is this one, without keeping it.
struct Key<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<bool, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Takes a string as bytes, which may hold what a str may not: lone surrogates.
struct Value;

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Cow<'de, [u8]>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_bytes(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Cow<'de, [u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E: Error>(self, text: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_bytes<E: Error>(self, text: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<String, String> {
        let texts = read(line.as_bytes(), "text", false, 1);
        match texts.bad.into_iter().next() {
            Some((_, message)) => Err(message),
            None => Ok(String::from_utf8(texts.data).expect("UTF-8")),
        }
    }

    #[test]
    fn texts_of_lines() {
        for (line, expected) in [
            (r#"{"text": "plain"}"#, "plain"),
            (r#" { "a" : [1, {"text": 2}], "text" : "x\ty\u00e9\ud83d\ude42" } "#, "x\tyé🙂"),
            (r#"{"text": "first", "text": "last"}"#, "last"),
            (r#"{"te\u0078t": ""}"#, ""),
            (r#"{"text": "a\ud83d b\udc00\ud83dc"}"#, "a\u{fffd} b\u{fffd}\u{fffd}c"),
            (r#"{"id": "\ud83d", "text": "é"}"#, "é"),
            ("{\"text\": \"a\\u0000b\"}\r", "a\0b"),
        ] {
            assert_eq!(one(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, expected) in [
            (r#"{"text": "#, "not JSON: EOF while parsing a value at byte 9"),
            (r#"{"text": "a"} {}"#, "not JSON: trailing characters at byte 15"),
            ("{\"text\": \"a\tb\"}", "not JSON: control character"),
            (r#"{"text": 5}"#, "the field \"text\": invalid type: integer `5`, expected a string"),
            (r#"{"text": null}"#, "the field \"text\": invalid type: null, expected a string"),
            (r#"{"text": ["a"]}"#, "the field \"text\": invalid type: sequence, expected a string"),
            ("[1]", "invalid type: sequence, expected a JSON object"),
            ("{}", "there is no field \"text\", nor any other"),
            (r#"{"b": 1, "a": NaN}"#, "not JSON"),
        ] {
            let found = one(line).expect_err(line);
            assert!(found.starts_with(expected), "{line}: {found}");
        }
    }

    #[test]
    fn bytes_that_are_no_text() {
        let block = b"{\"text\": \"a\"}\n{\"text\": \"\xff\xe2\x82\"}\n\n \n{\"text\": \"b\"}";
        let strict = read(block, "text", false, 1);
        assert_eq!((strict.data.as_slice(), strict.offsets.as_slice()), (&b"ab"[..], &[0, 1, 2][..]));
        assert_eq!(strict.bad, [(1, "not UTF-8 at byte 10 of the line".to_owned())]);
        let mended = read(block, "text", true, 1);
        assert_eq!(std::str::from_utf8(&mended.data), Ok("a\u{fffd}\u{fffd}b"));
        assert_eq!((mended.mended, mended.bad.len()), (1, 0));
    }

    #[test]
    fn threads_change_nothing() {
        let mut block = Vec::new();
        for i in 0..60_000 {
            let bad = if i % 7919 == 3 { "" } else { "\"}" };
            block.extend_from_slice(format!("{{\"id\": {i}, \"text\": \"line {i}{bad}\n").as_bytes());
        }
        let alone = read(&block, "text", false, 1);
        assert_eq!((alone.bad.len(), alone.bad[1].0), (8, 7922));
        for threads in [2, 3, 64] {
            assert!(read(&block, "text", false, threads) == alone, "{threads} threads");
        }
        assert_eq!(read(b"", "text", false, 4), Texts { offsets: vec![0], ..Texts::default() });
    }
}
