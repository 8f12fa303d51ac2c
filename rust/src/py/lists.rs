//! Lists of ids for Python.
//!
//! An id is a pointer to one of Python's integers, of which there is a table, and a reference to it.
//!
//! Performance notes (30 November 2026), ms for the list of 5 MB seen before, English, code and ten languages, of which 7,
//! 7.8 and 11.9 are the array; medians of interleaved processes, 0.05 to 0.2 of the times apart:
//! - One by one, from ids of 32 bits: 12.4, 15.6, 18.9.
//! - References counted in a table of 200 kB and made at the end: 11.4, 15.5, 18.8 in a loop of its own, as the fewer
//!   misses are then waited for one after the other; 11.4, 14.7, 18.4 in the loop that puts the pointers.
//! - Places that `PyList_New` has not cleared: 10.6, 13.5, 17.3. Ids of 16 bits: 10.3, 12.9, 16.8.
//! - Freeing the list is 1.3 to 2.4 of that: it takes back the references one by one.
//! - Large pages for the places and ids: the first and the second such list of a process, code, 27 to 16. Later ones get
//!   memory that was used before.
//! - Thrown away: stores past the caches (2 %), no checks of bounds (nothing): it is the memory that is waited for.
//! - 100,000 short lines 63.7 to 57.9: a third is pages for the small lists, which Python gives back and asks for again.

use crate::encode::Id;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyTuple};
use std::sync::atomic::{AtomicUsize, Ordering};
use tables::memory::large_pages;

/// Lists of so many ids together are worth a table of all integers up to the vocabulary's size.
const TABLE_AFTER: usize = 1 << 10;
/// So many are worth counting, so that references are made some of each instead of one by one.
const COUNTED_FROM: usize = 1 << 14;
/// A list of so many gets memory that has not been cleared.
const LONG_LIST: usize = 1 << 14;

/// Whether objects are as in Python with a GIL: they begin with the count of references, and the places of a list are
/// memory like any other. Without one there is more in them.
const PLAIN: bool = size_of::<ffi::PyObject>() == 2 * size_of::<usize>() && cfg!(target_endian = "little");
/// References that an object may be given without a look: twice as many are less than any mark in the count.
const MOST_REFERENCES: u32 = 1 << 28;

/// The ids as Python's integers: a list of them takes a pointer and a reference each, no new object.
#[derive(Default)]
pub struct Integers {
    table: PyOnceLock<Vec<Py<PyInt>>>,
    /// About how many ids have been put into lists before there was that table.
    seen: AtomicUsize,
}

impl Integers {
    /// The table of `size` integers, made when there have been enough ids to make it worth while; else an empty one.
    fn table(&self, py: Python<'_>, size: usize, ids: usize) -> &[Py<PyInt>] {
        if let Some(table) = self.table.get(py) {
            return table;
        }
        // Two threads without the GIL may forget some: it is only about when the table is made.
        let seen = self.seen.load(Ordering::Relaxed).saturating_add(ids);
        self.seen.store(seen, Ordering::Relaxed);
        if seen < TABLE_AFTER {
            return &[];
        }
        self.table.get_or_init(py, || (0..size).map(|id| PyInt::new(py, id).unbind()).collect())
    }

    /// A list of ids, all of them less than `size`.
    #[inline]
    pub fn list<'py, I: Id>(&self, py: Python<'py>, size: usize, ids: &[I]) -> PyResult<Bound<'py, PyList>> {
        let table = self.table(py, size, ids.len());
        if table.is_empty() {
            PyList::new(py, ids.iter().map(|&id| id.into()))
        } else if ids.len() < COUNTED_FROM {
            filled(py, ids, |id| referred(table, id))
        } else {
            let mut references = References::new(py, table);
            filled(py, ids, |id| references.add(id))
        }
    }

    /// The lists of the ids between each two offsets.
    pub fn lists<'py, I: Id>(
        &self,
        py: Python<'py>,
        size: usize,
        ids: &[I],
        offsets: &[i64],
    ) -> PyResult<Bound<'py, PyList>> {
        let parts = offsets.windows(2).map(|pair| &ids[pair[0] as usize..pair[1] as usize]);
        let table = self.table(py, size, ids.len());
        let _paused = NoCollector::new(py);
        let mut lists = Vec::with_capacity(parts.len());
        if table.is_empty() || ids.len() < COUNTED_FROM {
            for ids in parts {
                lists.push(self.list(py, size, ids)?);
            }
        } else {
            // Dropped before the lists are, should there be no memory for one more.
            let mut references = References::new(py, table);
            for ids in parts {
                lists.push(filled(py, ids, |id| references.add(id))?);
            }
        }
        PyList::new(py, lists)
    }
}

/// A list of what `integer` makes of the ids: a pointer with a reference that is the list's.
#[inline(always)]
fn filled<'py, I: Id>(
    py: Python<'py>,
    ids: &[I],
    mut integer: impl FnMut(usize) -> *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyList>> {
    let long = PLAIN && ids.len() >= LONG_LIST;
    // SAFETY: a new list; each of its places is filled once before anyone sees it.
    unsafe {
        let list = ffi::PyList_New(if long { 0 } else { ids.len() as ffi::Py_ssize_t });
        let list = Bound::from_owned_ptr_or_err(py, list)?.cast_into_unchecked();
        let inside = list.as_ptr().cast::<ffi::PyListObject>();
        let places = if long { places(ids.len())? } else { (*inside).ob_item };
        for (i, &id) in ids.iter().enumerate() {
            let id: u32 = id.into();
            places.add(i).write(integer(id as usize));
        }
        if long {
            (*inside).ob_item = places;
            (*inside).allocated = ids.len() as ffi::Py_ssize_t;
            (*inside).ob_base.ob_size = ids.len() as ffi::Py_ssize_t;
        }
        Ok(list)
    }
}

