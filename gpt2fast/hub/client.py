"""What gpt2fast asks of huggingface_hub: a repository's files and their digests, and the bytes of a file.

Why not simply `huggingface_hub.snapshot_download`: it compares sizes, not digests; puts files one by one where loaders
find them; and in its recent versions begins a broken download from the start, which for gpt2-xl is 6.4 GB.  Its cache
is made use of all the same: what transformers has downloaded before is linked from there, network or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, errors, hf_hub_url, try_to_load_from_cache
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock as FileLock  # type: ignore[attr-defined, unused-ignore]
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined, unused-ignore]

from gpt2fast.errors import DownloadError
from gpt2fast.hub.names import (
    ADAPTER,
    COMMIT,
    CONFIG,
    INDEX,
    KNOWN,
    PICKLE,
    TOKENIZERS,
    WEIGHTS,
    WITHOUT_NETWORK,
    Published,
    hugging_face_directory,
    missing_file,
)

__all__ = ["FileLock", "Listing", "Remote", "fill", "list_files"]

# Small files that a reader of the directory may want; taken along where the repository has them.
_COMPANIONS = (
    "added_tokens.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)

_SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)


@dataclass(frozen=True)
class Remote:
    """A file of the hub: its size in bytes and its digest: SHA-256, or for small files the id of git's blob (SHA-1)."""

    size: int
    digest: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    source: Published
    endpoint: str
    commit: str
    files: Mapping[str, Remote]


def list_files(source: Published) -> Listing:
    """What the hub has for a revision, or where it cannot be reached, what its own cache on this disk has."""
    # The constant is the environment's value at the time of the import; a later change counts here.
    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    try:
        info: Any = HfApi(endpoint=endpoint, library_name="gpt2fast").model_info(
            source.repo, revision=source.revision, files_metadata=True, timeout=30
        )
    except Exception as error:
        # Any: requests before version 1 of huggingface_hub and httpx since have no base in common.
        refused = _refusal(error, source, endpoint)
        listing = None if refused else _list_hub_cache(source, endpoint)
        if listing is None:
            raise refused or _failure(error, source, endpoint) from error
        return listing
    commit = str(info.sha)
    if not COMMIT.fullmatch(commit) or (COMMIT.fullmatch(source.revision) and commit != source.revision):
        raise DownloadError(f"{source.repo}: {endpoint} gives {commit[:60]!r} for the commit of {source.revision!r}")
    files = {}
    for entry in info.siblings or ():
        digest = entry.lfs.sha256 if entry.lfs else entry.blob_id
        pinned = source.sha256.get(entry.rfilename)
        if pinned and entry.lfs and pinned != digest:
            raise DownloadError(
                f"{source.repo}: {entry.rfilename} at {endpoint} is not the published file: its SHA-256 is {digest}, "
                f"that of the published one is {pinned}"
            )
        files[entry.rfilename] = Remote(int(entry.size or 0), pinned or digest)
    return Listing(source, endpoint, commit, files)


def _list_hub_cache(source: Published, endpoint: str) -> Listing | None:
    """What an earlier download by another library left in huggingface_hub's cache, if that is a whole model."""
    config = _in_hub_cache(source, CONFIG, source.revision)
    if config is None or missing_file(config.parent) is not None or not COMMIT.fullmatch(config.parent.name):
        return None
    files = {}
    for path in config.parent.iterdir():
        # Each name is a link to a file that is named by its digest, save where the system has no links.
        blob = path.resolve().name
        digest = blob if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob) else None
        files[path.name] = Remote(path.stat().st_size, source.sha256.get(path.name) or digest)
    return Listing(source, endpoint, config.parent.name, files)


def _in_hub_cache(source: Published, file: str, revision: str) -> Path | None:
    # transformers files "gpt2" under that name, not under the organisation's.
    short_names = [name for name, known in KNOWN.items() if known.repo == source.repo]
    cache = hugging_face_directory("HF_HUB_CACHE", "hub")
    for repo in (source.repo, *short_names):
        path = try_to_load_from_cache(repo, file, cache_dir=cache, revision=revision)
        if isinstance(path, str):
            return Path(path)
    return None


def fill(staging: Path, listing: Listing) -> None:
    """Put the files of a model into `staging`, each under its name when its digest is right."""
    files = _wanted(listing)
    if INDEX in files:
        _fetch_file(staging, listing, INDEX)
        files += _shards(staging / INDEX, listing)
    missing = [name for name in files if _in_hub_cache(listing.source, name, listing.commit) is None]
    needed = sum(listing.files[name].size for name in missing) - sum(path.stat().st_size for path in staging.iterdir())
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise DownloadError(
            f"{listing.source.repo}: {needed / 1e6:,.0f} MB are to be downloaded into {staging.parent}, where "
            f"{free / 1e6:,.0f} MB are free; HF_HOME names another place"
        )
    for name in files:
        _fetch_file(staging, listing, name)


