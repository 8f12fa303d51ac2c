"""Ray: the engine's outputs are those of one machine, also when workers die; batches of Ray Data get their ids."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import corpora
import numpy as np
import pyarrow as pa
import pytest

import gpt2fast
from gpt2fast.corpus import cluster, tokenize_files
from gpt2fast.corpus.inputs import find_inputs
from gpt2fast.integrations.ray import TokenizeBatches

ROOT = str(Path(gpt2fast.__file__).parents[1])


@pytest.fixture(scope="module")
def two_workers():
    """A Ray instance on this machine with two workers."""
    ray = pytest.importorskip("ray")
    # The workers import the same package as these tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def write_inputs(directory, documents=400):
    texts = [f"Document {i}. {corpora.DOCUMENTS[i % 6] * (i % 9)}\n" for i in range(documents)]
    quarter = documents // 4
    for i, kind in enumerate(("jsonl", "txt", "parquet", "jsonl.gz")):
        corpora.write(directory / f"{i}.{kind}", texts[i * quarter : (i + 1) * quarter])
    return sorted(directory.glob("[0-9].*"))


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# Units


@pytest.mark.parametrize("size", [1, 50, 117, 118, 119, 1000, 10**6])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt", "jsonl.gz"])
def test_units_are_the_whole(tmp_path, monkeypatch, kind, size):
    from test_corpus_documents import texts

    from gpt2fast.corpus.batches import Cursor
    from gpt2fast.corpus.documents import Reading, read_batches
    from gpt2fast.corpus.options import CorpusOptions

    monkeypatch.setattr(cluster, "UNIT_BYTES", size)
    path = corpora.write(tmp_path / f"in.{kind}", corpora.DOCUMENTS * 5)
    assert len(list(cluster.plan_units(find_inputs([path]), None))) == 1 or kind in ("jsonl", "parquet")
    units = list(cluster.plan_units(find_inputs([path]), corpora.SEPARATOR))
    assert (len(units) > 1) == (kind != "jsonl.gz" and size <= 119) or size == 1000
    how = Reading(CorpusOptions(separator=corpora.SEPARATOR), 1)
    found = []
    for unit in units:
        found += texts(list(read_batches(unit.source, Cursor(position=unit.start), how, unit.end)))[0]
    assert [b"".join(parts).decode() for parts in found] == list(corpora.DOCUMENTS * 5)


# The engine


@pytest.mark.slow
@pytest.mark.parametrize("format", ["nanogpt", "llmc", "npy", "parquet"])
def test_same_bytes_as_on_one_machine(tmp_path, two_workers, monkeypatch, format):
    monkeypatch.setattr(cluster, "UNIT_BYTES", 5000)
    inputs = write_inputs(tmp_path)
    arguments = {"format": format, "eot": "append", "val_fraction": 0.2, "shard_tokens": 3000}
    arguments |= {"separator": corpora.SEPARATOR}
    one = tokenize_files(inputs, tmp_path / "one", **arguments)
    two = tokenize_files(inputs, tmp_path / "two", **arguments, engine="ray")
    assert len(content(tmp_path / "one")) > 4
    assert content(tmp_path / "two") == content(tmp_path / "one")
    for name in ("documents", "tokens", "text_bytes", "skipped", "mended"):
        assert getattr(one, name) == getattr(two, name)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the workers are found in /proc")
def test_a_worker_is_killed_in_the_middle(tmp_path, two_workers, monkeypatch):
    """Nothing is lost, and nothing is there twice."""
    monkeypatch.setattr(cluster, "UNIT_BYTES", 30_000)
    inputs = write_inputs(tmp_path, 4000)
    arguments = {"eot": "append", "val_fraction": 0.2, "separator": corpora.SEPARATOR, "format": "parquet"}
    tokenize_files(inputs, tmp_path / "one", **arguments)
    killed = []
    stop = threading.Event()

    def kill():
        """Kill workers that are at a unit, one after the other, three in all."""
        while not stop.is_set() and len(killed) < 3:
            for worker in workers_at_work():
                if (tmp_path / "two").exists() and worker not in killed:
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)
                    time.sleep(0.3)
                    break
            time.sleep(0.005)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        summary = tokenize_files(inputs, tmp_path / "two", **arguments, engine="ray")
    finally:
        stop.set()
        thread.join()
    assert killed
    assert summary.documents == 4000
    assert content(tmp_path / "two") == content(tmp_path / "one")


def workers_at_work():
    """The processes of this test's Ray workers that run a task of the engine just now."""
    own = os.getpid()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            title = Path(f"/proc/{entry}/cmdline").read_bytes()
            if title.startswith(b"ray::_run_task") and own in ancestors(int(entry)):
                found.append(int(entry))
        except OSError:
            continue
    return found


