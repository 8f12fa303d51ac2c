"""What an import loads: nothing optional, and of this package only what is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpt2fast
from gpt2fast import errors

OPTIONAL = {"torch", "tiktoken", "transformers", "cupy", "ray", "starlette", "huggingface_hub", "ml_dtypes", "scipy"}
OPTIONAL |= {"uvicorn", "prometheus_client", "requests", "datasets", "pyarrow", "lm_eval", "datatrove", "data_juicer"}


def loaded_by(code):
    """The modules that a fresh interpreter has loaded after `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_loads_errors_only():
    loaded = loaded_by("import gpt2fast")
    assert {name for name in loaded if name.startswith("gpt2fast")} == {
        "gpt2fast",
        "gpt2fast.errors",
        "gpt2fast._internal",
        "gpt2fast._internal.finder",
    }
    assert not loaded & {"numpy", *OPTIONAL}


def test_tokenizing_loads_neither_engine_nor_numpy():
    loaded = loaded_by("import gpt2fast; gpt2fast.get_encoding('gpt2').encode('hello')")
    assert not loaded & {"numpy", "gpt2fast.model", "gpt2fast.kernels", *OPTIONAL}


def test_tokenizing_loads_no_large_module_of_the_standard_library():
    # What makes a start slow; `site` may have loaded some of them before.
    large = {"collections", "contextlib", "enum", "functools", "inspect", "json", "pathlib", "re", "typing", "urllib"}
    loaded = loaded_by("import gpt2fast; gpt2fast.get_encoding('gpt2').encode('hello')") - loaded_by("pass")
    assert not loaded & large


def test_generating_loads_nothing_optional():
    loaded = loaded_by("import gpt2fast; gpt2fast.load('demo').generate('Once', max_new_tokens=2)")
    assert not loaded & OPTIONAL


def test_corpora_load_no_engine():
    loaded = loaded_by("import gpt2fast.corpus, gpt2fast.cli")
    assert not {name for name in loaded if name.startswith(("gpt2fast.model", "gpt2fast.kernels", "gpt2fast.scoring"))}


def test_safetensors_needs_no_compiled_module():
    loaded = loaded_by("from gpt2fast import safetensors")
    assert not {name for name in loaded if name.startswith(("gpt2fast.kernels", "gpt2fast._bpe"))}


def test_every_public_name_is_there():
    for name in gpt2fast.__all__:
        assert getattr(gpt2fast, name) is not None
    assert set(gpt2fast.__all__) == set(dir(gpt2fast))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpt2fast.nothing


def test_errors_are_also_the_built_in_that_fits():
    fitting = {
        "CpuLevelError": ImportError,
        "DeviceError": RuntimeError,
        "DeviceMemoryError": MemoryError,
        "DownloadError": OSError,
        "Error": Exception,
        "GrammarError": ValueError,
        "InputError": ValueError,
        "InputTypeError": TypeError,
        "MissingDependencyError": ImportError,
        "MissingFileError": FileNotFoundError,
        "NonFiniteError": ValueError,
        "NotBuiltError": ImportError,
        "OutOfMemoryError": MemoryError,
        "ProcessorError": RuntimeError,
        "UnknownTokenError": KeyError,
    }
    assert set(fitting) == set(errors.__all__)
    for name, built_in in fitting.items():
        error = getattr(errors, name)
        assert issubclass(error, built_in)
        assert issubclass(error, gpt2fast.Error)
        assert str(error("a sentence")) == "a sentence"
