//! vocab.json and merges.txt: read, checked, and turned into the tables that encoding needs.

pub mod gpt2;

use crate::merge::{merge_by_heap, Scratch};
use serde::de::{Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use tables::merges::Merges;
pub use tables::symbols::byte_symbols;
use tables::words::Words;

/// The file that is wrong, and what is wrong with it.
#[derive(Debug)]
pub enum VocabularyError {
    Vocabulary(String),
    Merges(String),
}

impl fmt::Display for VocabularyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vocabulary(message) | Self::Merges(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for VocabularyError {}

/// A byte-level BPE vocabulary: the bytes of every token, and the merges.
pub struct Vocabulary {
    pub(crate) bytes: Cow<'static, [u8]>,
    pub(crate) offsets: Cow<'static, [u32]>,
    pub(crate) added: Vec<(String, u32)>,
    pub(crate) merges: Merges,
}

impl Vocabulary {
    /// Read the contents of vocab.json and merges.txt.
    ///
    /// `added` are tokens that stand for themselves, by their text, which need not be made of byte symbols. Those that the
    /// vocabulary lacks are added at the ids given, those that it has must agree; one that is a byte, or that a merge
    /// makes, remains what it is.
    ///
    /// # Errors
    /// Where the vocabulary is no JSON object of strings to non-negative integers, has a key twice or something after
    /// its end; where ids do not cover 0 to size - 1 once each; where a token is not made of byte symbols or one of the
    /// 256 is missing; where a line of the merges is not two symbols and one space, or one of them or their product is
    /// no token; where a merge is there twice. The message names the key or the line.
    pub fn parse(vocabulary: &[u8], merges: &[u8], added: &[(String, u32)]) -> Result<Self, VocabularyError> {
        let mut entries = parse_json(vocabulary).map_err(VocabularyError::Vocabulary)?;
        let named: HashSet<&str> = added.iter().map(|(text, _)| text.as_str()).collect();
        let mut missing: HashMap<&str, u32> = added.iter().map(|(text, id)| (text.as_str(), *id)).collect();
        for (key, id) in &entries {
            if let Some(wanted) = missing.remove(key.as_str()) {
                if u64::from(wanted) != *id {
                    let message = format!("the added token {key:?} has id {id} in the vocabulary, not {wanted}");
                    return Err(VocabularyError::Vocabulary(message));
                }
            }
        }
        entries.extend(missing.into_iter().map(|(text, id)| (text.to_owned(), u64::from(id))));
        Self::build(&entries, merges, &named)
    }

    fn build(entries: &[(String, u64)], merges: &[u8], named: &HashSet<&str>) -> Result<Self, VocabularyError> {
        let wrong = |message: String| Err(VocabularyError::Vocabulary(message));
        let size = entries.len();
        if size > Merges::MAX_TOKENS {
            return wrong(format!("{size} tokens; at most {} are supported", Merges::MAX_TOKENS));
        }
        let mut by_id: Vec<Option<&str>> = vec![None; size];
        for (key, id) in entries {
            let Some(slot) = usize::try_from(*id).ok().and_then(|id| by_id.get_mut(id)) else {
                return wrong(format!("token {key:?} has id {id}; {size} tokens have the ids 0 to {}", size - 1));
            };
            if let Some(other) = slot {
                return wrong(format!("tokens {other:?} and {key:?} both have id {id}"));
            }
            *slot = Some(key);
        }

        let symbols = byte_symbols();
        let mut byte_of = [None; 0x144];
        for (byte, &symbol) in symbols.iter().enumerate() {
            byte_of[symbol as usize] = Some(byte as u8);
        }
        let byte_of = |symbol: char| byte_of.get(symbol as usize).copied().flatten();
        let mut byte_ids = [0; 256];
        let mut ids: HashMap<&str, u32> = HashMap::with_capacity(size);
        for (id, key) in (0..).zip(by_id.iter().flatten()) {
            if key.is_empty() {
                return wrong(format!("the token with id {id} is empty"));
            }
            match key.chars().find(|&symbol| byte_of(symbol).is_none()) {
                None => _ = ids.insert(key, id),
                Some(_) if named.contains(key) => {}
                Some(symbol) => {
                    return wrong(format!("token {key:?} (id {id}) holds {symbol:?}, which is no byte symbol"))
                }
            }
        }
        for (byte, &symbol) in symbols.iter().enumerate() {
            match ids.get(symbol.encode_utf8(&mut [0; 4]) as &str) {
                Some(&id) => byte_ids[byte] = id,
                None => return wrong(format!("there is no token for the byte {byte:#04x}, {symbol:?}")),
            }
        }
        let mut merges = parse_merges(merges, &ids, byte_ids).map_err(VocabularyError::Merges)?;
        let mut is_made = vec![false; size];
        byte_ids.iter().chain(&merges.products).for_each(|&id| is_made[id as usize] = true);
        let (mut bytes, mut offsets, mut found) = (Vec::with_capacity(8 * size), vec![0], Vec::new());
        for (id, key) in (0..).zip(by_id.iter().flatten()) {
            if named.contains(key) && !is_made[id as usize] {
                found.push(((*key).to_owned(), id));
                bytes.extend_from_slice(key.as_bytes());
            } else {
                bytes.extend(key.chars().filter_map(byte_of));
            }
            let Ok(end) = u32::try_from(bytes.len()) else {
                return wrong("the tokens are longer than 4 GiB together".to_owned());
            };
            offsets.push(end);
        }
        merges.finish(offsets.windows(2).map(|pair| pair[1] - pair[0]));
        Ok(Self { bytes: bytes.into(), offsets: offsets.into(), added: found, merges })
    }

    /// The number of tokens, added ones included.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Never: 256 tokens are the least.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a token, for added ones their text; None where there is no such id.
    #[inline]
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let end = *self.offsets.get(at + 1)? as usize;
        Some(&self.bytes[self.offsets[at] as usize..end])
    }

    /// The added tokens that are neither a byte nor made by a merge, and their ids, by id.
    pub fn added(&self) -> &[(String, u32)] {
        &self.added
    }

    pub fn merges(&self) -> &Merges {
        &self.merges
    }

    /// The table of the tokens that are the encoding of their own bytes, added ones left out.
    pub(crate) fn words(&self, seed: u64) -> Words {
        let added = self.are_added();
        // In order.
        let never: Vec<u32> = if self.merges.in_order() {
            (0..self.len() as u32).filter(|&id| self.merges.is_never(id)).collect()
        } else {
            self.unreachable()
        };
        let reached = |id: &u32| !added[*id as usize] && never.binary_search(id).is_err();
        let ids = (0..self.len() as u32).filter(reached);
        Words::new(seed, ids.filter_map(|id| Some((self.token(id)?, id))))
    }

    /// The tokens that are not the encoding of their own bytes, added ones left out, by merging each.
    pub fn unreachable(&self) -> Vec<u32> {
        let added = self.are_added();
        let (mut scratch, mut merged) = (Scratch::default(), Vec::new());
        let mut reaches = |id: u32| {
            merged.clear();
            merge_by_heap(self.token(id).unwrap_or_default(), &self.merges, &mut scratch, &mut merged);
            merged == [id]
        };
        (0..self.len() as u32).filter(|&id| !added[id as usize] && !reaches(id)).collect()
    }

    fn are_added(&self) -> Vec<bool> {
        let mut added = vec![false; self.len()];
        for &(_, id) in &self.added {
            added[id as usize] = true;
        }
        added
    }
}

/// The entries of a JSON object of strings to non-negative integers, in the order of the file.
fn parse_json(text: &[u8]) -> Result<Vec<(String, u64)>, String> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, u64)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object of tokens and their ids")
        }
        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut entries: Vec<(String, u64)> = Vec::new();
            while let Some(key) = map.next_key::<String>()? {
                let id = map.next_value::<u64>().map_err(|error| {
                    serde::de::Error::custom(format_args!(
                        "the id of token {key:?} is no non-negative integer: {error}"
                    ))
                })?;
                entries.push((key, id));
            }
            Ok(entries)
        }
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let entries = json.deserialize_map(Entries).map_err(|error| error.to_string())?;
    json.end().map_err(|error| format!("something follows the JSON object: {error}"))?;
    if entries.is_empty() {
        return Err("the vocabulary is empty".to_owned());
    }
    let mut seen: HashSet<&str> = HashSet::with_capacity(entries.len());
    for (key, _) in &entries {
        if !seen.insert(key.as_str()) {
            return Err(format!("token {key:?} is there twice"));
        }
    }
    Ok(entries)
}

