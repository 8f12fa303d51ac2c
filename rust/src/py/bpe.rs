//! The tokenizer as Python's class `Bpe`.

use super::buffer::{Buffer, Data};
use super::lists::{read_ids, Integers};
use super::strings::string;
use super::texts::{with_texts, Text};
use crate::batch::decode::{decode_batch, IdLists};
use crate::batch::{count_batch, encode_batch, room, Texts};
use crate::encode::added::{Added, AddedToken, Part};
use crate::encode::caches::Caches;
use crate::encode::decoder::Decoder;
use crate::encode::{Few, Id, Tokenizer, SMALL_TEXT, TINY_TEXT};
use crate::pretokenize::pieces;
use crate::text::characters::Characters;
use crate::vocabulary::VocabularyError;
use once_cell::race::OnceBox;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Texts shorter than this are encoded with the GIL held: releasing it costs more than they do.
const SHORT_TEXT: usize = 1 << 11;
/// Ids of a batch that are decoded before more of its lists are read: what they take meanwhile stays in the caches.
const IDS_AT_ONCE: usize = 1 << 19;

/// A vocabulary and its encoder and decoder. Immutable; used from any number of threads.
#[pyclass(frozen, module = "gpt2fast._bpe")]
pub(super) struct Bpe {
    tokenizer: Tokenizer,
    shared: Arc<Shared>,
}

/// What tokenizers of one vocabulary have in common, whatever added tokens they find.
#[derive(Default)]
struct Shared {
    caches: Caches,
    decoder: OnceBox<Decoder>,
    integers: Integers,
}

/// An added token as Python says it: text, id, lstrip, rstrip, single_word, normalized.
type Found = (String, u32, bool, bool, bool, bool);

impl Bpe {
    /// The ids of texts, and where each ends, as 16 or, for `wide`, 32 bits.
    fn flat(&self, texts: &(impl Texts + ?Sized), wide: bool, num_threads: usize) -> (Data, Data) {
        let (ids, offsets) = if wide {
            let (ids, offsets) = encode_batch(&self.tokenizer, texts, num_threads, &self.shared.caches);
            (Data::U32(ids), offsets)
        } else {
            let (ids, offsets) = encode_batch(&self.tokenizer, texts, num_threads, &self.shared.caches);
            (Data::U16(ids), offsets)
        };
        (ids, Data::I64(offsets))
    }

