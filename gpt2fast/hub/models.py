"""From a name to a directory on this disk: the model that ships, the user's own, or one from the Hugging Face hub.

A downloaded model is a plain directory, `<cache>/<organisation>--<name>/<commit>`.  It gets that name last, by one
rename, when each file in it is complete and has the digest that the hub (or the table of `hub_names.py`) states.  So
whatever interrupts a download, a directory that is found is one that can be used, and finding it takes neither the
network nor huggingface_hub.  Until then its files lie in `<commit>.incomplete`, from where the next run goes on;
`hub_client.py` fills that.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import quote

from gpt2fast._internal.atomic import atomic_write
from gpt2fast.errors import DownloadError, InputError, InputTypeError, MissingDependencyError, MissingFileError
from gpt2fast.hub.names import (
    COMMIT,
    CONFIG,
    KNOWN,
    PICKLE,
    WEIGHTS,
    WITHOUT_NETWORK,
    Published,
    adapter_advice,
    hugging_face_directory,
    missing_file,
)

__all__ = ["KNOWN", "Published", "cache_directory", "download", "resolve"]

_HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
_DEMO = Path(__file__).parent.parent / "data" / "demo"


def resolve(name_or_path: str | os.PathLike[str], *, tokenizer: bool = True) -> Path:
    """The directory of a model: config.json, weights as safetensors, and a tokenizer.

    `name_or_path` is one of

    - `"demo"`: the small model that ships with gpt2fast;
    - `"gpt2"`, `"gpt2-medium"`, `"gpt2-large"`, `"gpt2-xl"`, `"distilgpt2"`: that model at a fixed revision; write
      `"./gpt2"` for a directory of such a name;
    - a directory;
    - `"organisation/name"` or `"organisation/name@revision"` of the Hugging Face hub, where a revision is a branch, a
      tag or a commit, and `main` is meant where none is given.

    A model of the hub is downloaded once (with the extra `gpt2fast[hub]`) and found in the cache from then on, without
    a look at the network: where a branch has moved, `download` fetches what it now is.  Without `tokenizer` a directory
    may be one that has none.

    Raises MissingFileError where there is no such directory or it lacks a file, DownloadError where the hub does not
    give what was asked for, MissingDependencyError where a download needs huggingface_hub, InputError for an empty
    name or the path of a file, InputTypeError for what is neither str nor path.

        >>> from gpt2fast.hub.models import resolve
        >>> resolve("demo").name
        'demo'
    """
    found = _find(name_or_path, tokenizer)
    if isinstance(found, Path):
        return found
    return _cached(found) or _fetch(found)


def download(name: str | os.PathLike[str]) -> Path:
    """The directory of a model as `resolve` gives it, after a look at the hub for what the revision is now.

    Bars on stderr show the progress of each file, unless the environment sets HF_HUB_DISABLE_PROGRESS_BARS.  A commit
    never changes, so one that is in the cache is not asked for again.  Where the hub cannot be reached and the cache
    holds an earlier state of the branch, that is the result, and a line on stderr says so.

    Raises what `resolve` raises.

        >>> from gpt2fast.hub.models import download
        >>> download("demo").name
        'demo'
    """
    found = _find(name)
    if isinstance(found, Path):
        return found
    cached = _cached(found)
    if cached is not None and COMMIT.fullmatch(found.revision):
        return cached
    try:
        return _fetch(found)
    except (DownloadError, MissingDependencyError) as error:
        if cached is None:
            raise
        print(f"gpt2fast: using the copy downloaded earlier, commit {cached.name[:12]}: {error}", file=sys.stderr)
        return cached


def cache_directory() -> Path:
    """Where downloaded models lie: `gpt2fast/models` in Hugging Face's place for the data of other libraries.

    HF_ASSETS_CACHE moves it, or HF_HOME, or XDG_CACHE_HOME; else it is `~/.cache/huggingface/assets/gpt2fast/models`.
    """
    return hugging_face_directory("HF_ASSETS_CACHE", "assets") / "gpt2fast" / "models"


def _find(name_or_path: str | os.PathLike[str], tokenizer: bool = True) -> Path | Published:
    """The directory that is meant, where it is one of this disk, else the repository."""
    if not isinstance(name_or_path, (str, os.PathLike)) or isinstance(os.fspath(name_or_path), bytes):
        raise InputTypeError(f"a model is a name or a path (str or os.PathLike), not {type(name_or_path).__name__}")
    name = name_or_path if isinstance(name_or_path, str) else ""
    if name_or_path == "":
        raise InputError("the name of the model is empty; 'demo' ships with gpt2fast")
    if "\0" in os.fspath(name_or_path):
        raise InputError(f"the name of the model holds a NUL character: {os.fspath(name_or_path)!r}")
    if name == "demo":
        return _complete(_DEMO)
    if name in KNOWN:
        return KNOWN[name]
    try:
        path = Path(name_or_path).expanduser()
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home of no such user
        raise MissingFileError(f"{os.fspath(name_or_path)[:200]}: is not to be found: {error}") from error
    if is_directory:
        return _complete(path, tokenizer)
    if exists:
        raise InputError(f"{path}: is a file; a model is a directory with {CONFIG}, {WEIGHTS} and a tokenizer")
    parts = _HUB_NAME.fullmatch(name)
    if parts is None or ".." in name:
        raise MissingFileError(
            f"{os.fspath(name_or_path)}: there is no such directory, nor a model of this name. Known names: demo, "
            f"{', '.join(KNOWN)}; others of the Hugging Face hub are written organisation/name"
        )
    if parts["revision"] is None:
        return next((known for known in KNOWN.values() if known.repo == name), Published(name, "main"))
    return Published(parts["repo"], parts["revision"])


def _complete(directory: Path, tokenizer: bool = True) -> Path:
    missing = missing_file(directory, tokenizer=tokenizer)
    if missing is None:
        return directory
    advice = adapter_advice(directory)
    if advice:
        raise MissingFileError(f"{directory}: there is no model. {advice}")
    if missing.startswith(WEIGHTS) and (directory / PICKLE).exists():
        advice = (
            f". {PICKLE} is there, but is not read: unpickling it could run any code. Convert it where it came from, "
            "with transformers' save_pretrained(directory, safe_serialization=True)"
        )
    if missing.startswith("tokenizer"):
        advice = "; where the tokens are another tokenizer's, name that, as tokenizer='gpt2' or --tokenizer gpt2"
    raise MissingFileError(f"{directory}: there is no {missing}{advice}")


def _shelf(repo: str) -> Path:
    return cache_directory() / repo.replace("/", "--")


def _reference(source: Published) -> Path:
    """The file that holds the commit which a branch or tag was when it was downloaded."""
    return _shelf(source.repo) / "refs" / quote(source.revision, safe="")


def _cached(source: Published) -> Path | None:
    commit = source.revision
    try:
        if not COMMIT.fullmatch(commit):
            commit = _reference(source).read_text(encoding="ascii", errors="replace").strip()
        directory = _shelf(source.repo) / commit
        # A directory gets this name when it is complete, but a user may have deleted from it since.
        return directory if COMMIT.fullmatch(commit) and missing_file(directory) is None else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _fetch(source: Published) -> Path:
    """The directory of the commit that `source` is at the hub; downloads what is not there yet."""
    try:
        from gpt2fast.hub.client import FileLock, fill, list_files
    except ImportError as error:
        raise MissingDependencyError(
            f"{source.repo} is not in the cache, and a download needs huggingface_hub: pip install 'gpt2fast[hub]' "
            f"({error}). {WITHOUT_NETWORK}"
        ) from error
    listing = list_files(source)
    shelf = _shelf(source.repo)
    directory = shelf / listing.commit
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        # Whoever comes second waits here and then finds the directory.  Should the lock not hold, as on some network
        # file systems, the digests find what two writers make of one file.
        with FileLock(shelf / ".lock"):
            if not directory.is_dir() or missing_file(directory) is not None:
                staging = shelf / f"{listing.commit}.incomplete"
                if directory.is_dir() and not staging.exists():
                    os.replace(directory, staging)
                staging.mkdir(exist_ok=True)
                fill(staging, listing)
                os.replace(staging, directory)
            if listing.commit != source.revision:
                _reference(source).parent.mkdir(exist_ok=True)
                with atomic_write(_reference(source)) as file:
                    file.write(listing.commit.encode())
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"{source.repo}: cannot be stored in {shelf}: {error}") from error
    return directory
