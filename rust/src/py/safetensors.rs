//! Headers of safetensors files, for `gpt2fast/safetensors/header.py`.

use crate::safetensors::{self, Header, Problem, Tensor};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// Shorter ones are read with the GIL held: releasing it costs more than they do.
const SHORT_HEADER: usize = 1 << 16;

fn without_gil<T: Send>(py: Python<'_>, raw: &[u8], parse: impl FnOnce() -> Result<T, Problem> + Send) -> PyResult<T> {
    let result = if raw.len() < SHORT_HEADER { parse() } else { py.detach(parse) };
    result.map_err(|problem| match problem {
        Problem::Content(message) => PyValueError::new_err(message),
        Problem::Type(message) => PyTypeError::new_err(message),
    })
}

/// What a header says; a tensor becomes Python's objects when it is asked for.
#[pyclass(frozen, module = "gpt2fast._bpe")]
pub struct SafetensorsHeader {
    header: Header,
}

/// (dtype, shape, begin, end).
fn entry<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyTuple>> {
    let shape = PyTuple::new(py, tensor.shape.iter())?;
    (tensor.dtype, shape, tensor.begin, tensor.end).into_pyobject(py)
}

#[pymethods]
impl SafetensorsHeader {
    #[new]
    fn new(py: Python<'_>, raw: &[u8], data_size: u64, max_dims: usize) -> PyResult<Self> {
        let header = without_gil(py, raw, || Header::parse(raw, data_size, max_dims))?;
        Ok(Self { header })
    }

    fn __len__(&self) -> usize {
        self.header.tensors().len()
    }

    /// The names in the order of the data.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.header.tensors().iter().map(|tensor| &*tensor.name))
    }

    /// (dtype, shape, begin, end) of the tensor of that name, None where there is none.
    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.header.get(name).map(|tensor| entry(py, tensor)).transpose()
    }

    /// The metadata in the order of the file.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, text) in self.header.metadata() {
            found.set_item(name, text)?;
        }
        Ok(found)
    }
}

/// The strings of the object that a JSON object has under `key`, None where there is no such object.
#[pyfunction]
pub fn strings_under<'py>(py: Python<'py>, raw: &[u8], key: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(strings) = without_gil(py, raw, || safetensors::strings_under(raw, key))? else { return Ok(None) };
    let found = PyDict::new(py);
    for (name, text) in strings {
        found.set_item(name, text)?;
    }
    Ok(Some(found))
}