/// Memory for the places of a long list, as the list would get it, but not cleared, and in large pages where there are.
fn places(len: usize) -> PyResult<*mut *mut ffi::PyObject> {
    // SAFETY: the GIL is held.
    let places: *mut *mut ffi::PyObject = unsafe { ffi::PyMem_Malloc(len * size_of::<*mut ffi::PyObject>()) }.cast();
    if places.is_null() {
        return Err(PyMemoryError::new_err(()));
    }
    large_pages(places, len);
    Ok(places)
}

/// Append the ids of a list or tuple of integers, or of an array of 16 or 32 bits each.
///
/// # Errors
/// Where there is anything else in it, or an integer that is no u32.
pub fn read_ids(object: &Bound<'_, PyAny>, ids: &mut Vec<u32>) -> PyResult<()> {
    let start = ids.len();
    if read_integers(object, ids).is_some() {
        return Ok(());
    }
    ids.truncate(start);
    if let Ok(buffer) = PyBuffer::<u32>::get(object) {
        ids.extend(buffer.to_vec(object.py())?);
    } else if let Ok(buffer) = PyBuffer::<u16>::get(object) {
        ids.extend(buffer.to_vec(object.py())?.into_iter().map(u32::from));
    } else {
        ids.extend(object.extract::<Vec<u32>>()?);
    }
    Ok(())
}

/// Append the ids of a list or tuple; None where it is neither, or there is anything in it but integers that are u32.
fn read_integers(object: &Bound<'_, PyAny>, ids: &mut Vec<u32>) -> Option<()> {
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return read_items(tuple.as_slice(), ids);
    }
    let list = object.cast::<PyList>().ok()?;
    if !PLAIN || list.is_empty() {
        return list.iter().try_for_each(|item| id_of(&item).map(|id| ids.push(id)));
    }
    // SAFETY: a `Bound` is a pointer to an object; the GIL is held, and reading real integers runs no code that could
    // change the list.
    let items = unsafe {
        let places = (*list.as_ptr().cast::<ffi::PyListObject>()).ob_item;
        std::slice::from_raw_parts(places.cast::<Bound<PyAny>>(), list.len())
    };
    read_items(items, ids)
}

fn read_items(items: &[Bound<'_, PyAny>], ids: &mut Vec<u32>) -> Option<()> {
    ids.reserve(items.len());
    items.iter().try_for_each(|item| id_of(item).map(|id| ids.push(id)))
}

/// The value of a real integer: the conversion of anything else runs code of others.
#[inline(always)]
fn id_of(item: &Bound<'_, PyAny>) -> Option<u32> {
    if !item.is_instance_of::<PyInt>() {
        return None;
    }
    // SAFETY: an object that is alive.
    let value = unsafe { ffi::PyLong_AsLong(item.as_ptr()) };
    if value == -1 {
        // It may be too large.
        drop(PyErr::take(item.py()));
    }
    u32::try_from(value).ok()
}

/// The integer of an id, with a reference.
#[inline(always)]
fn referred(table: &[Py<PyInt>], id: usize) -> *mut ffi::PyObject {
    let integer = table[id].as_ptr();
    // SAFETY: the GIL is held.
    unsafe { ffi::Py_INCREF(integer) };
    integer
}

/// References to integers that are counted first and made when this is dropped: some of each, not one by one.
struct References<'a> {
    table: &'a [Py<PyInt>],
    counts: Vec<u32>,
}

impl<'a> References<'a> {
    /// For no longer than the GIL is held.
    fn new(_: Python<'_>, table: &'a [Py<PyInt>]) -> Self {
        Self { table, counts: vec![0; table.len()] }
    }

    /// The integer of an id, to which a reference will be made.
    #[inline(always)]
    fn add(&mut self, id: usize) -> *mut ffi::PyObject {
        self.counts[id] += 1;
        self.table[id].as_ptr()
    }
}

impl Drop for References<'_> {
    fn drop(&mut self) {
        for (integer, &count) in self.table.iter().zip(&self.counts) {
            if count > 0 {
                // SAFETY: the GIL is held, and the table owns the integer.
                unsafe { add_references(integer.as_ptr(), count) };
            }
        }
    }
}

/// # Safety
/// The GIL is held and the object alive.
unsafe fn add_references(object: *mut ffi::PyObject, count: u32) {
    // SAFETY: passed on; the count is what a plain object begins with, and its lower half has room.
    unsafe {
        let before = ffi::Py_REFCNT(object);
        ffi::Py_INCREF(object);
        if ffi::Py_REFCNT(object) == before {
            return; // It lives for ever.
        }
        if PLAIN && before < MOST_REFERENCES as ffi::Py_ssize_t && count < MOST_REFERENCES {
            *object.cast::<u32>() += count - 1;
        } else {
            for _ in 1..count {
                ffi::Py_INCREF(object);
            }
        }
    }
}

/// Keeps the garbage collector from looking through thousands of new lists again and again; none of them is garbage.
struct NoCollector {
    was_enabled: bool,
}

impl NoCollector {
    pub fn new(_: Python<'_>) -> Self {
        // SAFETY: the GIL is held.
        Self { was_enabled: unsafe { ffi::PyGC_Disable() } == 1 }
    }
}

impl Drop for NoCollector {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: made and dropped within one call that holds the GIL.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
