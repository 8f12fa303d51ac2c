//! The header of a safetensors file: read and checked in one pass, in memory for what it says and nothing else.
//!
//! The format: a JSON object that gives each tensor's dtype, shape and place in the data, and a `__metadata__` of
//! strings (<https://github.com/huggingface/safetensors#format>). Refused is what the reference refuses, and more: keys
//! that are there twice, gaps, overlaps, bytes that belong to no tensor.

mod json;

pub use json::{strings_under, Problem};

use json::{read, refuse, show, stop, Any, Read, Reader, Slot, Strings, Value};
use serde::de::{Error, MapAccess, SeqAccess};
use std::collections::HashSet;

const METADATA: &str = "__metadata__";

/// The format's types of numbers, and how many bits each takes.
pub const DTYPES: [(&str, u8); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// NumPy counts elements and bytes in a signed machine word.
const MOST_BITS: u128 = (i64::MAX as u128) * 8;

/// One tensor, its bytes `begin..end` of the data.
#[derive(Debug)]
pub struct Tensor {
    pub name: Box<str>,
    pub dtype: &'static str,
    pub shape: Box<[u64]>,
    pub begin: u64,
    pub end: u64,
}

/// What a header says.
#[derive(Debug, Default)]
pub struct Header {
    /// In the order of their data.
    tensors: Vec<Tensor>,
    /// The places in `tensors`, by name.
    by_name: Vec<u32>,
    metadata: Vec<(String, String)>,
}

impl Header {
    /// Read the header `raw` of a file with `data_size` bytes behind it, whose tensors may have `max_dims` dimensions.
    ///
    /// # Errors
    /// Where it is no correct header; the message names the tensor, what was found and what was expected.
    pub fn parse(raw: &[u8], data_size: u64, max_dims: usize) -> Result<Self, Problem> {
        let slot = Slot::default();
        let root = Root { slot: &slot, max_dims };
        let mut header = read(raw, &slot, root).map_err(|problem| match problem {
            // Those of a tensor say so themselves.
            Problem::Content(message) if !message.starts_with("tensor ") && !message.starts_with(METADATA) => {
                Problem::Content(format!("header: {message}"))
            }
            problem => problem,
        })?;
        let count = u32::try_from(header.tensors.len())
            .map_err(|_| Problem::Content("header: there are more than 4294967295 tensors".to_owned()))?;
        header.tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
        let tensors = &header.tensors;
        header.by_name = (0..count).collect();
        header.by_name.sort_unstable_by_key(|&i| &*tensors[i as usize].name);
        let name = |i: &u32| &*tensors[*i as usize].name;
        if let Some(pair) = header.by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(Problem::Content(format!("header: {} occurs twice", show(name(&pair[0])))));
        }
        header.check_layout(data_size)?;
        Ok(header)
    }

    /// Refuse gaps, overlaps and bytes that no tensor owns.
    fn check_layout(&self, data_size: u64) -> Result<(), Problem> {
        let mut place = 0;
        for tensor in &self.tensors {
            if tensor.begin != place {
                let what =
                    if tensor.begin < place { "overlaps the tensor before it" } else { "leaves a gap before it" };
                return Err(Problem::Content(format!(
                    "tensor {}: starts at byte {} of the data and {what}, which ends at byte {place}",
                    show(&tensor.name),
                    tensor.begin
                )));
            }
            place = tensor.end;
        }
        if place > data_size {
            let message = format!("truncated: the header describes {place} bytes of data, the file holds {data_size}");
            return Err(Problem::Content(message));
        }
        if place < data_size {
            let rest = data_size - place;
            let message = format!("{rest} bytes follow the last tensor, which ends at byte {place}");
            return Err(Problem::Content(message));
        }
        Ok(())
    }

    /// The tensors in the order of their data.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let found = self.by_name.binary_search_by_key(&name, |&i| &*self.tensors[i as usize].name).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    /// The metadata, in the file's order; empty where there is none.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}

struct Root<'s> {
    slot: &'s Slot,
    max_dims: usize,
}

impl<'de> Reader<'de> for Root<'_> {
    type Out = Header;

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn value<E: Error>(self, value: Value) -> Result<Header, E> {
        refuse(self.slot, format!("is {value}, expected an object"))
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut header, mut described) = (Header::default(), false);
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if described {
                    return refuse(self.slot, format!("{} occurs twice", show(METADATA)));
                }
                described = true;
                // null is what some writers make of no metadata.
                let strings = Strings { slot: self.slot, what: METADATA, or_null: true };
                header.metadata = map.next_value_seed(Read(strings))?.unwrap_or_default();
                continue;
            }
            let fields = map.next_value_seed(Read(Entry { slot: self.slot, name: &name, max_dims: self.max_dims }))?;
            match fields.into_tensor(&name, self.max_dims) {
                Ok(tensor) => header.tensors.push(tensor),
                Err(problem) => return stop(self.slot, problem),
            }
        }
        Ok(header)
    }
}

