//! UTF-8 with characters above U+FFFF made into Python's strings, which then have four bytes for each character.
//!
//! Performance notes (30 November 2026), 5 MB of English with an emoji at its end, ms: CPython's own decoder 9.7, as it
//! begins with one byte for each character and moves all to larger ones on the way; this 3.2. Where no character is that
//! large CPython is as fast or faster: ASCII 0.2 to 2, ten languages 4.6 to 10.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::ffi::CStr;
use tables::memory::large_pages;

/// Bytes that are worth a look for characters above U+FFFF.
const WORTH_A_LOOK: usize = 1 << 14;

/// The str of bytes, as `bytes.decode("utf-8", errors)` makes it.
///
/// # Errors
/// As that raises.
pub fn string<'py>(py: Python<'py>, utf8: &[u8], errors: &CStr) -> PyResult<Bound<'py, PyString>> {
    if utf8.len() >= WORTH_A_LOOK {
        if let Some(text) = wide_string(py, utf8)? {
            return Ok(text);
        }
    }
    let (start, len) = (utf8.as_ptr().cast(), utf8.len() as ffi::Py_ssize_t);
    // SAFETY: a new str, or null.
    unsafe {
        let object = ffi::PyUnicode_DecodeUTF8(start, len, errors.as_ptr());
        Ok(Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked())
    }
}

/// The str of bytes; None where they are not UTF-8, or have no character above U+FFFF.
///
/// # Errors
/// A MemoryError.
pub fn wide_string<'py>(py: Python<'py>, utf8: &[u8]) -> PyResult<Option<Bound<'py, PyString>>> {
    let largest = utf8.iter().fold(0, |largest, &byte| if byte > largest { byte } else { largest });
    if largest < 0xf0 {
        return Ok(None);
    }
    let Ok(text) = std::str::from_utf8(utf8) else { return Ok(None) };
    let characters = utf8.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    // SAFETY: a new str of so many characters, of four bytes each as one of them is so large, that nobody else has seen;
    // all of them are put.
    unsafe {
        let object = ffi::PyUnicode_New(characters as ffi::Py_ssize_t, char::MAX.into());
        let object = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyString>();
        let to: *mut u32 = ffi::PyUnicode_DATA(object.as_ptr()).cast();
        large_pages(to, characters);
        put(text, to);
        Ok(Some(object))
    }
}

/// # Safety
/// There is room for as many characters as the text has.
unsafe fn put(mut text: &str, mut to: *mut u32) {
    /// Bytes that are looked at together.
    const RUN: usize = 32;
    while !text.is_empty() {
        // SAFETY: passed on: each character is put once.
        unsafe {
            if let Some(run) = text.as_bytes().first_chunk::<RUN>().filter(|run| run.is_ascii()) {
                for (i, &byte) in run.iter().enumerate() {
                    to.add(i).write(byte.into());
                }
                to = to.add(RUN);
                text = &text[RUN..];
                continue;
            }
            let end = (RUN..text.len()).find(|&end| text.is_char_boundary(end)).unwrap_or(text.len());
            for character in text[..end].chars() {
                to.write(character.into());
                to = to.add(1);
            }
            text = &text[end..];
        }
    }
}