    fn of(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, shared: Arc::default() }
    }

    fn ids<I: Id>(&self, py: Python<'_>, text: Characters<'_>) -> Vec<I> {
        let encode = || {
            let mut ids = room(&[text][..]);
            self.shared.caches.with(|cache| text.encode(&self.tokenizer, cache, &mut ids));
            ids
        };
        if text.len() < SHORT_TEXT {
            encode()
        } else {
            py.detach(encode)
        }
    }

    /// The ids of a text, and where in it each of them ends.
    fn ids_and_ends(&self, text: &[u8]) -> (Vec<u32>, Vec<usize>) {
        let (tokenizer, mut ids, mut ends) = (&self.tokenizer, Vec::new(), Vec::new());
        self.shared.caches.with(|cache| {
            tokenizer.added().split(text, |place, part| {
                if let Part::Token(id) = part {
                    ids.push(id);
                    return ends.push(place.end);
                }
                let (first, text) = (ids.len(), &text[place.clone()]);
                tokenizer.added().encode_between(text, tokenizer, cache, &mut ids);
                // A space that was put before is nowhere in the text.
                let mut end = place.start + 1 - usize::from(tokenizer.added().puts_space_before(text));
                for &id in &ids[first..] {
                    end += tokenizer.vocabulary().token(id).map_or(0, <[u8]>::len);
                    ends.push(end - 1);
                }
            });
        });
        (ids, ends)
    }

    /// The ids of a text, and the two ends of each one's span, in characters of a str and bytes of bytes.
    fn ids_and_spans(&self, py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<(Vec<u32>, Vec<i64>)> {
        let characters = text.is_instance_of::<PyString>();
        let text = Text::new(text)?;
        let bytes = text.bytes()?;
        Ok(py.detach(|| {
            let (ids, ends) = self.ids_and_ends(&bytes);
            let mut spans = Vec::with_capacity(2 * ids.len());
            let (mut start, mut started) = (0, 0); // bytes before the token; characters begun in them
            for end in ends {
                let token = &bytes[start..end];
                if characters {
                    let begun = token.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
                    let inside = usize::from(token.first().is_some_and(|byte| byte & 0xc0 == 0x80));
                    spans.extend([(started - inside) as i64, (started + begun) as i64]);
                    started += begun;
                } else {
                    spans.extend([start as i64, end as i64]);
                }
                start = end;
            }
            (ids, spans)
        }))
    }

    /// Whether ids fit 16 bits.
    fn is_narrow(&self) -> bool {
        self.tokenizer.vocabulary().len() <= 1 << 16
    }

    #[inline]
    fn list<'py, I: Id>(&self, py: Python<'py>, ids: &[I]) -> PyResult<Bound<'py, PyList>> {
        self.shared.integers.list(py, self.tokenizer.vocabulary().len(), ids)
    }

    fn lists<'py, I: Id>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let (ids, offsets) =
            with_texts(texts, |texts| encode_batch::<I>(&self.tokenizer, texts, num_threads, &self.shared.caches))?;
        self.shared.integers.lists(py, self.tokenizer.vocabulary().len(), &ids, &offsets)
    }

    fn decoder(&self) -> &Decoder {
        self.shared.decoder.get_or_init(|| Box::new(Decoder::new(self.tokenizer.vocabulary())))
    }
}

#[pymethods]
impl Bpe {
    #[new]
    fn new(py: Python<'_>, vocabulary: &[u8], merges: &[u8], added: Vec<(String, u32)>) -> PyResult<Self> {
        let tokenizer = py.detach(|| Tokenizer::new(vocabulary, merges, &added)).map_err(|error| match error {
            VocabularyError::Vocabulary(message) => PyValueError::new_err(("vocabulary", message)),
            VocabularyError::Merges(message) => PyValueError::new_err(("merges", message)),
        })?;
        Ok(Self::of(tokenizer))
    }

    /// GPT-2's, which is part of this module.
    #[staticmethod]
    fn gpt2() -> Self {
        Self::of(Tokenizer::gpt2())
    }

