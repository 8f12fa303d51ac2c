//! The Python module `gpt2fast._bpe`: arguments in, the GIL released round one call, results out.
//!
//! Policy (defaults, special tokens, error messages) is `gpt2fast/tokenizer.py`'s; this file only converts.

use crate::batch::{count_batch, encode_batch, Caches};
use crate::decoder::decode;
use crate::encoder::{Id, Tokenizer};
use crate::pretokenize::pieces;
use crate::vocabulary::{byte_symbols, VocabularyError};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::ffi::c_int;
use std::os::raw::c_void;

/// Texts shorter than this are encoded with the GIL held: releasing it costs more than they do.
const SHORT_TEXT: usize = 1 << 11;

/// An argument's bytes, borrowed for as long as the argument lives.
enum Text<'py> {
    Str(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
    Buffer(PyBuffer<u8>),
}

impl<'py> Text<'py> {
    fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            if text.to_str().is_ok() {
                return Ok(Self::Str(text.clone()));
            }
            // Lone surrogates: what UTF-16 makes of them, pairs joined and the rest U+FFFD, as tiktoken does.
            let units = text.call_method1("encode", ("utf-16", "surrogatepass"))?;
            return Ok(Self::Str(units.call_method1("decode", ("utf-16", "replace"))?.cast_into()?));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        Ok(Self::Buffer(PyBuffer::get(object)?))
    }

    fn bytes(&self) -> PyResult<&[u8]> {
        match self {
            Self::Str(text) => Ok(text.to_str()?.as_bytes()),
            Self::Bytes(bytes) => Ok(bytes.as_bytes()),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => Ok(&[]),
            Self::Buffer(buffer) if buffer.is_c_contiguous() => {
                // SAFETY: the buffer is contiguous, of `len_bytes` bytes, and exported until `self` is dropped. As for
                // every native reader of buffers, the caller must not write to it from another thread meanwhile.
                Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr() as *const u8, buffer.len_bytes()) })
            }
            Self::Buffer(_) => Err(PyValueError::new_err("the buffer is not contiguous")),
        }
    }
}

/// An array that NumPy reads in place: `numpy.frombuffer(buffer, dtype)`.
#[pyclass(frozen, module = "gpt2fast._bpe")]
struct Buffer {
    data: Data,
}

enum Data {
    U16(Vec<u16>),
    U32(Vec<u32>),
    I64(Vec<i64>),
}

impl From<Vec<u16>> for Data {
    fn from(values: Vec<u16>) -> Self {
        Self::U16(values)
    }
}

impl From<Vec<u32>> for Data {
    fn from(values: Vec<u32>) -> Self {
        Self::U32(values)
    }
}

#[pymethods]
impl Buffer {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (data, bytes) = match &slf.get().data {
            Data::U16(values) => (values.as_ptr() as *mut c_void, 2 * values.len()),
            Data::U32(values) => (values.as_ptr() as *mut c_void, 4 * values.len()),
            Data::I64(values) => (values.as_ptr() as *mut c_void, 8 * values.len()),
        };
        // SAFETY: the vector lives as long as `slf`, which the view holds on to, and Rust never reads it again.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, bytes as ffi::Py_ssize_t, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A vocabulary and its encoder and decoder. Immutable; used from any number of threads.
#[pyclass(frozen, module = "gpt2fast._bpe")]
struct Bpe {
    tokenizer: Tokenizer,
    caches: Caches,
}

impl Bpe {
    fn flat<I: Id>(&self, texts: &[&[u8]], num_threads: usize) -> (Data, Vec<i64>)
    where
        Data: From<Vec<I>>,
    {
        let (ids, offsets) = encode_batch::<I>(&self.tokenizer, texts, num_threads, &self.caches);
        (ids.into(), offsets)
    }

    fn ids(&self, py: Python<'_>, text: &[u8]) -> Vec<u32> {
        let encode = || {
            let mut ids = Vec::with_capacity(text.len() / 3 + 4);
            self.caches.with(|cache| self.tokenizer.encode(text, cache, &mut ids));
            ids
        };
        if text.len() < SHORT_TEXT {
            encode()
        } else {
            py.detach(encode)
        }
    }
}

fn views<'a>(texts: &'a [Text<'_>]) -> PyResult<Vec<&'a [u8]>> {
    texts.iter().map(Text::bytes).collect()
}

fn read_texts<'py>(texts: &Bound<'py, PyAny>) -> PyResult<Vec<Text<'py>>> {
    texts.try_iter()?.map(|text| Text::new(&text?)).collect()
}