/// The first values of a list, and how many there are.
struct Few {
    first: Vec<Value>,
    count: usize,
}

/// A list of which no more than `most` values are kept; the value itself where it is no list.
struct FewOf<'s> {
    slot: &'s Slot,
    most: usize,
}

impl<'de> Reader<'de> for FewOf<'_> {
    type Out = Result<Few, Value>;

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn value<E: Error>(self, value: Value) -> Result<Self::Out, E> {
        Ok(Err(value))
    }

    fn list<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Out, A::Error> {
        let mut few = Few { first: Vec::new(), count: 0 };
        while let Some(value) = list.next_element_seed(Read(Any(self.slot)))? {
            if few.count < self.most {
                few.first.push(value);
            }
            few.count += 1;
        }
        Ok(Ok(few))
    }
}

/// What the header says of one tensor, not checked yet.
#[derive(Default)]
struct Fields {
    dtype: Option<Value>,
    shape: Option<Result<Few, Value>>,
    offsets: Option<Result<Few, Value>>,
}

struct Entry<'s> {
    slot: &'s Slot,
    name: &'s str,
    max_dims: usize,
}

impl<'de> Reader<'de> for Entry<'_> {
    type Out = Fields;

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn value<E: Error>(self, value: Value) -> Result<Fields, E> {
        let expected = "expected an object of dtype, shape and data_offsets";
        refuse(self.slot, format!("tensor {}: described by {value}, {expected}", show(self.name)))
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let (mut fields, mut others) = (Fields::default(), HashSet::new());
        while let Some(key) = map.next_key::<String>()? {
            let twice = match key.as_str() {
                "dtype" => fields.dtype.replace(map.next_value_seed(Read(Any(self.slot)))?).is_some(),
                "shape" => {
                    let list = FewOf { slot: self.slot, most: self.max_dims };
                    fields.shape.replace(map.next_value_seed(Read(list))?).is_some()
                }
                "data_offsets" => {
                    let list = FewOf { slot: self.slot, most: 2 };
                    fields.offsets.replace(map.next_value_seed(Read(list))?).is_some()
                }
                _ => {
                    map.next_value_seed(Read(Any(self.slot)))?;
                    !others.insert(key.clone())
                }
            };
            if twice {
                return refuse(self.slot, format!("tensor {}: {} occurs twice", show(self.name), show(&key)));
            }
        }
        Ok(fields)
    }
}

impl Fields {
    fn into_tensor(self, name: &str, max_dims: usize) -> Result<Tensor, Problem> {
        let content = |message: String| Problem::Content(format!("tensor {}: {message}", show(name)));
        let (dtype, shape, offsets) = match (self.dtype, self.shape, self.offsets) {
            (Some(dtype), Some(shape), Some(offsets)) => (dtype, shape, offsets),
            (dtype, shape, offsets) => {
                let there =
                    [("dtype", dtype.is_some()), ("shape", shape.is_some()), ("data_offsets", offsets.is_some())];
                let missing: Vec<&str> = there.iter().filter(|field| !field.1).map(|field| field.0).collect();
                return Err(content(format!("{} missing", missing.join(" and "))));
            }
        };
        let Value::Text(dtype) = dtype else {
            return Err(content(format!("dtype is {dtype}, expected a string")));
        };
        let Some(&(dtype, bits)) = DTYPES.iter().find(|known| known.0 == dtype) else {
            let known: Vec<&str> = DTYPES.iter().map(|known| known.0).collect();
            let message = format!("unknown dtype {}, expected one of {}", show(&dtype), known.join(", "));
            return Err(Problem::Type(format!("tensor {}: {message}", show(name))));
        };
        let shape = shape.map_err(|value| content(format!("shape is {value}, expected a list of integers")))?;
        if shape.count > max_dims {
            return Err(content(format!("shape has {} dimensions, NumPy holds at most {max_dims}", shape.count)));
        }
        let shape = integers(shape.first).map_err(|value| content(format!("shape has {value}, {INTEGERS}")))?;
        let mut size = u128::from(bits);
        for &dimension in &shape {
            // NumPy leaves zeros out when it counts what an array would take, so an empty one can be too large as well.
            size = size.saturating_mul(u128::from(dimension.max(1)));
            if size > MOST_BITS {
                return Err(content(format!("shape {shape:?} takes more bytes than a machine word can count")));
            }
        }
        if shape.contains(&0) {
            size = 0;
        }
        if size % 8 != 0 {
            return Err(content(format!("{dtype} of shape {shape:?} takes {size} bits, which are no whole bytes")));
        }
        let offsets = match offsets {
            Ok(Few { first, count: 2 }) => integers(first),
            Ok(Few { count, .. }) => {
                return Err(content(format!("data_offsets is a list of {count}, expected a list of two integers")));
            }
            Err(value) => return Err(content(format!("data_offsets is {value}, expected a list of two integers"))),
        };
        let offsets = offsets.map_err(|value| content(format!("data_offsets has {value}, {INTEGERS}")))?;
        let (begin, end) = (offsets[0], offsets[1]);
        let (size, held) = (size / 8, i128::from(end) - i128::from(begin));
        if i128::try_from(size) != Ok(held) {
            let found = format!("data_offsets {begin} to {end} hold {held}");
            return Err(content(format!("{dtype} of shape {shape:?} takes {size} bytes, {found}")));
        }
        Ok(Tensor { name: name.into(), dtype, shape: shape.into_boxed_slice(), begin, end })
    }
}

