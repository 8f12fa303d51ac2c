"""Files that appear whole or not at all: what checkpoints, downloads and corpora are written through."""

from __future__ import annotations

import errno
import filecmp
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpt2fast._internal import system
from gpt2fast.errors import InputError, InputTypeError, MissingFileError

__all__ = ["atomic_write", "put_in_place", "sync_directory"]

# Filesystems that cannot fsync a directory say so with one of these.
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)

# What filesystems without hard links say.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write to, which takes the place of `path` when the block ends, whole and on the disk.

    What is written goes to a temporary file in the same directory; at the end of the block it is flushed, synchronised
    and renamed to `path`, and the directory is synchronised.  Where the block raises, or the disk is full, or the
    process is killed, `path` is what it was before; a process that lives leaves no temporary file behind.

    The file gets the mode of the one it replaces, else 0666 less the umask.  Of a symbolic link the target is replaced
    and the link stays.  Whoever has the old file open or mapped keeps its content; Windows
    refuses to replace such a file, which is a PermissionError.

    Raises MissingFileError where the directory does not exist, InputError where `path` is a directory, a device or
    anything else that is not a regular file, and OSError where the system refuses.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> with atomic_write(Path(directory.name, "notes.txt")) as file:
    ...     _ = file.write(b"whole")
    >>> [entry.name for entry in Path(directory.name).iterdir()]
    ['notes.txt']
    >>> directory.cleanup()
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise InputTypeError(f"path is of type {type(path).__name__}, expected str or os.PathLike")
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("there is a NUL in it")
    except ValueError as error:  # or half a surrogate pair
        raise InputError(f"{os.fsdecode(path)!a}: not a path: {error}") from None
    target = Path(os.path.realpath(os.fsdecode(path)))
    mode = _mode_to_keep(target)
    # The name is shortened so that the suffix fits where the target's own name is as long as names may be.
    temporary = target.parent / f".{target.name[:40]}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(temporary, _CREATE, 0o666 if mode is None else mode)
    except FileNotFoundError:
        raise MissingFileError(f"{target}: there is no directory {target.parent}") from None
    try:
        try:
            file = os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise
        try:
            if mode is not None:  # the umask may have taken bits that the old file has
                system.set_mode(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        except BaseException:
            # Closing flushes, which fails once more on a full disk; the first error is the one to report.
            with suppress(OSError):
                file.close()
            raise
        file.close()
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(target.parent)


def put_in_place(source: str, target: str, *, overwrite: bool) -> None:
    """Give the file `source` the name `target`, on the same filesystem, at one moment.

    What has that name is replaced with `overwrite` only.  Whether there is anything is decided by the system as it
    gives the name, so nothing that appears meanwhile is lost.  A file with the very content of `source` counts as put
    there before.  Raises InputError where there is something else, or with `overwrite` a directory or a device.
    """
    if overwrite:
        if not os.path.islink(target):
            _mode_to_keep(Path(target))
        os.replace(source, target)
        return
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.isfile(target) or not filecmp.cmp(source, target, shallow=False):
            raise InputError(f"{target}: is there already; to replace it, say --overwrite") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            # A name of our own, which only we put a file to.
            os.close(os.open(target, _CREATE, 0o666))
        except FileExistsError:
            raise InputError(f"{target}: is there already; to replace it, say --overwrite") from None
        os.replace(source, target)
        return
    os.unlink(source)


def _mode_to_keep(target: Path) -> int | None:
    """The permission bits of the file about to be replaced, None where there is none yet."""
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise MissingFileError(f"{target}: {target.parent} is not a directory") from None
    if not stat.S_ISREG(found.st_mode):  # to replace a device or a pipe by a file would be a surprise
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise InputError(f"{target}: cannot be written, it is {kind}")
    return stat.S_IMODE(found.st_mode) & 0o777


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Put the names in a directory on the disk, after files were renamed; nothing where the filesystem cannot."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)
