//! The elements of a JSON array as JSON lines, however they are laid out.

/// Elements from the beginning of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// A line for each.
    pub lines: Vec<u8>,
    /// The bytes of the block that they are, with the comma after each; the bracket that ends the array is not counted.
    pub taken: usize,
    /// Whether the array ends here.
    pub ended: bool,
}

/// The elements in `block`, which begins behind the bracket that opens the array, or behind a comma; one that does not
/// end in the block is left out.
///
/// Only strings and brackets are looked at. What is wrong with an element, who reads its line says.
///
/// ```
/// let elements = _bpe::text::json_array::elements(b"{\"a\":\n\"[\"}, {}, {");
/// assert_eq!((elements.lines, elements.taken, elements.ended), (b"{\"a\": \"[\"}\n {}\n".to_vec(), 15, false));
/// ```
pub fn elements(block: &[u8]) -> Elements {
    let mut found = Elements { lines: Vec::with_capacity(block.len()), ..Elements::default() };
    let (mut quoted, mut escaped, mut depth) = (false, false, 0_usize);
    let mut whole = 0; // the lines of whole elements
    for (place, &byte) in block.iter().enumerate() {
        let mut kept = byte;
        match byte {
            // Within a string a line's end is an error, and must stay one.
            b'\n' | b'\r' => kept = if quoted { 1 } else { b' ' },
            b'"' if !escaped => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b',' | b']' if !quoted && depth == 0 => {
                found.ended = byte == b']';
                if !found.ended || !found.lines[whole..].iter().all(u8::is_ascii_whitespace) {
                    found.lines.push(b'\n');
                    whole = found.lines.len();
                }
                found.taken = place + usize::from(!found.ended);
                if found.ended {
                    break;
                }
                continue;
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        escaped = quoted && !escaped && byte == b'\\';
        found.lines.push(kept);
    }
    found.lines.truncate(whole);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_and_what_is_left() {
        for (block, lines, taken, ended) in [
            ("", "", 0, false),
            ("]", "", 0, true),
            (" \n ] x", "", 3, true),
            ("1, 2", "1\n", 2, false),
            ("1,\r\n2 ]", "1\n  2 \n", 6, true),
            (r#""a,]\"\\", ["#, "\"a,]\\\"\\\\\"\n", 10, false),
            ("[[1], {\"a\": [2]}], 3]", "[[1], {\"a\": [2]}]\n 3\n", 20, true),
            ("\"a\nb\",", "\"a\u{1}b\"\n", 6, false),
            ("1,,]", "1\n\n", 3, true),
        ] {
            let found = elements(block.as_bytes());
            let found = (String::from_utf8_lossy(&found.lines).into_owned(), found.taken, found.ended);
            assert_eq!(found, (lines.to_owned(), taken, ended), "{block}");
        }
    }
}