const INTEGERS: &str = "expected integers of at least 0";

/// The values as integers, or the first that is none.
fn integers(values: Vec<Value>) -> Result<Vec<u64>, Value> {
    values.into_iter().map(|value| if let Value::Integer(number) = value { Ok(number) } else { Err(value) }).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str, data_size: u64) -> Result<Header, Problem> {
        Header::parse(text.as_bytes(), data_size, 64)
    }

    #[test]
    fn tensors_come_in_the_order_of_their_data() {
        let text = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9],"more":[{}]},
            "\u0061":{"shape":[],"dtype":"I8","data_offsets":[0,1]},"__metadata__":{"z":"1","k":"é"}}"#;
        let header = parse(text, 9).unwrap();
        let found: Vec<_> = header.tensors().iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.begin, t.end)).collect();
        assert_eq!(found, [("a", "I8", &[][..], 0, 1), ("b", "F32", &[2][..], 1, 9)]);
        assert_eq!(header.get("a").unwrap().dtype, "I8");
        assert!(header.get("c").is_none());
        let metadata: Vec<_> = header.metadata().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, [("z", "1"), ("k", "é")]);
    }

    #[test]
    fn packed_elements_are_whole_bytes() {
        let entry = |dtype: &str, shape: u64, end: u64| {
            parse(&format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[0,{end}]}}}}"#), end)
        };
        for (dtype, shape, end) in [("F4", 2, 1), ("F6_E2M3", 4, 3), ("F6_E3M2", 8, 6), ("F4", 0, 0)] {
            assert_eq!(entry(dtype, shape, end).unwrap().tensors()[0].end, end);
        }
        assert!(matches!(entry("F4", 3, 2), Err(Problem::Content(message)) if message.contains("12 bits")));
        assert!(matches!(entry("F6_E2M3", 1, 1), Err(Problem::Content(_))));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("{", "header: not JSON: EOF while parsing an object at line 1 column 1"),
            (r#"{"a":1,"a":1}"#, "tensor 'a': described by 1, expected an object of dtype, shape and data_offsets"),
            (r#"{"__metadata__":{"a":"b","a":"c"}}"#, "header: 'a' occurs twice"),
            (r#"{"__metadata__":[]}"#, "__metadata__ is a list, expected an object of strings"),
            (r#"{"__metadata__":{"a":1}}"#, "__metadata__ has 1 for 'a', expected a string"),
            (r#"{"a":{"x":{"y":1,"y":1}}}"#, "header: 'y' occurs twice"),
            (r#"{"a":{"x":1,"x":1}}"#, "tensor 'a': 'x' occurs twice"),
            (r#"{"\u001b'":{"dtype":"F32"}}"#, "tensor '\\x1b\\'': shape and data_offsets missing"),
        ] {
            assert_eq!(parse(text, 0).unwrap_err(), Problem::Content(message.to_owned()), "{text}");
        }
        let deep = format!(r#"{{"a":{}"#, "[".repeat(100_000));
        assert_eq!(parse(&deep, 0).unwrap_err(), Problem::Content("header: nested too deeply".to_owned()));
    }

    #[test]
    fn strings_of_an_index() {
        let found = strings_under(br#"{"metadata":{"size":1},"weight_map":{"a":"x","b":"y"}}"#, "weight_map");
        assert_eq!(found.unwrap().unwrap(), [("a", "x"), ("b", "y")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(strings_under(b"[]", "weight_map"), Ok(None));
        assert_eq!(strings_under(br#"{"weight_map":[]}"#, "weight_map"), Ok(None));
        let message = "weight_map has null for 'a', expected a string".to_owned();
        assert_eq!(strings_under(br#"{"weight_map":{"a":null}}"#, "weight_map"), Err(Problem::Content(message)));
    }
}