fn parse_merges(text: &[u8], ids: &HashMap<&str, u32>, byte_ids: [u32; 256]) -> Result<Merges, String> {
    let text = std::str::from_utf8(text).map_err(|error| {
        let line = 1 + text[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        format!("line {line} is not UTF-8")
    })?;
    let mut merges = Merges::with_capacity(text.bytes().filter(|&byte| byte == b'\n').count() + 1, byte_ids);
    let mut joined = String::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        // Only the first line can be a comment: `# #` is a merge.
        if line.is_empty() || (number == 1 && line.starts_with("#version")) {
            continue;
        }
        let mut parts = line.split(' ');
        let (Some(left), Some(right), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("line {number} is {line:?}; expected two symbols and one space between them"));
        };
        let id = |symbol: &str| {
            ids.get(symbol).copied().ok_or_else(|| format!("line {number}: {symbol:?} is not in the vocabulary"))
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if !merges.push(id(left)?, id(right)?, id(&joined)?) {
            return Err(format!("line {number}: the merge {line:?} is there twice"));
        }
    }
    Ok(merges)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The 256 byte symbols by their byte, then `products` from 256 on, as vocab.json.
    pub(crate) fn vocabulary_json(products: &[&str]) -> String {
        let symbols = byte_symbols();
        let tokens = symbols.iter().map(char::to_string).chain(products.iter().map(|&p| p.to_owned()));
        let entries: Vec<String> = tokens.enumerate().map(|(id, token)| format!("{token:?}: {id}")).collect();
        format!("{{{}}}", entries.join(", "))
    }

    fn message(vocabulary: &str, merges: &str) -> String {
        match Vocabulary::parse(vocabulary.as_bytes(), merges.as_bytes(), &[]) {
            Ok(_) => "accepted".to_owned(),
            Err(VocabularyError::Vocabulary(message)) => format!("vocabulary: {message}"),
            Err(VocabularyError::Merges(message)) => format!("merges: {message}"),
        }
    }

    #[test]
    fn merges_are_checked() {
        let json = vocabulary_json(&["##", "ab", "abc"]);
        for (merges, expected) in [
            ("", "accepted"),
            ("#version: 0.2\n# #\r\n\na b\nab c", "accepted"),
            ("# #\na b", "accepted"),
            ("a b\n#version: 0.2", "merges: line 2: \"#version:\" is not in the vocabulary"),
            ("a b\na b", "merges: line 2: the merge \"a b\" is there twice"),
            ("a", "merges: line 1 is \"a\"; expected two symbols and one space between them"),
            ("a b c", "merges: line 1 is \"a b c\"; expected two symbols and one space between them"),
            ("a  b", "merges: line 1 is \"a  b\"; expected two symbols and one space between them"),
            ("a ", "merges: line 1: \"\" is not in the vocabulary"),
            ("\n\nab d", "merges: line 3: \"abd\" is not in the vocabulary"),
            ("\u{feff}a b", "merges: line 1: \"\\u{feff}a\" is not in the vocabulary"),
        ] {
            assert_eq!(message(&json, merges), expected, "{merges:?}");
        }
    }

    #[test]
    fn vocabularies_are_checked() {
        let good = vocabulary_json(&["ab"]);
        assert_eq!(message(&good, "a b"), "accepted");
        for (from, to, part) in [
            ("\"ab\": 256", "\"ab\": 257", "has id 257"),
            ("\"ab\": 256", "\"ab\": 255", "both have id 255"),
            ("\"ab\": 256", "\"a\": 256", "\"a\" is there twice"),
            ("\"ab\": 256", "\"ab\": -1", "id of token \"ab\""),
            ("\"ab\": 256", "\"ab\": 1.0", "id of token \"ab\""),
            ("\"ab\": 256", "\"ab\": \"256\"", "id of token \"ab\""),
            ("\"ab\": 256", "\"a b\": 256", "which is no byte symbol"),
            ("\"ab\": 256", "\"\": 256", "is empty"),
            ("\"a\": 97", "\"aa\": 97", "no token for the byte 0x61"),
            ("}", "} x", "something follows"),
            ("}", "", "EOF"),
        ] {
            // The byte `}` is a token too: only the last brace ends the object.
            let at = good.rfind(from).expect(from);
            let found = message(&format!("{}{to}{}", &good[..at], &good[at + from.len()..]), "");
            assert!(found.starts_with("vocabulary: ") && found.contains(part), "{to}: {found}");
        }
        assert!(message("[]", "").contains("expected a JSON object"));
        assert!(message("{}", "").contains("empty"));
    }

    #[test]
    fn added_tokens_may_be_any_text() {
        let json = vocabulary_json(&["<a b>"]);
        let vocabulary = Vocabulary::parse(json.as_bytes(), b"", &[("<a b>".to_owned(), 256), ("日".to_owned(), 257)])
            .expect("good");
        assert_eq!(vocabulary.token(256), Some(&b"<a b>"[..]));
        assert_eq!(vocabulary.token(257), Some("日".as_bytes()));
        assert_eq!(vocabulary.token(258), None);
        assert_eq!(vocabulary.added(), [("<a b>".to_owned(), 256), ("日".to_owned(), 257)]);
        assert!(Vocabulary::parse(json.as_bytes(), b"", &[("<a b>".to_owned(), 3)]).is_err());
    }

    #[test]
    fn added_tokens_that_are_there_already_remain_what_they_are() {
        let json = vocabulary_json(&["ab", "<é>"]);
        let added = [("a", 97), ("ab", 256), ("<é>", 257)].map(|(text, id)| (text.to_owned(), id));
        let vocabulary = Vocabulary::parse(json.as_bytes(), b"a b", &added).expect("good");
        assert_eq!(vocabulary.added(), &added[2..]);
        assert_eq!(vocabulary.token(257), Some("<é>".as_bytes()));
        assert!(vocabulary.unreachable().is_empty());
        assert_eq!(vocabulary.words(7).find(b"ab"), Some(256));
        assert_eq!(vocabulary.words(7).find(b"a"), Some(97));
    }
}
