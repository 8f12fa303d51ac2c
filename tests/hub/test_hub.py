"""Names become directories: the demo, the user's own, and the hub's, whatever happens to a download on its way."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, blob_id, commit_of
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast import hub
from gpt2fast.hub.models import Published, cache_directory, download, resolve

REPO = "someone/tiny-gpt2"
WEIGHTS = random.Random(5).randbytes(300_000)
FILES = {
    "README.md": b"# Tiny\n",
    "config.json": b'{"model_type": "gpt2"}\n',
    "vocab.json": b'{"a": 0}\n',
    "merges.txt": b"#version: 0.2\n",
    "pytorch_model.bin": b"a pickle",
    "model.safetensors": WEIGHTS,
}
USABLE = {"config.json", "vocab.json", "merges.txt", "model.safetensors"}
CHUNK = 1 << 14


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for caches, and settings under which a download in this process is quick and quiet."""
    pytest.importorskip("huggingface_hub")
    for name in ("HF_ASSETS_CACHE", "HF_HUB_CACHE", "HF_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = FakeHub()
    server.add(REPO, FILES)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between huggingface_hub's attempts."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def shelf(repo: str = REPO) -> Path:
    return cache_directory() / repo.replace("/", "--")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def usable(files: dict[str, bytes] = FILES) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name in USABLE}


def no_model_in_cache() -> bool:
    """No directory under a commit's name: what a loader would take."""
    return not any(re.fullmatch("[0-9a-f]{40}", path.name) for path in shelf().glob("*"))


# Names and directories


def test_demo_is_the_directory_that_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("demo") == Path(gpt2fast.__file__).parent / "data" / "demo"
    assert download("demo") == resolve("demo")


