//! The Python module `gpt2fast._bpe`: arguments in, the GIL released round one call, results out.
//!
//! Policy (defaults, special tokens, error messages) is `gpt2fast/tokenizer/encoding.py`'s; these files only convert.

mod bpe;
mod buffer;
mod lists;
mod safetensors;
mod strings;
mod texts;

use crate::simd;
use crate::text::{json_array, jsonl};
use crate::vocabulary::byte_symbols;
use bpe::Bpe;
use buffer::{Buffer, Data};
use pyo3::prelude::*;
use pyo3::types::PyString;
use strings::wide_string;
use texts::Text;

/// The character that stands for each byte in vocab.json and merges.txt, by byte.
#[pyfunction]
#[pyo3(name = "byte_symbols")]
fn py_byte_symbols() -> Vec<String> {
    byte_symbols().iter().map(char::to_string).collect()
}

/// Lines by their number from 0, and what is wrong with them.
type BadLines = Vec<(usize, String)>;

/// The texts that a field holds in JSON lines: their bytes, their spans, the bad lines (number from 0, why), and how
/// many lines were mended.
#[pyfunction]
fn read_jsonl(
    py: Python<'_>,
    block: &Bound<'_, PyAny>,
    field: &str,
    mend: bool,
    num_threads: usize,
) -> PyResult<(Buffer, Buffer, BadLines, usize)> {
    let block = Text::new(block)?;
    let bytes = block.bytes()?;
    let texts = py.detach(|| jsonl::read(&bytes, field, mend, num_threads));
    Ok((Buffer { data: Data::U8(texts.data) }, Buffer { data: Data::I64(texts.offsets) }, texts.bad, texts.mended))
}

/// The elements of a JSON array that end in a block, as lines; how many of its bytes they are, and whether the array ends.
#[pyfunction]
fn array_elements(py: Python<'_>, block: &Bound<'_, PyAny>) -> PyResult<(Buffer, usize, bool)> {
    let block = Text::new(block)?;
    let bytes = block.bytes()?;
    let found = py.detach(|| json_array::elements(&bytes));
    Ok((Buffer { data: Data::U8(found.lines) }, found.taken, found.ended))
}

/// The str of bytes; None where `bytes.decode` makes it as fast, or they are not UTF-8.
#[pyfunction]
#[pyo3(name = "wide_string")]
fn py_wide_string<'py>(py: Python<'py>, utf8: &[u8]) -> PyResult<Option<Bound<'py, PyString>>> {
    wide_string(py, utf8)
}

/// Keep to the level that the environment variable GPT2FAST_CPU names, as the kernels do.
fn limit_level(py: Python<'_>) -> PyResult<()> {
    let Some(wanted) = std::env::var_os("GPT2FAST_CPU").filter(|wanted| !wanted.is_empty()) else { return Ok(()) };
    let wanted = wanted.to_string_lossy();
    let Err(problem) = simd::limit(&wanted) else { return Ok(()) };
    let levels = simd::names().collect::<Vec<_>>().join(", ");
    let message = format!(
        "the environment variable GPT2FAST_CPU is '{wanted}', which {problem}; expected one of {levels}, or unset it"
    );
    let error = py.import("gpt2fast.errors")?.getattr("CpuLevelError")?.call1((message,))?;
    Err(PyErr::from_value(error))
}

/// The names of the levels that this processor has, slowest first, and which code is in use.
#[pyfunction]
fn cpu_levels() -> (Vec<&'static str>, String) {
    let level = format!("{:?}", simd::level());
    (simd::names().collect(), level.split('(').next().unwrap_or_default().to_lowercase())
}

#[pymodule(gil_used = false)]
fn _bpe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    limit_level(module.py())?;
    module.add_function(wrap_pyfunction!(cpu_levels, module)?)?;
    module.add_class::<Bpe>()?;
    module.add_class::<Buffer>()?;
    module.add_class::<safetensors::SafetensorsHeader>()?;
    module.add_function(wrap_pyfunction!(safetensors::strings_under, module)?)?;
    module.add_function(wrap_pyfunction!(py_byte_symbols, module)?)?;
    module.add_function(wrap_pyfunction!(array_elements, module)?)?;
    module.add_function(wrap_pyfunction!(read_jsonl, module)?)?;
    module.add_function(wrap_pyfunction!(py_wide_string, module)?)?;
    Ok(())
}