def ancestors(process):
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.mark.slow
def test_the_driver_is_killed_and_goes_on(tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(cluster, "UNIT_BYTES", 5000)
    inputs = write_inputs(tmp_path)
    arguments = {"format": "llmc", "eot": "prepend", "separator": corpora.SEPARATOR}
    tokenize_files(inputs, tmp_path / "one", **arguments)
    code = (
        "import os, signal, sys; from gpt2fast.corpus import cluster, tokenize_files; real = cluster._append\n"
        "def append(job, task, number, on_skip):\n"
        "    if number == 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(job, task, number, on_skip)\n"
        "cluster._append, cluster.UNIT_BYTES = append, 5000\n"
        "tokenize_files(sys.argv[2:], sys.argv[1], format='llmc', eot='prepend', separator='=== next ===',"
        f" engine='ray', address={two_workers.get_runtime_context().gcs_address!r})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "two"), *map(str, inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list((tmp_path / "two").glob("*.bin"))
    summary = tokenize_files(inputs, tmp_path / "two", **arguments, engine="ray")
    assert summary.resumed
    assert summary.run_tokens < summary.tokens
    assert content(tmp_path / "two") == content(tmp_path / "one")


@pytest.mark.slow
def test_bad_lines_by_file_and_line(tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(cluster, "UNIT_BYTES", 1000)
    path = corpora.write(tmp_path / "in.jsonl", [f"text {i}" for i in range(200)])
    with open(path, "a") as file:
        file.write('{"text": 1}\n{"text": "end"}\n{}\n')
    with pytest.raises(gpt2fast.InputError, match=rf"^{path}:201: the field"):
        tokenize_files(path, tmp_path / "out.npy", engine="ray")
    told = []
    summary = tokenize_files(path, tmp_path / "out.npy", engine="ray", on_error="skip", on_skip=told.append)
    assert (summary.documents, summary.skipped) == (201, 2)
    assert [message.split(":")[1] for message in told] == ["201", "203"]


def test_what_the_engine_refuses(tmp_path):
    (tmp_path / "in.txt").write_text("a")
    with pytest.raises(gpt2fast.InputError, match="engine is 'spark'"):
        tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", engine="spark")
    with pytest.raises(gpt2fast.InputError, match="address is 'auto', but the engine is 'local'"):
        tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", address="auto")
    with pytest.raises(gpt2fast.InputError, match="standard input and pipes"):
        tokenize_files("-", tmp_path / "out.npy", engine="ray")
    assert os.listdir(tmp_path) == ["in.txt"]


# Batches of Ray Data


@pytest.mark.parametrize("eot", ["none", "append", "prepend"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_batches(eot, kind):
    texts = ["skipped", *corpora.DOCUMENTS, "", "last"]
    column = pa.chunked_array(
        [pa.array(texts[:3]), pa.array(texts[3:5]), pa.array([], pa.string()), pa.array(texts[5:])]
    )
    table = pa.table({"text": column.cast(kind), "id": range(len(texts))}).slice(1)
    found = TokenizeBatches(eot=eot, output="ids")(table)
    found.validate(full=True)
    assert found.column_names == ["id", "ids"]
    assert found["ids"].type == pa.list_(pa.uint16())
    assert found["ids"].to_pylist() == [corpora.stream([text], eot) for text in texts[1:]]


def test_batches_with_nulls_and_without_rows():
    table = pa.table({"text": pa.array(["a", None, "b c", None])})
    found = TokenizeBatches(eot="append", keep_text=True)(table)
    assert found["input_ids"].to_pylist() == [[64, 50256], None, [65, 269, 50256], None]
    assert found["input_ids"].chunk(0).values.to_pylist() == [64, 50256, 65, 269, 50256]
    assert found.column_names == ["text", "input_ids"]
    for empty in (
        table.slice(0, 0),
        pa.table({"text": pa.chunked_array([], pa.string())}),
        pa.table({"text": pa.nulls(2)}),
    ):
        found = TokenizeBatches()(empty)
        assert found["input_ids"].type == pa.list_(pa.uint16())
        assert len(found) == len(empty)


def test_batches_are_read_where_they_are(monkeypatch):
    table = pa.table({"text": ["some text", "more"]})
    seen = []
    real = gpt2fast.Tokenizer.encode_spans

    def encode_spans(self, data, spans, **options):
        ids, offsets = real(self, data, spans, **options)
        seen.append((np.frombuffer(data, np.uint8).ctypes.data, ids.ctypes.data))
        return ids, offsets

    monkeypatch.setattr(gpt2fast.Tokenizer, "encode_spans", encode_spans)
    ids = TokenizeBatches()(table)["input_ids"].chunk(0).values
    assert seen == [(table["text"].chunk(0).buffers()[2].address, ids.buffers()[1].address)]


def test_bad_batches():
    tokenize = TokenizeBatches()
    with pytest.raises(
        gpt2fast.InputTypeError, match='of type dict; expected an Arrow table: .*batch_format="pyarrow"'
    ):
        tokenize({"text": np.array(["a"])})
    with pytest.raises(gpt2fast.InputError, match="there is no column 'text', but 'body'"):
        tokenize(pa.table({"body": ["a"]}))
    with pytest.raises(gpt2fast.InputTypeError, match="the column 'text' is of type int64; expected strings"):
        tokenize(pa.table({"text": [1]}))
    with pytest.raises(gpt2fast.InputError, match="eot is 'both'"):
        TokenizeBatches(eot="both")


def test_it_pickles_small():
    tokenize = pickle.loads(pickle.dumps(TokenizeBatches(eot="append")))
    assert len(pickle.dumps(tokenize)) < 1000
    assert tokenize(pa.table({"text": ["a"]}))["input_ids"].to_pylist() == [[64, 50256]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of Ray's about itself
def test_a_dataset_of_ray(two_workers):
    texts = [f"{i} {text}" for i in range(200) for text in corpora.DOCUMENTS]
    dataset = two_workers.data.from_arrow(pa.table({"id": range(len(texts)), "text": texts}))
    for found in (
        dataset.map_batches(TokenizeBatches(eot="append"), batch_format="pyarrow", batch_size=64),
        dataset.map_batches(
            TokenizeBatches, fn_constructor_kwargs={"eot": "append"}, batch_format="pyarrow", concurrency=1
        ),
    ):
        rows = {row["id"]: list(row["input_ids"]) for row in found.take_all()}
        assert rows == {i: [*corpora.tokens(text), corpora.EOT] for i, text in enumerate(texts)}