#[pymethods]
impl Bpe {
    #[new]
    fn new(py: Python<'_>, vocabulary: &[u8], merges: &[u8], specials: Vec<(String, u32)>) -> PyResult<Self> {
        let tokenizer = py.detach(|| Tokenizer::new(vocabulary, merges, &specials)).map_err(|error| match error {
            VocabularyError::Vocabulary(message) => PyValueError::new_err(("vocabulary", message)),
            VocabularyError::Merges(message) => PyValueError::new_err(("merges", message)),
        })?;
        Ok(Self { tokenizer, caches: Caches::default() })
    }

    fn encode<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let text = Text::new(text)?;
        PyList::new(py, self.ids(py, text.bytes()?))
    }

    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let texts = read_texts(texts)?;
        let views = views(&texts)?;
        let (ids, offsets) = py.detach(|| encode_batch::<u32>(&self.tokenizer, &views, num_threads, &self.caches));
        let lists: PyResult<Vec<_>> =
            offsets.windows(2).map(|pair| PyList::new(py, &ids[pair[0] as usize..pair[1] as usize])).collect();
        PyList::new(py, lists?)
    }

    fn encode_batch_flat(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyAny>,
        wide: bool,
        num_threads: usize,
    ) -> PyResult<(Buffer, Buffer)> {
        let texts = read_texts(texts)?;
        let views = views(&texts)?;
        let (data, offsets) =
            py.detach(
                || {
                    if wide {
                        self.flat::<u32>(&views, num_threads)
                    } else {
                        self.flat::<u16>(&views, num_threads)
                    }
                },
            );
        Ok((Buffer { data }, Buffer { data: Data::I64(offsets) }))
    }

    fn encode_with_offsets<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let text = Text::new(text)?;
        let characters = matches!(text, Text::Str(_));
        let bytes = text.bytes()?;
        let ids = self.ids(py, bytes);
        let mut spans = Vec::with_capacity(ids.len());
        let (mut start, mut started) = (0, 0); // bytes before the token; characters begun in them
        for &id in &ids {
            let length = self.tokenizer.vocabulary().token(id).map_or(0, <[u8]>::len);
            let token = &bytes[start..start + length];
            if characters {
                let begun = token.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
                let inside = usize::from(token.first().is_some_and(|byte| byte & 0xc0 == 0x80));
                spans.push((started - inside, started + begun));
                started += begun;
            } else {
                spans.push((start, start + length));
            }
            start += length;
        }
        Ok((PyList::new(py, ids)?, PyList::new(py, spans)?))
    }

    fn count(&self, py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<usize> {
        let text = Text::new(text)?;
        let bytes = text.bytes()?;
        Ok(py.detach(|| self.caches.with(|cache| self.tokenizer.count(bytes, cache))))
    }

    fn count_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let texts = read_texts(texts)?;
        let views = views(&texts)?;
        PyList::new(py, py.detach(|| count_batch(&self.tokenizer, &views, num_threads, &self.caches)))
    }

    /// The ids of bytes that are one piece, whatever the split pattern would make of them.
    fn encode_piece(&self, piece: &[u8]) -> Vec<u32> {
        self.caches.with(|cache| self.tokenizer.encode_one_piece(piece, cache))
    }

    fn split<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let text = Text::new(text)?;
        PyList::new(py, pieces(text.bytes()?).map(|piece| PyBytes::new(py, piece)).collect::<Vec<_>>())
    }

    fn decode<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let ids: Vec<u32> = match PyBuffer::<u32>::get(ids) {
            Ok(buffer) => buffer.to_vec(py)?,
            Err(_) => ids.extract()?,
        };
        let mut bytes = Vec::new();
        py.detach(|| decode(self.tokenizer.vocabulary(), &ids, &mut bytes))
            .map_err(|position| PyKeyError::new_err((position, ids[position])))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn token<'py>(&self, py: Python<'py>, id: u32) -> Option<Bound<'py, PyBytes>> {
        self.tokenizer.vocabulary().token(id).map(|token| PyBytes::new(py, token))
    }

    fn id_of(&self, token: &[u8]) -> Option<u32> {
        self.tokenizer.id_of(token)
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.tokenizer.vocabulary().len()
    }
}

/// The character that stands for each byte in vocab.json and merges.txt, by byte.
#[pyfunction]
#[pyo3(name = "byte_symbols")]
fn py_byte_symbols() -> Vec<String> {
    byte_symbols().iter().map(char::to_string).collect()
}

#[pymodule(gil_used = false)]
fn _bpe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Bpe>()?;
    module.add_class::<Buffer>()?;
    module.add_function(wrap_pyfunction!(py_byte_symbols, module)?)?;
    Ok(())
}
