//! JSON of files that nobody vouches for, read in one pass: no key twice, and no memory for what is not wanted.
//!
//! serde_json reads the text and refuses what is not JSON, half a surrogate pair included. A [`Reader`] says what is
//! wanted of a value; everything else is checked, and dropped as it is read.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

/// What is wrong with a file, in words that can be printed.
#[derive(Debug, PartialEq)]
pub enum Problem {
    Content(String),
    /// A type of numbers that is unknown.
    Type(String),
}

/// Where the problem is kept that ended a pass: serde's own errors are text.
pub type Slot = RefCell<Option<Problem>>;

/// End the pass with a problem of the content.
pub fn refuse<T, E: Error>(slot: &Slot, message: String) -> Result<T, E> {
    stop(slot, Problem::Content(message))
}

/// End the pass with a problem.
pub fn stop<T, E: Error>(slot: &Slot, problem: Problem) -> Result<T, E> {
    slot.replace(Some(problem));
    Err(E::custom(""))
}

/// A JSON value; of lists and objects only that there was one.
#[derive(Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Integer(u64),
    Negative(i64),
    Number(f64),
    Text(String),
    List(usize),
    Object,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Negative(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Text(text) => f.write_str(&show(text)),
            Self::List(_) => f.write_str("a list"),
            Self::Object => f.write_str("an object"),
        }
    }
}

const LONGEST_SHOWN: usize = 80;

/// A text as messages quote it: escaped, and short however long it is.
pub fn show(text: &str) -> String {
    let mut shown = String::from("'");
    for (i, character) in text.chars().enumerate() {
        if i == LONGEST_SHOWN {
            return shown + "'...";
        }
        match character {
            '\'' | '\\' => shown.extend(['\\', character]),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            ' '..='~' => shown.push(character),
            '\0'..='\u{ff}' => shown.push_str(&format!("\\x{:02x}", character as u32)),
            '\0'..='\u{ffff}' => shown.push_str(&format!("\\u{:04x}", character as u32)),
            _ => shown.push_str(&format!("\\U{:08x}", character as u32)),
        }
    }
    shown + "'"
}

/// What is wanted of a value.
pub trait Reader<'de>: Sized {
    type Out;

    fn slot(&self) -> &Slot;

    /// What becomes of any value that has no function of its own below.
    fn value<E: Error>(self, value: Value) -> Result<Self::Out, E>;

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Out, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Read(Any(self.slot())))?;
            let twice = show(&key);
            if !keys.insert(key) {
                return refuse(self.slot(), format!("{twice} occurs twice"));
            }
        }
        self.value(Value::Object)
    }

    fn list<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Out, A::Error> {
        let mut count = 0;
        while list.next_element_seed(Read(Any(self.slot())))?.is_some() {
            count += 1;
        }
        self.value(Value::List(count))
    }
}

/// Any value, as it is.
pub struct Any<'s>(pub &'s Slot);

impl<'de> Reader<'de> for Any<'_> {
    type Out = Value;

    fn slot(&self) -> &Slot {
        self.0
    }

    fn value<E: Error>(self, value: Value) -> Result<Value, E> {
        Ok(value)
    }
}

/// A reader, as serde calls it.
pub struct Read<R>(pub R);

impl<'de, R: Reader<'de>> DeserializeSeed<'de> for Read<R> {
    type Value = R::Out;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<R::Out, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, R: Reader<'de>> Visitor<'de> for Read<R> {
    type Value = R::Out;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<R::Out, E> {
        self.0.value(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<R::Out, E> {
        self.0.value(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<R::Out, E> {
        self.0.value(Value::Integer(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<R::Out, E> {
        self.0.value(Value::Negative(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<R::Out, E> {
        self.0.value(Value::Number(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<R::Out, E> {
        self.0.value(Value::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<R::Out, A::Error> {
        self.0.object(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<R::Out, A::Error> {
        self.0.list(list)
    }
}

/// The one value that the text is, as `reader` reads it.
pub fn read<'de, R: Reader<'de>>(raw: &'de [u8], slot: &Slot, reader: R) -> Result<R::Out, Problem> {
    let text = std::str::from_utf8(raw)
        .map_err(|error| Problem::Content(format!("not UTF-8: a wrong byte at {}", error.valid_up_to())))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let found = Read(reader).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    found.map_err(|error| match slot.take() {
        Some(problem) => problem,
        None => Problem::Content(match error.to_string() {
            message if message.starts_with("recursion limit") => "nested too deeply".to_owned(),
            message if message.contains("hex escape") => {
                format!("not JSON: half of a surrogate pair, or an escape that is cut off: {message}")
            }
            message => format!("not JSON: {message}"),
        }),
    })
}

/// The strings of an object, by their names and in its order; `what` it is say messages.
pub struct Strings<'s> {
    pub slot: &'s Slot,
    pub what: &'s str,
    /// Whether null stands for no object at all.
    pub or_null: bool,
}

impl<'de> Reader<'de> for Strings<'_> {
    type Out = Option<Vec<(String, String)>>;

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn value<E: Error>(self, value: Value) -> Result<Self::Out, E> {
        if self.or_null && value != Value::Null {
            return refuse(self.slot, format!("{} is {value}, expected an object of strings", self.what));
        }
        Ok(None)
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Out, A::Error> {
        let mut strings = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            match map.next_value_seed(Read(Any(self.slot)))? {
                Value::Text(text) => strings.push((name, text)),
                value => {
                    let message = format!("{} has {value} for {}, expected a string", self.what, show(&name));
                    return refuse(self.slot, message);
                }
            }
        }
        if let Some(name) = first_twice(strings.iter().map(|(name, _)| name.as_str())) {
            return refuse(self.slot, format!("{} occurs twice", show(name)));
        }
        Ok(Some(strings))
    }
}

/// A name that is there more than once. Sorting takes less memory than a set.
fn first_twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut sorted: Vec<&str> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// The strings of the object that a JSON object has under `key`; None where there is no such object.
///
/// # Errors
/// Where the text is not JSON, or an object in it has a key twice, or that one has something else than strings.
pub fn strings_under(raw: &[u8], key: &str) -> Result<Option<Vec<(String, String)>>, Problem> {
    struct Root<'s> {
        slot: &'s Slot,
        key: &'s str,
    }

    impl<'de> Reader<'de> for Root<'_> {
        type Out = Option<Vec<(String, String)>>;

        fn slot(&self) -> &Slot {
            self.slot
        }

        fn value<E: Error>(self, _: Value) -> Result<Self::Out, E> {
            Ok(None)
        }

        fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Out, A::Error> {
            let (mut found, mut keys) = (None, HashSet::new());
            while let Some(key) = map.next_key::<String>()? {
                if key == self.key {
                    found = map.next_value_seed(Read(Strings { slot: self.slot, what: self.key, or_null: false }))?;
                } else {
                    map.next_value_seed(Read(Any(self.slot)))?;
                }
                let twice = show(&key);
                if !keys.insert(key) {
                    return refuse(self.slot, format!("{twice} occurs twice"));
                }
            }
            Ok(found)
        }
    }

    let slot = Slot::default();
    read(raw, &slot, Root { slot: &slot, key })
}
