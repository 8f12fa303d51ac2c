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
pub struct FieldTexts {
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
/// `meta.text` is the field of that name, or else the field `text` of the object that `meta` holds. NaN and infinities,
/// which JSON lacks and Python's writer has, may stand elsewhere in a line.
///
/// Half of a surrogate pair (`\ud83d` alone) becomes U+FFFD, as everywhere in the tokenizer. Bytes that are not UTF-8 make
/// a bad line, or with `mend` become U+FFFD, too.
///
/// ```
/// let texts = _bpe::text::jsonl::read(b"{\"text\": \"a\\n\"}\n\n{\"id\": 1}\n", "text", false, 1);
/// assert_eq!((texts.data, texts.offsets), (b"a\n".to_vec(), vec![0, 2]));
/// assert_eq!(texts.bad, [(2, "there is no field \"text\", but \"id\"".to_owned())]);
/// ```
pub fn read(block: &[u8], field: &str, mend: bool, num_threads: usize) -> FieldTexts {
    let parts = cut(block, num_threads.clamp(1, block.len() / CHUNK + 1));
    if parts.len() <= 1 {
        return read_part(block, field, mend).1;
    }
    let mut results: Vec<(usize, FieldTexts)> = std::thread::scope(|scope| {
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
    // The first part's texts stay where they are: they may be nearly all.
    let (mut first_line, mut all) = results.remove(0);
    all.data.reserve(results.iter().map(|(_, texts)| texts.data.len()).sum());
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
    if !rest.is_empty() || parts.is_empty() {
        parts.push(rest);
    }
    parts
}

/// The number of lines in `part`, and their texts.
fn read_part(part: &[u8], field: &str, mend: bool) -> (usize, FieldTexts) {
    let mut texts = FieldTexts { data: Vec::with_capacity(part.len()), offsets: vec![0], ..FieldTexts::default() };
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

impl FieldTexts {
    fn add(&mut self, number: usize, line: &[u8], field: &str) {
        let done = match text_of(line, field) {
            Err(_) if has_nan(line) => {
                let line = without_nan(line);
                self.push(&line, text_of(&line, field), field)
            }
            text => self.push(line, text, field),
        };
        if let Err(message) = done {
            self.bad.push((number, message));
        }
    }

    fn push(&mut self, line: &[u8], text: Found<'_>, field: &str) -> Result<(), String> {
        match text {
            Ok(Some(text)) => {
                push_text(&mut self.data, &text);
                self.offsets.push(self.data.len() as i64);
                Ok(())
            }
            Ok(None) => Err(missing(line, field)),
            Err(error) => Err(explain(&error, field)),
        }
    }
}

/// A line's text, where there is one; as bytes, which may hold what a str may not: lone surrogates.
type Found<'a> = Result<Option<Cow<'a, [u8]>>, serde_json::Error>;

fn text_of<'a>(line: &'a [u8], field: &str) -> Found<'a> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let text = json.deserialize_map(Line(field)).and_then(|text| json.end().map(|()| text));
    // Strings taken as bytes may hold control characters, which JSON has as escapes only.
    if line.trim_ascii_end().iter().any(u8::is_ascii_control) {
        return serde_json::from_slice::<IgnoredAny>(line).and(text);
    }
    text
}

/// The numbers that JSON lacks, longest first.
const NAN: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

fn has_nan(line: &[u8]) -> bool {
    line.windows(3).any(|bytes| bytes == b"NaN" || bytes == b"Inf")
}

/// The line with null for each NaN and infinity outside of its strings.
fn without_nan(line: &[u8]) -> Vec<u8> {
    let mut mended = Vec::with_capacity(line.len() + 16);
    let (mut place, mut quoted) = (0, false);
    while place < line.len() {
        let rest = &line[place..];
        match (rest[0], NAN.iter().find(|name| !quoted && rest.starts_with(name))) {
            (_, Some(name)) => {
                mended.extend_from_slice(b"null");
                place += name.len();
            }
            (b'\\', _) if quoted && rest.len() > 1 => {
                mended.extend_from_slice(&rest[..2]);
                place += 2;
            }
            (byte, _) => {
                quoted ^= byte == b'"';
                mended.push(byte);
                place += 1;
            }
        }
    }
    mended
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
        true if !field.contains('.') && message.contains("expected a JSON object") => message,
        true => format!("the field {field:?}: {message}"),
        false => format!("not JSON: {message}"),
    }
}

/// Takes a line's object and gives the text of the field of this name, the last one where there are several; or, where
/// the name begins with that of a field and a dot, what the rest names in the object that the field holds.
struct Line<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = Option<Cow<'de, [u8]>>;

    fn deserialize<D: Deserializer<'de>>(self, object: D) -> Result<Self::Value, D::Error> {
        object.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = Option<Cow<'de, [u8]>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut nested) = (None, None);
        while let Some(rest) = map.next_key_seed(Key(self.0))? {
            match rest {
                Some("") => found = Some(map.next_value_seed(Value)?),
                Some(rest) => nested = map.next_value_seed(Line(rest))?.or(nested),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found.or(nested))
    }
}

/// Takes a key and tells, without keeping it, what it leaves of this name: nothing where it is the name, what comes after
/// the dot where it is followed by one, and None where the name does not begin with it.
struct Key<'a>(&'a str);

impl<'a, 'de> DeserializeSeed<'de> for Key<'a> {
    type Value = Option<&'a str>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Key<'a> {
    type Value = Option<&'a str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        let rest = self.0.strip_prefix(key);
        Ok(rest.and_then(|rest| {
            if rest.is_empty() {
                Some(rest)
            } else {
                rest.strip_prefix('.').filter(|rest| !rest.is_empty())
            }
        }))
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
            (r#"{"b": NaN, "a": [-Infinity, Infinity], "text": "NaN \" NaN"}"#, "NaN \" NaN"),
        ] {
            assert_eq!(one(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn names_with_dots() {
        for (line, expected) in [
            (r#"{"a": {"b": "x"}}"#, Ok("x")),
            (r#"{"a.b": "y", "a": {"b": "x"}}"#, Ok("y")),
            (r#"{"a": {"b": "x"}, "a.b": "y"}"#, Ok("y")),
            (r#"{"a": {"c": "x"}}"#, Err("there is no field \"a.b\", but \"a\"")),
            (r#"{"a": "x"}"#, Err("the field \"a.b\": invalid type: string \"x\", expected a JSON object")),
        ] {
            let texts = read(line.as_bytes(), "a.b", false, 1);
            match (expected, texts.bad.first()) {
                (Ok(text), None) => assert_eq!(texts.data, text.as_bytes(), "{line}"),
                (Err(message), Some((_, found))) => assert!(found.starts_with(message), "{line}: {found}"),
                (_, found) => panic!("{line}: {found:?}"),
            }
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
            (r#"{"b": 1, "a": NaN}"#, "there is no field \"text\", but \"a\", \"b\""),
            (r#"{"text": NaN}"#, "the field \"text\": invalid type: null, expected a string"),
            (r#"{"b": nan, "text": "NaN"}"#, "not JSON"),
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
        assert_eq!(read(b"", "text", false, 4), FieldTexts { offsets: vec![0], ..FieldTexts::default() });
    }
}
