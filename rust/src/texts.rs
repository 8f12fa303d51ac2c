//! Python's texts, read where they lie: a str by its characters, bytes and buffers by their bytes.

use crate::characters::Characters;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString, PyStringData, PyTuple};
use std::borrow::Cow;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// An argument's text, the argument's own.
pub enum Text<'a> {
    Characters(Characters<'a>),
    Buffer(PyBuffer<u8>),
}

impl<'a> Text<'a> {
    /// # Errors
    /// A TypeError where it is neither str nor contiguous bytes.
    #[inline(always)]
    pub fn new(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        match object.cast::<PyString>() {
            Ok(text) => Ok(Self::Characters(characters(text)?)),
            Err(_) => Self::other(object),
        }
    }

    #[cold]
    fn other(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Characters(Characters::Utf8(bytes.as_bytes())));
        }
        let view = PyMemoryView::from(object).and_then(|view| view.call_method1("cast", ("B",)));
        match view.and_then(|view| PyBuffer::get(&view)) {
            Ok(buffer) => Ok(Self::Buffer(buffer)),
            Err(_) => Err(PyTypeError::new_err("expected str or contiguous bytes")),
        }
    }

    /// # Errors
    /// A ValueError where a buffer is not contiguous.
    #[inline(always)]
    pub fn characters(&self) -> PyResult<Characters<'_>> {
        match self {
            Self::Characters(text) => Ok(*text),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => Ok(Characters::Utf8(&[])),
            Self::Buffer(buffer) if buffer.is_c_contiguous() => {
                // SAFETY: the buffer is contiguous, of `len_bytes` bytes, and exported until `self` is dropped. As for
                // every native reader of buffers, the caller must not write to it from another thread meanwhile.
                Ok(Characters::Utf8(unsafe {
                    std::slice::from_raw_parts(buffer.buf_ptr() as *const u8, buffer.len_bytes())
                }))
            }
            Self::Buffer(_) => Err(PyValueError::new_err("the buffer is not contiguous")),
        }
    }

    /// Its UTF-8, all of it: for what needs more than the ids.
    ///
    /// # Errors
    /// As [`Text::characters`].
    pub fn bytes(&self) -> PyResult<Cow<'_, [u8]>> {
        Ok(self.characters()?.to_utf8())
    }
}

/// The characters of a str; its UTF-8 where it is ASCII, or Python has been asked for it before.
#[inline(always)]
fn characters<'a>(text: &'a Bound<'_, PyString>) -> PyResult<Characters<'a>> {
    // SAFETY: strings do not change, and this one lives as long as the reference.
    let characters = match unsafe { text.data() }? {
        PyStringData::Ucs1(data) if is_ascii(text.as_ptr(), data.as_ptr()) => return Ok(Characters::Utf8(data)),
        PyStringData::Ucs1(data) => Characters::Latin1(data),
        PyStringData::Ucs2(data) => Characters::Ucs2(data),
        PyStringData::Ucs4(data) => Characters::Ucs4(data),
    };
    let known = kept_utf8(text).or_else(|| came_again(text, characters.len()).then(|| text.to_str().ok()).flatten());
    Ok(known.map_or(characters, |utf8| Characters::Utf8(utf8.as_bytes())))
}

/// The UTF-8 that Python keeps beside a str that is not ASCII, once it has been asked for it.
#[inline(always)]
fn kept_utf8<'a>(text: &'a Bound<'_, PyString>) -> Option<&'a str> {
    // SAFETY: any str but an ASCII one begins so, and the UTF-8 that it once has stays as long as it lives.
    unsafe {
        let object = text.as_ptr().cast::<ffi::PyCompactUnicodeObject>();
        let utf8 = AtomicPtr::from_ptr(&raw mut (*object).utf8).load(Ordering::Acquire);
        let bytes = || std::slice::from_raw_parts(utf8.cast::<u8>(), (*object).utf8_length as usize);
        (!utf8.is_null()).then(|| std::str::from_utf8_unchecked(bytes()))
    }
}

/// Texts of so many characters come from memory, not from the processor's cache: reading two or four bytes for each of
/// them is up to a sixth of the time of a text whose words have been seen.
const LARGE: usize = 1 << 17;

/// Whether a large text is the one that came last. That may come more often, and is worth a copy in UTF-8.
///
/// Another one at the same address and of the same length may be mistaken for it; then there is a copy that is not needed.
#[inline(always)]
fn came_again(text: &Bound<'_, PyString>, len: usize) -> bool {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let key = (text.as_ptr() as usize).rotate_left(20) ^ len;
    len >= LARGE && LAST.swap(key, Ordering::Relaxed) == key
}

/// Whether a str is ASCII: only then its characters come right after the shortest kind of header.
///
/// The header says so as well, in a bit whose place differs between versions of Python. A str may be ASCII and look as if
/// it was not: what was made by a subclass.
#[inline(always)]
fn is_ascii(text: *const ffi::PyObject, data: *const u8) -> bool {
    text.cast::<u8>().wrapping_add(size_of::<ffi::PyASCIIObject>()) == data
}

/// The texts of an iterable, held by a tuple: a list may change while other threads run.
pub fn tuple_of<'py>(texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the GIL is held; the result is a tuple or null.
    unsafe {
        let tuple = ffi::PySequence_Tuple(texts.as_ptr());
        Ok(Bound::from_owned_ptr_or_err(texts.py(), tuple)?.cast_into_unchecked())
    }
}

pub fn read_texts<'a>(texts: &'a Bound<'_, PyTuple>) -> PyResult<Vec<Text<'a>>> {
    texts.as_slice().iter().map(Text::new).collect()
}

pub fn views<'a>(texts: &'a [Text<'_>]) -> PyResult<Vec<Characters<'a>>> {
    texts.iter().map(Text::characters).collect()
}
