//! Python's texts, read where they lie: a str by its characters, bytes and buffers by their bytes.

use crate::batch::Texts;
use crate::text::characters::Characters;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString, PyTuple};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use tables::key::prefetch;

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
    // SAFETY: a str that lives as long as the reference.
    if unsafe { ffi::PyUnicode_IS_READY(text.as_ptr()) } == 0 {
        return Ok(Characters::Utf8(text.to_str()?.as_bytes()));
    }
    // SAFETY: as above.
    let characters = unsafe { read(text.as_ptr()) };
    if matches!(characters, Characters::Utf8(_)) {
        return Ok(characters);
    }
    // SAFETY: any str but an ASCII one begins so, and the UTF-8 that it once has stays as long as it lives.
    unsafe {
        let object = text.as_ptr().cast::<ffi::PyCompactUnicodeObject>();
        let utf8 = AtomicPtr::from_ptr(&raw mut (*object).utf8).load(Ordering::Acquire);
        Ok(if utf8.is_null() {
            characters
        } else {
            Characters::Utf8(std::slice::from_raw_parts(utf8.cast(), (*object).utf8_length as usize))
        })
    }
}

/// The characters of a str.
///
/// # Safety
/// It is one, "ready" where Python still has strings that are not, and lives for so long. The GIL is not needed.
#[inline(always)]
unsafe fn read<'a>(text: *mut ffi::PyObject) -> Characters<'a> {
    // SAFETY: passed on; a str does not change.
    unsafe {
        let (len, data) = (ffi::PyUnicode_GET_LENGTH(text) as usize, ffi::PyUnicode_DATA(text));
        match ffi::PyUnicode_KIND(text) {
            // Only those of ASCII come right after the shortest kind of header. It says so as well, in a bit whose place
            // differs between versions of Python. ASCII elsewhere, as in subclasses of str, is read as Latin-1, too.
            ffi::PyUnicode_1BYTE_KIND if data == text.cast::<ffi::PyASCIIObject>().wrapping_add(1).cast() => {
                Characters::Utf8(std::slice::from_raw_parts(data.cast(), len))
            }
            ffi::PyUnicode_1BYTE_KIND => Characters::Latin1(std::slice::from_raw_parts(data.cast(), len)),
            ffi::PyUnicode_2BYTE_KIND => Characters::Ucs2(std::slice::from_raw_parts(data.cast(), len)),
            _ => Characters::Ucs4(std::slice::from_raw_parts(data.cast(), len)),
        }
    }
}

/// Where the texts of a batch are read.
pub enum TextBatch<'a> {
    /// By the threads that encode them.
    Objects(Objects<'a>),
    /// Here, by the thread that has the GIL.
    Read(Vec<Characters<'a>>),
}

impl Texts for TextBatch<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Self::Objects(objects) => objects.places.len(),
            Self::Read(texts) => texts.len(),
        }
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Characters<'_> {
        match self {
            Self::Objects(objects) => objects.get(i),
            Self::Read(texts) => texts[i],
        }
    }

    #[inline(always)]
    fn fetch(&self, i: usize) {
        match self {
            Self::Objects(objects) => objects.fetch(i),
            Self::Read(texts) => texts.as_slice().fetch(i),
        }
    }
}

/// Texts of a batch that are worth being read by several threads.
const READ_IN_THREADS: usize = 256;

/// What `work` makes of the texts of an iterable, without the GIL; it is done a second time where some can only be read
/// with it.
///
/// # Errors
/// As [`Text::new`] for each text, and whatever iterating raises.
pub fn with_texts<R: Send>(texts: &Bound<'_, PyAny>, work: impl Fn(&TextBatch<'_>) -> R + Sync) -> PyResult<R> {
    let py = texts.py();
    let tuple = tuple_of(texts)?;
    if tuple.len() >= READ_IN_THREADS {
        let batch = TextBatch::Objects(Objects::new(&tuple));
        let result = py.detach(|| work(&batch));
        if !matches!(&batch, TextBatch::Objects(objects) if objects.met_others()) {
            return Ok(result);
        }
    }
    let texts = tuple.as_slice().iter().map(Text::new).collect::<PyResult<Vec<_>>>()?;
    let batch = TextBatch::Read(texts.iter().map(Text::characters).collect::<PyResult<_>>()?);
    Ok(py.detach(|| work(&batch)))
}

/// The texts of an iterable, held by a tuple: a list may change while other threads run.
fn tuple_of<'py>(texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the GIL is held; the result is a tuple or null.
    unsafe {
        let tuple = ffi::PySequence_Tuple(texts.as_ptr());
        Ok(Bound::from_owned_ptr_or_err(texts.py(), tuple)?.cast_into_unchecked())
    }
}

/// The objects in a tuple, whose texts are read without the GIL where they are plain strings or bytes: these do not
/// change, and live as long as the tuple.
pub struct Objects<'a> {
    places: &'a [*mut ffi::PyObject],
    /// Whether there were others. All texts are empty then: the work is in vain.
    others: AtomicBool,
}

// SAFETY: what is read of the objects does not change.
unsafe impl Send for Objects<'_> {}
// SAFETY: as above.
unsafe impl Sync for Objects<'_> {}

impl<'a> Objects<'a> {
    fn new(tuple: &'a Bound<'_, PyTuple>) -> Self {
        let objects = tuple.as_slice();
        // SAFETY: a `Bound` is a pointer to an object.
        let places = unsafe { std::slice::from_raw_parts(objects.as_ptr().cast(), objects.len()) };
        Self { places, others: AtomicBool::new(false) }
    }

    fn met_others(&self) -> bool {
        self.others.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Characters<'a> {
        let object = self.places[i];
        // SAFETY: an object that is alive, and of exactly these types.
        unsafe {
            let kind = ffi::Py_TYPE(object);
            if kind == &raw mut ffi::PyUnicode_Type && ffi::PyUnicode_IS_READY(object) != 0 && !self.met_others() {
                return read(object);
            }
            if kind == &raw mut ffi::PyBytes_Type && !self.met_others() {
                let (start, len) = (ffi::PyBytes_AsString(object), ffi::PyBytes_Size(object));
                return Characters::Utf8(std::slice::from_raw_parts(start.cast(), len as usize));
            }
        }
        self.others.store(true, Ordering::Relaxed);
        Characters::Utf8(&[])
    }

    /// The characters of a short text come right after what Python notes of it.
    #[inline(always)]
    fn fetch(&self, i: usize) {
        if let Some(&object) = self.places.get(i) {
            for line in 0..4 {
                prefetch(object.cast::<u8>().wrapping_add(64 * line));
            }
        }
    }
}
