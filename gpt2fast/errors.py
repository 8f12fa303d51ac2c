"""The errors that gpt2fast raises for a caller's input.

Each derives from `Error` and from the built-in that fits, so both of these work::

    except gpt2fast.Error:      # anything this package refuses
    except ValueError:          # what a Python programmer expects of bad content

Messages name the file, the tensor or the argument, what was found and what was expected.
"""

__all__ = [
    "CpuLevelError",
    "DeviceError",
    "DeviceMemoryError",
    "DownloadError",
    "Error",
    "GrammarError",
    "InputError",
    "InputTypeError",
    "MissingDependencyError",
    "MissingFileError",
    "NonFiniteError",
    "NotBuiltError",
    "OutOfMemoryError",
    "ProcessorError",
    "UnknownTokenError",
]


class Error(Exception):
    """Base of every error that gpt2fast raises for a caller's input."""


class InputError(Error, ValueError):
    """Content or an argument's value is not acceptable."""


class NonFiniteError(InputError):
    """Logits are NaN or infinite: weights are damaged or too large for float32.  The message says where that began."""


class GrammarError(InputError):
    """A grammar, regular expression or JSON schema is invalid, impossible or too large, or no token fits it."""


class ProcessorError(Error, RuntimeError):
    """A caller's function that takes part in a generation has raised, or returned what it may not; the message names
    it.  It ends its own text, no other of a batch."""


class InputTypeError(Error, TypeError):
    """An argument, or a tensor's dtype, is of a type that is not supported."""


class UnknownTokenError(Error, KeyError):
    """A token, or a token id, is not in the vocabulary."""

    # KeyError prints the repr of its argument, which turns a sentence into a quoted one.
    __str__ = Exception.__str__


class MissingFileError(Error, FileNotFoundError):
    """A file or directory that was asked for does not exist."""


class MissingDependencyError(Error, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class DownloadError(Error, OSError):
    """A download failed; nothing that a loader would take was left behind."""


class NotBuiltError(Error, ImportError):
    """The compiled modules are missing: Python has found a source folder of gpt2fast that was not built."""


class CpuLevelError(Error, ImportError):
    """The environment variable GPT2FAST_CPU names a level that is unknown, or that this processor does not have."""


class DeviceError(Error, RuntimeError):
    """A GPU that was asked for is not there or cannot be used; the message says what was found."""


class OutOfMemoryError(Error, MemoryError):
    """The system has no memory for a model's weights, a cache or a pass; the message says how much was asked for."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a GPU ran out; the message says what was needed and what was free."""