def write(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch()
    return directory


@pytest.mark.parametrize(
    "names",
    [
        ("config.json", "model.safetensors", "vocab.json", "merges.txt"),
        ("config.json", "model.safetensors.index.json", "tokenizer.json"),
    ],
)
def test_directory_is_itself(tmp_path: Path, names: tuple[str, ...]) -> None:
    directory = write(tmp_path / "org" / "name", *names)
    assert resolve(directory) == resolve(str(directory)) == download(directory) == directory


def test_directory_goes_before_a_name_of_the_hub_and_a_known_name_before_a_directory(fake: FakeHub) -> None:
    names = ("config.json", "model.safetensors", "tokenizer.json")
    assert resolve(str(write(Path(REPO), *names))) == Path(REPO)
    write(Path("gpt2"), *names)
    assert resolve("./gpt2") == Path("gpt2")
    assert resolve(Path("gpt2")) == Path("gpt2")
    with pytest.raises(gpt2fast.DownloadError, match="openai-community/gpt2"):
        resolve("gpt2")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "there is no config.json"),
        (("config.json", "tokenizer.json"), r"there is no model\.safetensors"),
        (("config.json", "pytorch_model.bin", "tokenizer.json"), "unpickling it could run any code"),
        (("config.json", "model.safetensors", "vocab.json"), r"there is no tokenizer: vocab\.json and merges\.txt"),
    ],
)
def test_incomplete_directory_says_what_it_lacks(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(gpt2fast.MissingFileError, match=message) as caught:
        resolve(write(tmp_path / "model", *names))
    assert str(tmp_path / "model") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("", gpt2fast.InputError, "empty"),
        ("a\0b", gpt2fast.InputError, "NUL"),
        ("gpt3", gpt2fast.MissingFileError, r"Known names: demo, gpt2, gpt2-medium"),
        ("/no/such/directory", gpt2fast.MissingFileError, "no such directory"),
        ("../a", gpt2fast.MissingFileError, "no such directory"),
        ("a/..", gpt2fast.MissingFileError, "no such directory"),
        ("org/name@../../x", gpt2fast.MissingFileError, "no such directory"),
        ("org/name@x/../../y", gpt2fast.MissingFileError, "no such directory, nor a model of this name"),
        (Path("org/name"), gpt2fast.MissingFileError, "no such directory"),
        ("~no-such-user-here/model", gpt2fast.MissingFileError, "not to be found"),
        (__file__, gpt2fast.InputError, "is a file"),
        (None, gpt2fast.InputTypeError, "NoneType"),
        (b"gpt2", gpt2fast.InputTypeError, "bytes"),
        (3, gpt2fast.InputTypeError, "int"),
    ],
)
def test_what_is_no_model(home: Path, name: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        resolve(name)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def empty_hub() -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub")
    server = FakeHub()
    yield server
    server.close()


@given(st.text("ab/@.-~_\\ \n\0é", max_size=12))
def test_no_name_leads_out_of_the_cache_or_to_another_error(empty_hub: FakeHub, name: str) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", place)
        patch.setenv("HF_ENDPOINT", empty_hub.url)
        with pytest.raises(gpt2fast.Error):
            resolve(name)
        assert os.listdir(place) == []


# Downloads that succeed


def test_download_has_what_a_model_needs_and_no_pickle(fake: FakeHub) -> None:
    directory = resolve(REPO)
    assert contents(directory) == usable()
    assert directory == shelf() / fake.repositories[REPO].branches["main"]


def test_second_run_needs_no_network_and_no_huggingface_hub(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve(REPO)
    requests = fake.requests
    for name in [*sys.modules]:
        if name.partition(".")[0] == "huggingface_hub" or name == "gpt2fast.hub.client":
            monkeypatch.setitem(sys.modules, name, None)
    assert resolve(REPO) == first
    assert fake.requests == requests


def test_download_follows_a_branch_and_resolve_stays(fake: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    first = resolve(REPO)
    newer = {**FILES, "config.json": b'{"model_type": "gpt2", "n_layer": 2}\n'}
    fake.add(REPO, newer)
    assert resolve(REPO) == first
    second = download(REPO)
    assert contents(second) == usable(newer)
    assert contents(first) == usable()
    assert resolve(REPO) == second

    fake.repositories.clear()
    capsys.readouterr()
    assert download(REPO) == second
    assert "using the copy downloaded earlier" in capsys.readouterr().err


def test_revisions(fake: FakeHub) -> None:
    other = fake.add(REPO, {**FILES, "config.json": b"{}"}, branch="refs/pr/7")
    assert resolve(f"{REPO}@refs/pr/7") == resolve(f"{REPO}@{other}") == shelf() / other
    requests = fake.requests
    assert download(f"{REPO}@{other}") == shelf() / other
    assert fake.requests == requests, "a commit never changes"
    with pytest.raises(gpt2fast.DownloadError, match="has no revision 'no-such-branch'"):
        resolve(f"{REPO}@no-such-branch")


def test_shards_and_tokenizer_json(fake: FakeHub) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}),
        "m-1.safetensors": b"one",
        "m-2.safetensors": b"two",
        "m-3.safetensors": b"not in the index",
    }
    encoded = {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
    fake.add("someone/sharded", encoded)
    directory = resolve("someone/sharded")
    assert set(contents(directory)) == set(files) - {"m-3.safetensors"}


def test_known_name_is_pinned(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = fake.add("openai-community/gpt2", FILES)
    fake.add("openai-community/gpt2", {**FILES, "config.json": b"{}"})
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    published = Published("openai-community/gpt2", pinned, {"model.safetensors": digest})
    monkeypatch.setitem(hub.KNOWN, "gpt2", published)
    assert resolve("gpt2") == resolve("openai-community/gpt2") == download("gpt2")
    assert contents(resolve("gpt2")) == usable()


def test_known_names_are_pinned_to_commits_and_digests() -> None:
    assert set(hub.KNOWN) == {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"}
    shipped = Path(gpt2fast.__file__).parent / "data" / "gpt2"
    for known in hub.KNOWN.values():
        assert re.fullmatch("[0-9a-f]{40}", known.revision)
        for name, digest in known.sha256.items():
            assert re.fullmatch("[0-9a-f]{64}", digest)
            if (shipped / name).exists():  # the vocabulary is that of every size
                assert hashlib.sha256((shipped / name).read_bytes()).hexdigest() == digest


def test_deleted_file_is_fetched_again_and_only_that(fake: FakeHub) -> None:
    directory = resolve(REPO)
    (directory / "model.safetensors").unlink()
    fake.downloads.clear()
    assert resolve(REPO) == directory
    assert contents(directory) == usable()
    assert [name for name, *_ in fake.downloads] == ["model.safetensors"]


def put_in_hub_cache(repo: str, commit: str, files: dict[str, bytes]) -> Path:
    """The files as huggingface_hub stores them: named by their digests, with links from a snapshot."""
    home = Path(os.environ["HF_HOME"]) / "hub" / f"models--{repo.replace('/', '--')}"
    for directory in ("blobs", "refs", f"snapshots/{commit}"):
        (home / directory).mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else blob_id(content)
        (home / "blobs" / digest).write_bytes(content)
        (home / "snapshots" / commit / name).symlink_to(f"../../blobs/{digest}")
    return home


@pytest.mark.parametrize("online", [True, False])
def test_what_transformers_downloaded_is_linked(fake: FakeHub, monkeypatch: pytest.MonkeyPatch, online: bool) -> None:
    commit = fake.repositories[REPO].branches["main"]
    cache = put_in_hub_cache(REPO, commit, FILES)
    if not online:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    directory = resolve(REPO)
    assert contents(directory) == usable()
    assert fake.downloads == []
    (blob,) = (path for path in (cache / "blobs").iterdir() if path.stat().st_size == len(WEIGHTS))
    assert (directory / "model.safetensors").samefile(blob)


def test_damaged_file_of_the_hub_cache_is_not_taken(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = fake.repositories[REPO].branches["main"]
    cache = put_in_hub_cache(REPO, commit, FILES)
    (cache / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()).write_bytes(bytes(len(WEIGHTS)))
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        patch.setattr("time.sleep", lambda seconds: None)
        with pytest.raises(gpt2fast.DownloadError, match=r"model\.safetensors could not be downloaded"):
            resolve(REPO)
    assert no_model_in_cache()
    assert contents(resolve(REPO)) == usable()
    assert [name for name, *_ in fake.downloads] == ["model.safetensors"]


# Downloads that fail


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json"])
def test_wrong_bytes_of_the_right_length_are_refused(fake: FakeHub, name: str) -> None:
    fake.corrupt.add(name)
    with pytest.raises(gpt2fast.DownloadError, match=rf"{re.escape(name)} arrived damaged") as caught:
        resolve(REPO)
    expected = hashlib.sha256(WEIGHTS).hexdigest() if name.endswith(".safetensors") else blob_id(FILES[name])
    assert expected in str(caught.value)
    assert no_model_in_cache()
    assert not list(shelf().rglob(f"{name}*")), "the damaged file is gone"
    fake.corrupt.clear()
    assert contents(resolve(REPO)) == usable()


def test_published_file_that_was_replaced_at_the_hub(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = fake.add("openai-community/gpt2", FILES)
    published = Published("openai-community/gpt2", commit, {"model.safetensors": "0" * 64})
    monkeypatch.setitem(hub.KNOWN, "gpt2", published)
    with pytest.raises(gpt2fast.DownloadError, match=r"model\.safetensors at .* is not the published file"):
        resolve("gpt2")
    assert fake.downloads == [], "nothing is downloaded to find that out"

    # Of a file without LFS the list states no SHA-256: the digest decides when it is here.
    published = Published("openai-community/gpt2", commit, {"vocab.json": "0" * 64})
    monkeypatch.setitem(hub.KNOWN, "gpt2", published)
    with pytest.raises(gpt2fast.DownloadError, match=r"vocab\.json arrived damaged"):
        resolve("gpt2")


@pytest.mark.usefixtures("impatient")
def test_truncated_download_fails_and_the_next_run_goes_on(fake: FakeHub) -> None:
    fake.cut = 0
    with pytest.raises(gpt2fast.DownloadError, match="the next run goes on from there") as caught:
        resolve(REPO)
    assert fake.url in str(caught.value)
    assert "demo" in str(caught.value)
    assert no_model_in_cache()
    fake.cut = None
    assert contents(resolve(REPO)) == usable()


@pytest.mark.usefixtures("impatient")
def test_broken_connection_is_resumed_in_the_same_run(fake: FakeHub) -> None:
    fake.cut = 4 * CHUNK
    assert contents(resolve(REPO)) == usable()
    starts = [start for name, start, _ in fake.downloads if name == "model.safetensors"]
    assert starts == sorted(set(starts))
    assert len(starts) > 1


def leave_part(content: bytes) -> Path:
    """What an interrupted run leaves behind of the weights."""
    staging = shelf() / f"{commit_of(repr((REPO, sorted(FILES.items()))))}.incomplete"
    staging.mkdir(parents=True)
    (staging / "model.safetensors.part").write_bytes(content)
    return staging


def test_next_run_resumes_where_the_last_one_stopped(fake: FakeHub) -> None:
    leave_part(WEIGHTS[:200_000])
    assert contents(resolve(REPO)) == usable()
    assert [entry for entry in fake.downloads if entry[0] == "model.safetensors"] == [
        ["model.safetensors", 200_000, 100_000]
    ]


@pytest.mark.parametrize("length", [1000, len(WEIGHTS), len(WEIGHTS) + 1])
def test_part_that_is_not_of_this_file_is_thrown_away(fake: FakeHub, length: int) -> None:
    leave_part(bytes(length))
    assert contents(resolve(REPO)) == usable()


def test_server_that_cannot_resume(fake: FakeHub) -> None:
    fake.ignore_range = True
    leave_part(WEIGHTS[:1000])
    try:
        directory = resolve(REPO)
    except gpt2fast.DownloadError:  # huggingface_hub before version 1 finds the length wrong
        assert no_model_in_cache()
        directory = resolve(REPO)
    assert contents(directory) == usable()


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("someone/nothing", "no such directory, and no such model at"),
        ("someone/gated", "accept its conditions"),
        ("someone/pickle", r"has no model\.safetensors\. pytorch_model\.bin is not read.*someone/pickle@refs/pr/N"),
        ("someone/no-config", r"has no config\.json"),
        ("someone/no-tokenizer", "has no tokenizer"),
        ("some--one/name", "not a name that the hub allows"),
    ],
)
def test_what_the_hub_does_not_have(fake: FakeHub, repo: str, message: str) -> None:
    fake.add("someone/gated", FILES)
    fake.repositories["someone/gated"].gated = True
    fake.add("someone/pickle", {name: text for name, text in FILES.items() if name != "model.safetensors"})
    fake.add("someone/no-config", {name: text for name, text in FILES.items() if name != "config.json"})
    fake.add("someone/no-tokenizer", {name: text for name, text in FILES.items() if name != "merges.txt"})
    with pytest.raises(gpt2fast.DownloadError, match=message):
        resolve(repo)
    assert fake.downloads == []
    assert not list(cache_directory().rglob("*.safetensors"))


@pytest.mark.parametrize(
    "index",
    [
        b"not JSON",
        b"[]",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": ["m.safetensors"]}}',
        b'{"weight_map": {"a": "../../m.safetensors"}}',
        b'{"weight_map": {"a": "absent.safetensors"}}',
        b'{"weight_map": {"a": "config.json"}}',
    ],
)
def test_hostile_index(fake: FakeHub, index: bytes) -> None:
    shards = {"model.safetensors.index.json": index, "../../m.safetensors": b"out", "m.safetensors": b"in"}
    fake.add("someone/sharded", {"config.json": b"{}", "tokenizer.json": b"{}", **shards})
    with pytest.raises(gpt2fast.DownloadError, match=r"model\.safetensors\.index\.json"):
        resolve("someone/sharded")
    assert not list(Path(os.environ["HF_HOME"]).rglob("m.safetensors"))


def test_hostile_list(fake: FakeHub) -> None:
    fake.sha_lie = "../../../escape"
    with pytest.raises(gpt2fast.DownloadError, match="for the commit of 'main'"):
        resolve(REPO)
    commit = fake.repositories[REPO].branches["main"]
    fake.sha_lie = commit_of("another")
    with pytest.raises(gpt2fast.DownloadError, match=f"for the commit of '{commit}'"):
        resolve(f"{REPO}@{commit}")
    fake.sha_lie = None
    fake.lies["vocab.json"] = {"blobId": None}
    with pytest.raises(gpt2fast.DownloadError, match=r"no digest for vocab\.json"):
        resolve(REPO)
    fake.lies["vocab.json"] = {"size": 10**18}
    with pytest.raises(gpt2fast.DownloadError, match="MB are free"):
        resolve(REPO)
    assert no_model_in_cache()


def test_without_network_the_error_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(gpt2fast.DownloadError, match=r"gpt2 could not be downloaded.*--model demo.*a directory with"):
        resolve("gpt2")
    assert not cache_directory().exists()


def test_without_huggingface_hub_the_error_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpt2fast.hub.client", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(gpt2fast.MissingDependencyError, match=r"pip install 'gpt2fast\[hub\]'.*--model demo"):
        resolve("gpt2")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_cache_that_cannot_be_written(fake: FakeHub, home: Path) -> None:
    (home / "hf").mkdir(mode=0o500)
    with pytest.raises(gpt2fast.DownloadError, match="cannot be stored"):
        resolve(REPO)


# Several processes


PROGRAM = f"""
import sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}
from gpt2fast.hub.models import resolve
print(resolve(sys.argv[1]))
"""


def start(fake: FakeHub) -> subprocess.Popen[str]:
    package = str(Path(gpt2fast.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", PROGRAM, REPO]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "nothing happened in a minute"
        time.sleep(0.01)


def test_two_processes_download_once(fake: FakeHub) -> None:
    fake.cut, fake.stall = 10 * CHUNK, threading.Event()
    processes = [start(fake), start(fake)]
    wait_until(lambda: fake.requests >= 3 and any(name == "model.safetensors" for name, *_ in fake.downloads))
    fake.cut = None
    fake.stall.set()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert {out.strip() for out, _ in outputs} == {str(resolve(REPO))}
    assert contents(resolve(REPO)) == usable()
    assert sum(sent for name, _, sent in fake.downloads if name == "model.safetensors") == len(WEIGHTS)


def test_killed_download_leaves_nothing_to_load_and_is_resumed(fake: FakeHub) -> None:
    fake.cut, fake.stall = 10 * CHUNK, threading.Event()
    process = start(fake)
    arrived = lambda: sum(path.stat().st_size for path in shelf().rglob("model.safetensors.part"))  # noqa: E731
    wait_until(lambda: arrived() >= 5 * CHUNK)
    process.kill()
    process.communicate(timeout=60)
    assert no_model_in_cache()
    there = arrived()
    fake.cut = None
    fake.stall.set()
    fake.downloads.clear()
    assert contents(resolve(REPO)) == usable()
    assert fake.downloads == [["model.safetensors", there, len(WEIGHTS) - there]], "the rest, and nothing else"