def _wanted(listing: Listing) -> list[str]:
    """The files of the repository that make a model, shards aside.  Never a pickle."""
    repo, there = listing.source.repo, listing.files
    weights = next((name for name in (WEIGHTS, INDEX) if name in there), None)
    if ADAPTER in there and (weights is None or CONFIG not in there):
        raise DownloadError(
            f"{repo}: revision {listing.source.revision} is an adapter (LoRA), not a model: it has {ADAPTER}. Load the "
            "model that it was trained on, and give the directory of the downloaded adapter as adapter"
        )
    if weights is None:
        pickle = f" {PICKLE} is not read: unpickling it could run any code." if PICKLE in there else ""
        raise DownloadError(
            f"{repo}: revision {listing.source.revision} has no {WEIGHTS}.{pickle} The hub's converter may have opened "
            f"a pull request with one: {listing.endpoint}/{repo}/discussions lists them, and number N is loaded as "
            f"{repo}@refs/pr/N"
        )
    if CONFIG not in there:
        raise DownloadError(f"{repo}: revision {listing.source.revision} has no {CONFIG}; it is not a model's")
    if not any(there.keys() >= files for files in TOKENIZERS):
        raise DownloadError(
            f"{repo}: revision {listing.source.revision} has no tokenizer: vocab.json and merges.txt, or tokenizer.json"
        )
    return [CONFIG, *(name for name in _COMPANIONS if name in there), weights]


def _shards(index: Path, listing: Listing) -> list[str]:
    repo = listing.source.repo
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DownloadError(f"{repo}: {INDEX} is not an index of shards: {error!r}") from error
    for name in names:
        # Names become paths: nothing but a plain file name that the repository lists may be one.
        if not isinstance(name, str) or not _SHARD.fullmatch(name) or name not in listing.files:
            raise DownloadError(f"{repo}: {INDEX} names the shard {name!r}, which is not a file of the repository")
    return names


def _fetch_file(staging: Path, listing: Listing, name: str) -> None:
    """Make `staging`/`name` the file of the hub, from where it is nearest."""
    remote, source, target = listing.files[name], listing.source, staging / name
    if target.is_file() and _digest_fits(target, remote):
        return
    elsewhere = _in_hub_cache(source, name, listing.commit)
    if elsewhere is not None and _digest_fits(elsewhere, remote):
        target.unlink(missing_ok=True)
        _link(elsewhere.resolve(), target)
        return
    if remote.digest is None:
        raise DownloadError(f"{source.repo}: {listing.endpoint} states no digest for {name}; it cannot be checked")
    part = staging / f"{name}.part"
    resumed = _transfer(part, listing, name)
    found = _digest(part, remote.digest)
    if found != remote.digest and resumed:
        # What an earlier run left was no beginning of this file.
        part.unlink()
        _transfer(part, listing, name)
        found = _digest(part, remote.digest)
    if found != remote.digest:
        part.unlink()
        raise DownloadError(
            f"{source.repo}: {name} arrived damaged and was deleted: its digest is {found}, expected is "
            f"{remote.digest}. Run it again; if the same digest comes back, {listing.endpoint} has another file"
        )
    os.replace(part, target)


def _transfer(part: Path, listing: Listing, name: str) -> bool:
    """Download a file to its end, from where `part` ends.  Returns whether there was a beginning."""
    size, source = listing.files[name].size, listing.source
    found = there = part.stat().st_size if part.exists() else 0
    headers = build_hf_headers(library_name="gpt2fast")
    # Compressed, a part's length would say nothing about where to go on.
    headers["Accept-Encoding"] = "identity"
    while there < size or not part.exists():
        try:
            with part.open("ab") as file:
                http_get(
                    hf_hub_url(source.repo, name, revision=listing.commit, endpoint=listing.endpoint),
                    file,
                    resume_size=there,
                    headers=headers,
                    expected_size=size,
                    displayed_filename=name,
                )
                file.flush()
                os.fsync(file.fileno())
                break
        except Exception as error:  # of any type, as in list_files
            before, there = there, part.stat().st_size if part.exists() else 0
            # Not every version of huggingface_hub goes on after a broken connection.  One that brought something is
            # worth another; one that brought too much is not.
            if not before < there < size:
                raise _failure(error, source, listing.endpoint, name) from error
            time.sleep(1)
    return found > 0


def _digest(path: Path, like: str) -> str:
    """The SHA-256 of a file, or where `like` has SHA-1's 40 digits, the id that git gives to its content."""
    if len(like) == 40:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _digest_fits(path: Path, remote: Remote) -> bool:
    if path.stat().st_size != remote.size:
        return False
    return remote.digest is None or _digest(path, remote.digest) == remote.digest


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # another file system, or one without hard links
        part = name.with_name(f"{name.name}.part")
        shutil.copyfile(file, part)
        os.replace(part, name)


def _refusal(error: Exception, source: Published, endpoint: str) -> DownloadError | None:
    """The error for a hub that answers no, or None where it does not answer."""
    repo = source.repo
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{repo}: is given to those who accept its conditions: accept them at {endpoint}/{repo}, then set "
            "HF_TOKEN, or log in with `hf auth login`"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return DownloadError(
            f"{repo}: there is no such directory, and no such model at {endpoint}; for a private one set HF_TOKEN, or "
            "log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(f"{repo}: has no revision {source.revision!r} at {endpoint}")
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return DownloadError(f"{repo}: is not a name that the hub allows: {_first_line(error)}")
    return None


def _failure(error: Exception, source: Published, endpoint: str, file: str = "") -> DownloadError:
    what = f"{source.repo}: {file}" if file else source.repo
    if isinstance(error, OSError) and error.errno in (EACCES, EDQUOT, ENOSPC, EPERM, EROFS):
        return DownloadError(f"{what}: cannot be stored: {error}; HF_HOME names another place")
    kept = "What has arrived is kept, and the next run goes on from there. " if file else ""
    return DownloadError(
        f"{what} could not be downloaded from {endpoint}: {_first_line(error)}. {kept}{WITHOUT_NETWORK}"
    )


def _first_line(error: Exception) -> str:
    """The type and the first line of an error, whose rest is advice on another library's arguments."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('. ')}" if lines else type(error).__name__