    /// The same vocabulary, with added tokens that are found in texts, and these only; for `prefix_space` with a space
    /// before what is between them.
    fn finding(&self, tokens: Vec<Found>, prefix_space: bool) -> PyResult<Self> {
        let token = |(text, id, lstrip, rstrip, single_word, normalized)| AddedToken {
            text,
            id,
            lstrip,
            rstrip,
            single_word,
            normalized,
        };
        let tokens: Vec<AddedToken> = tokens.into_iter().map(token).collect();
        if let Some(token) = tokens.iter().find(|token| token.id as usize >= self.tokenizer.vocabulary().len()) {
            return Err(PyValueError::new_err(format!("the token {:?} has the id {}", token.text, token.id)));
        }
        let added = Added::new(tokens, prefix_space).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { tokenizer: self.tokenizer.finding(added), shared: Arc::clone(&self.shared) })
    }

    /// Whether the id is that of an added token that is neither a byte nor made by a merge.
    fn is_added(&self, id: u32) -> bool {
        self.tokenizer.vocabulary().added().binary_search_by_key(&id, |&(_, id)| id).is_ok()
    }

    /// The parts of a text: the bytes between added tokens, each with the id of the token that follows.
    fn parts<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Option<u32>)>> {
        let text = Text::new(text)?;
        let text = text.bytes()?;
        let (mut parts, mut between) = (Vec::new(), PyBytes::new(py, b""));
        let added = self.tokenizer.added();
        added.split(&text, |place, part| match part {
            Part::Token(id) => parts.push((std::mem::replace(&mut between, PyBytes::new(py, b"")), Some(id))),
            Part::Between if added.puts_space_before(&text[place.clone()]) => {
                between = PyBytes::new(py, &[b" ", &text[place]].concat());
            }
            Part::Between => between = PyBytes::new(py, &text[place]),
        });
        parts.push((between, None));
        Ok(parts)
    }

    /// The last place where a text that goes on can be cut without changing an id; 0 where there is none.
    fn last_cut(&self, text: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.tokenizer.added().last_cut(&Text::new(text)?.bytes()?))
    }

    /// The ids of tokens that no text is encoded to, added ones left out.
    fn unreachable_tokens(&self) -> Vec<u32> {
        self.tokenizer.unreachable_tokens()
    }

    fn encode<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let text = Text::new(text)?;
        let text = text.characters()?;
        match text {
            // Each byte may be an id, and the encoder asks for room for up to sixteen more.
            Characters::Utf8(bytes) if bytes.len() <= TINY_TEXT && self.tokenizer.added().is_empty() => {
                let mut ids = Few::<{ TINY_TEXT + 16 }>::default();
                let done = self.tokenizer.encode_words(bytes, &mut ids);
                if done < bytes.len() {
                    self.shared.caches.with(|cache| self.tokenizer.encode(&bytes[done..], cache, &mut ids));
                }
                self.list(py, ids.ids())
            }
            _ if text.most_bytes() <= SMALL_TEXT && self.tokenizer.added().is_empty() => {
                let mut ids = Few::<{ 8 * SMALL_TEXT + 8 }>::default();
                self.shared.caches.with(|cache| text.encode(&self.tokenizer, cache, &mut ids));
                self.list(py, ids.ids())
            }
            _ => {
                if self.is_narrow() {
                    self.list(py, &self.ids::<u16>(py, text))
                } else {
                    self.list(py, &self.ids::<u32>(py, text))
                }
            }
        }
    }

    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        if self.is_narrow() {
            self.lists::<u16>(py, texts, num_threads)
        } else {
            self.lists::<u32>(py, texts, num_threads)
        }
    }

    fn encode_batch_flat(
        &self,
        texts: &Bound<'_, PyAny>,
        wide: bool,
        num_threads: usize,
    ) -> PyResult<(Buffer, Buffer)> {
        let (ids, offsets) = with_texts(texts, |texts| self.flat(texts, wide, num_threads))?;
        Ok((Buffer { data: ids }, Buffer { data: offsets }))
    }

    /// The same for texts that lie in one buffer: text i is `data[spans[i]:spans[i + 1]]`.
    fn encode_spans(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        spans: &Bound<'_, PyAny>,
        wide: bool,
        num_threads: usize,
    ) -> PyResult<(Buffer, Buffer)> {
        let data = Text::new(data)?;
        let bytes = data.bytes()?;
        let spans = PyBuffer::<i64>::get(spans)?.to_vec(py)?;
        let mut views = Vec::with_capacity(spans.len().saturating_sub(1));
        for (i, pair) in spans.windows(2).enumerate() {
            let text = usize::try_from(pair[0]).ok().zip(usize::try_from(pair[1]).ok());
            match text.and_then(|(start, end)| bytes.get(start..end)) {
                Some(text) => views.push(Characters::Utf8(text)),
                None => return Err(PyValueError::new_err(i)),
            }
        }
        let (ids, offsets) = py.detach(|| self.flat(views.as_slice(), wide, num_threads));
        Ok((Buffer { data: ids }, Buffer { data: offsets }))
    }

    /// The ids, and for each the two ends of its span, in characters of a str and bytes of bytes.
    fn encode_with_offsets<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let (ids, ends) = self.ids_and_spans(py, text)?;
        let spans = ends.chunks_exact(2).map(|span| (span[0], span[1])).collect::<Vec<_>>();
        Ok((self.list(py, &ids)?, PyList::new(py, spans)?))
    }

    /// The same in two arrays, for which nobody waits: the spans are pairs, one after the other.
    fn encode_with_offsets_flat(&self, py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<(Buffer, Buffer)> {
        let (ids, ends) = self.ids_and_spans(py, text)?;
        Ok((Buffer { data: Data::U32(ids) }, Buffer { data: Data::I64(ends) }))
    }

    fn count(&self, py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<usize> {
        let text = Text::new(text)?;
        let text = text.characters()?;
        let count = || self.shared.caches.with(|cache| text.count(&self.tokenizer, cache));
        Ok(if text.len() < SHORT_TEXT { count() } else { py.detach(count) })
    }

    fn count_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let counts = with_texts(texts, |texts| count_batch(&self.tokenizer, texts, num_threads, &self.shared.caches))?;
        PyList::new(py, counts)
    }

    /// The ids of bytes that are one piece, whatever the split pattern would make of them.
    fn encode_piece(&self, piece: &[u8]) -> Vec<u32> {
        self.shared.caches.with(|cache| self.tokenizer.encode_one_piece(piece, cache))
    }

    fn split<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let text = Text::new(text)?;
        PyList::new(py, pieces(&text.bytes()?).map(|piece| PyBytes::new(py, piece)).collect::<Vec<_>>())
    }

    fn decode<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let (vocabulary, decoder) = (self.tokenizer.vocabulary(), self.decoder());
        let mut values = Vec::with_capacity(16);
        read_ids(ids, &mut values)?;
        let ids = values.as_slice();
        let length = decoder.length(ids).map_err(|position| PyKeyError::new_err((position, ids[position])))?;
        // SAFETY: a new object of `length` bytes that nobody else has seen; `write` fills all of them.
        unsafe {
            let bytes = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length as ffi::Py_ssize_t);
            let bytes = Bound::from_owned_ptr_or_err(py, bytes)?.cast_into_unchecked::<PyBytes>();
            let place = ffi::PyBytes_AsString(bytes.as_ptr()).cast::<MaybeUninit<u8>>();
            let place = std::slice::from_raw_parts_mut(place, length);
            let written = if ids.len() < SHORT_TEXT {
                decoder.write(vocabulary, ids, place)
            } else {
                py.detach(|| decoder.write(vocabulary, ids, place))
            };
            assert_eq!(written, length, "the decoded length");
            Ok(bytes)
        }
    }

    /// The bytes of each list of ids; where `errors` is given their str, as `bytes.decode("utf-8", errors)` makes it.
    #[pyo3(signature = (batch, errors, num_threads))]
    fn decode_batch<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyList>,
        errors: Option<&str>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let (vocabulary, decoder) = (self.tokenizer.vocabulary(), self.decoder());
        let errors = errors.map(CString::new).transpose()?;
        let mut texts: Vec<Bound<'py, PyAny>> = Vec::with_capacity(batch.len());
        let mut batch = batch.iter().peekable();
        while batch.peek().is_some() {
            let mut lists = IdLists::default();
            while let Some(list) = batch.next_if(|_| lists.ids.len() < IDS_AT_ONCE) {
                read_ids(&list, &mut lists.ids)?;
                lists.ends.push(lists.ids.len());
            }
            let decode = || decode_batch(vocabulary, decoder, &lists, num_threads);
            let decoded = if lists.ids.len() < SHORT_TEXT { decode() } else { py.detach(decode) };
            let decoded = decoded.map_err(|position| PyKeyError::new_err(lists.ids[position]))?;
            for utf8 in decoded.iter() {
                texts.push(match &errors {
                    Some(errors) => string(py, utf8, errors)?.into_any(),
                    None => PyBytes::new(py, utf8).into_any(),
                });
            }
        }
        PyList::new(py, texts)
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
