//! Vectors of Rust as buffers of Python.

use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::os::raw::c_void;

/// An array that NumPy reads in place: `numpy.frombuffer(buffer, dtype)`.
#[pyclass(frozen, module = "gpt2fast._bpe")]
pub(super) struct Buffer {
    pub(super) data: Data,
}

pub(super) enum Data {
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    I64(Vec<i64>),
}

#[pymethods]
impl Buffer {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (data, bytes) = match &slf.get().data {
            Data::U8(values) => (values.as_ptr() as *mut c_void, values.len()),
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
