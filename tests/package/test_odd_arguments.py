"""All that is public, called with odd values: what is raised is an error of gpt2fast or a TypeError, nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from seeded import tensors
from tiny_model import tiny_model

import gpt2fast
from gpt2fast import (
    GPT2,
    Config,
    LanguageModel,
    compression,
    corpus,
    hub,
    interpretability,
    safetensors,
    scoring,
    server,
)
from gpt2fast.generation import Settings
from gpt2fast.integrations.datasets import ScoreExamples, TokenizeExamples
from gpt2fast.integrations.ray import ScoreBatches, TokenizeBatches
from gpt2fast.model.draw import Draw
from gpt2fast.model.hooks import HookPoint
from gpt2fast.server.api_errors import ApiError

SAE = Path(__file__).parents[1] / "data" / "sae" / "standard"


class Text(str):
    """A subclass of str."""


class Number(int):
    """A subclass of int."""


READ_ONLY = np.arange(4)
READ_ONLY.flags.writeable = False
with open(os.devnull, "rb") as CLOSED:
    pass

ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "10**30": lambda: 10**30,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "1.5": lambda: 1.5,
    "a complex number": lambda: 1j,
    "a word": lambda: "odd",
    "no text": lambda: "",
    "half a surrogate pair": lambda: "\ud800",
    "a NUL": lambda: "a\0b",
    "bytes": lambda: b"x",
    "bytes that are no path": lambda: b"a\0b",
    "a path with a NUL": lambda: Path("a\0b"),
    "a path with half a surrogate pair": lambda: Path("a/\ud800"),
    "a bytearray": lambda: bytearray(b"x"),
    "a strided memoryview": lambda: memoryview(b"abcd")[::2],
    "an empty list": list,
    "ragged lists": lambda: [[1], [2, 3]],
    "[None]": lambda: [None],
    "['a']": lambda: ["a"],
    "[half a surrogate pair]": lambda: ["\ud800"],
    "[1.5]": lambda: [1.5],
    "[-1]": lambda: [-1],
    "[2**70]": lambda: [2**70],
    "an empty dict": dict,
    "a dict": lambda: {1: 2},
    "a set": lambda: {1},
    "a range": lambda: range(3),
    "a generator": lambda: (i for i in (1, 2)),
    "an object": object,
    "a type": lambda: int,
    "a function": lambda: len,
    "...": lambda: ...,
    "a closed file": lambda: CLOSED,
    "an array of floats": lambda: np.array([1.5]),
    "an array without dimensions": lambda: np.array(3),
    "a matrix": lambda: np.zeros((2, 2), np.int64),
    "an array with gaps": lambda: np.arange(8)[::2],
    "an array of bytes": lambda: np.array([1], np.uint8),
    "a complex array": lambda: np.array([1j]),
    "an array of objects": lambda: np.array([None]),
    "an array of bools": lambda: np.array([True]),
    "an array of words": lambda: np.array(["a"]),
    "big-endian": lambda: np.arange(3).astype(">i4"),
    "read-only": lambda: READ_ONLY,
    "a subclass of str": lambda: Text("odd"),
    "a subclass of int": lambda: Number(3),
}

# What is public: the names in `__all__` of these, and the methods of their classes.
PACKAGES = (
    *("gpt2fast", "gpt2fast.tokenizer", "gpt2fast.safetensors", "gpt2fast.generation", "gpt2fast.scoring"),
    *("gpt2fast.hub", "gpt2fast.model", "gpt2fast.sampling", "gpt2fast.corpus", "gpt2fast.server"),
    *("gpt2fast.integrations.datasets", "gpt2fast.integrations.ray", "gpt2fast.compression"),
    "gpt2fast.interpretability",
)
# Classes whose objects come out of calls: nobody makes them by name.
MADE_HERE = {
    *("Beam", "Cache", "DecodeStream", "Entry", "File", "GPT2", "Generation", "Outputs", "Published", "RawTensor"),
    *("SafeOpen", "Score", "ScoreSummary", "SpanScore", "Step", "Summary", "TensorSlice", "TokenScore", "Tokenizer"),
    *("ComparedPair", "Comparison", "CompressedReader", "CompressedWriter", "Info", "Lens", "Look", "LookArrays"),
    *("Binoculars", "ModelRecord"),
    *("ModelRecord", "SparseAutoencoder", "ActivatingToken", "MaxActivating", "ActivatingSummary"),
}
# It serves until the process ends, and passes what it is given to `create_app` first.
NOT_CALLED = {"server.serve"}
# What else calls say that they raise.
ALSO: dict[str, type[Exception]] = {
    "ChatTemplate.prompt": ApiError,
    "Tokenizer.decode_with_offsets": UnicodeDecodeError,  # as tiktoken's
}
# Arguments that are called, that show a bar, or that start a cluster; and objects of this package, whose methods are
# looked for in them.
NOT_TRIED = {
    "names_filter",
    "on_skip",
    "on_note",
    "on_token",
    "progress",
    "engine",
    "address",
    "lm",
    "model",
    "tokenizer",
    "draft",
}


def public() -> Iterator[str]:
    """The names of all public functions, constructors, methods and properties that can be set."""
    seen: set[Any] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        prefix = package.removeprefix("gpt2fast").lstrip(".").rpartition(".")[2]
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or getattr(value, "__module__", "").split(".")[0] != "gpt2fast" or value in seen:
                continue
            seen.add(value)
            if not inspect.isclass(value):
                yield f"{prefix}.{name}".lstrip(".")
            elif not issubclass(value, Exception):
                if name not in MADE_HERE:
                    yield name
                yield from (f"{name}.{method}" for method in methods(value) if getattr(value, method) not in seen)
                seen.update(getattr(value, method) for method in methods(value))


def methods(kind: type) -> Iterator[str]:
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if name.startswith("_") and name not in ("__call__", "__getitem__"):
            continue
        home = next(base for base in kind.__mro__ if name in vars(base))
        if not home.__module__.startswith("gpt2fast"):
            continue
        if isinstance(value, property):
            if value.fset is not None:
                yield name
        elif callable(getattr(kind, name)):
            yield name


class New:
    """An argument that is made for each call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def consumed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what it gives one by one taken to the end."""

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        for _ in function(**arguments):
            pass

    return called


def entered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what it gives entered and left."""

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        with function(**arguments):
            pass

    return called


def closed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what it opens closed."""

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        function(**arguments).close()

    return called


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Call the function, and close what it has opened."""
    found = function(**{name: value.make() if isinstance(value, New) else value for name, value in arguments.items()})
    if isinstance(found, safetensors.SafeOpen):
        found.close()


Table = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Every public name, with arguments that it takes; each argument in turn becomes an odd one."""
    home = tmp_path_factory.mktemp("home")
    lm = tiny_model()
    enc, model, config = lm.tokenizer, lm.model, lm.model.config
    arrays = tensors(config)
    tiny = home / "tiny"
    lm.save_pretrained(tiny)
    (home / "key").write_text("secret")
    (home / "template").write_text("{{ messages }}")
    (home / "a.txt").write_text("hello")
    safetensors.save_file({"a": np.zeros((3, 4))}, home / "a.safetensors")
    vocab, merges, ids = str(tiny / "vocab.json"), str(tiny / "merges.txt"), [1, 2]
    cache = New(lambda: model.new_cache(2))
    outputs = model.forward(model.new_cache(2), [0, 1], [[1], [2]])
    draw = Draw(enc.n_vocab, 1, 0.0, 0, 1.0, 0.0)
    score = lm.score("hello king")
    safetensors.save_sharded({"a": np.zeros(9), "b": np.zeros(9)}, home / "shards", max_shard_size=80)
    opened, other = (safetensors.safe_open(home / "a.safetensors") for _ in range(2))
    part = opened.get_slice("a")
    sampling, logits = Settings(repetition_penalty=1.5, no_repeat_ngram_size=2), np.arange(5.0)
    template = server.ChatTemplate("{{ messages }}{{ x }}", lm)
    batch = {"batch": {"text": ["hi"]}}
    choices = {"context": "hello", "choices": ["a", "b"]}
    generated = {"max_new_tokens": 1, "seed": 1}
    beams = {"max_new_tokens": 1, "num_beams": 2}
    compressed = compression.compress(b"hello", lm)
    (home / "a.g2z").write_bytes(compressed)
    (home / "items.csv").write_text("text\nhello king\n")
    reader = compression.open(home / "a.g2z", lm)
    writer = compression.open(io.BytesIO(), lm, "wb")
    labels = gpt2fast.load(Path(__file__).parents[1] / "data" / "classify" / "sequence")
    compared = lm.compare([("a", "b")])
    record = compression.ModelRecord(1, "float32", "float32", 0, 8, bytes(32), bytes(32))

    steering = interpretability.Steering("hook_embed", np.ones(8))
    activating = interpretability.max_activating(lm, ["a b"], "blocks.0.mlp.hook_post", units=[1])
    example = activating[1][0]
    sae = interpretability.SparseAutoencoder.load(SAE)
    interpretability.save_steering(home / "steer.safetensors", steering)

    def set_threads(num_threads: Any) -> None:
        model.num_threads = num_threads

    yield {
        "Config": (Config, {"vocab_size": 9, "n_ctx": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}),
        "Config.attention_scale": (config.attention_scale, {"layer": 0}),
        "Config.from_dict": (Config.from_dict, {"values": config.to_dict()}),
        "Config.from_pretrained": (Config.from_pretrained, {"directory": tiny}),
        "Config.to_dict": (config.to_dict, {}),
        "GPT2.__call__": (model.__call__, {"ids": ids}),
        "GPT2.extend": (model.extend, {"cache": cache, "rows": [0], "ids": [ids]}),
        "GPT2.hooks": (entered(model.hooks), {"fwd_hooks": []}),
        "GPT2.run_with_cache": (model.run_with_cache, {"ids": ids}),
        "GPT2.run_with_hooks": (model.run_with_hooks, {"ids": ids}),
        "GPT2.sha256": (model.sha256, {}),
        "GPT2.forward": (model.forward, {"cache": cache, "rows": [0], "ids": [ids]}),
        "GPT2.from_pretrained": (GPT2.from_pretrained, {"directory": tiny}),
        "GPT2.from_tensors": (GPT2.from_tensors, {"config": config, "tensors": arrays}),
        "GPT2.hidden_states": (model.hidden_states, {"ids": ids}),
        "GPT2.new_cache": (model.new_cache, {}),
        "GPT2.num_threads": (set_threads, {"num_threads": 1}),
        "GPT2.residual": (model.residual, {"ids": ids, "stage": 0}),
        "GPT2.save_pretrained": (model.save_pretrained, {"directory": "out"}),
        "GPT2.with_dtype": (model.with_dtype, {"dtype": "int8"}),
        "Cache.copy_row": (
            lambda source, target: model.new_cache(2).copy_row(source, target),
            {"source": 0, "target": 1},
        ),
        "Cache.truncate": (lambda row, length: model.new_cache(2).truncate(row, length), {"row": 0, "length": 0}),
        "Outputs.choose": (outputs.choose, {"start": 0, "draws": [draw]}),
        "Outputs.logits": (outputs.logits, {"start": 0, "stop": 1}),
        "Outputs.measure": (outputs.measure, {"start": 0, "targets": [1], "n_vocab": enc.n_vocab}),
        "Outputs.states": (outputs.states, {"start": 0, "stop": 1}),
        "LanguageModel": (LanguageModel, {"model": model, "tokenizer": enc}),
        "LanguageModel.beam_search": (lm.beam_search, {"prompt": "a", **beams}),
        "LanguageModel.beam_search_batch": (lm.beam_search_batch, {"prompts": ["a"], **beams}),
        "LanguageModel.classify": (labels.classify, {"texts": ["a"]}),
        "LanguageModel.compare": (lm.compare, {"pairs": [("a", "b")]}),
        "LanguageModel.look": (lm.look, {"text": "a"}),
        "LanguageModel.drafter": (lm.drafter, {"speculate": "lookup"}),
        "LanguageModel.generate": (lm.generate, {"prompt": "a", **generated}),
        "LanguageModel.generate_batch": (lm.generate_batch, {"prompts": ["a"], **generated}),
        "LanguageModel.save_pretrained": (lm.save_pretrained, {"directory": "out"}),
        "LanguageModel.score": (lm.score, {"text": "a"}),
        "LanguageModel.score_batch": (lm.score_batch, {"texts": ["a"]}),
        "LanguageModel.score_choices": (lm.score_choices, choices),
        "LanguageModel.stream": (consumed(lm.stream), {"prompt": "a", **generated}),
        "Comparison.by_paradigm": (compared.by_paradigm, {}),
        "Comparison.interval": (compared.interval, {}),
        "Comparison.rows": (compared.rows, {}),
        "Look.html": (lm.look("a b").html, {}),
        "interpretability.lens": (interpretability.lens, {"lm": lm, "text": "a"}),
        "scoring.binoculars": (scoring.binoculars, {"performer": lm, "observer": lm, "texts": ["a"]}),
        "interpretability.ablation": (interpretability.ablation, {"lm": lm, "name": "hook_embed"}),
        # Their names may be a function of the caller's, whose errors are the caller's.
        "interpretability.ablation_sweep": (
            lambda text, metric, by, mean_over, last_only, bos: interpretability.ablation_sweep(
                lm, text, metric, "z", by=by, mean_over=mean_over, last_only=last_only, bos=bos
            ),
            {"text": "a", "metric": np.max, "by": "head", "mean_over": None, "last_only": False, "bos": True},
        ),
        "interpretability.patch_sweep": (
            lambda clean, corrupted, metric, by, last_only, bos: interpretability.patch_sweep(
                lm, clean, corrupted, metric, "z", by=by, last_only=last_only, bos=bos
            ),
            {"clean": "a", "corrupted": "b", "metric": np.max, "by": "head", "last_only": False, "bos": True},
        ),
        "Steering": (interpretability.Steering, {"name": "hook_embed", "vector": [0.5] * 8}),
        "Steering.__call__": (
            lambda activation, hook: steering(activation, hook),
            {"activation": New(lambda: np.zeros((1, 2, 8), np.float32)), "hook": HookPoint("hook_embed")},
        ),
        "Steering.scaled": (steering.scaled, {"factor": 2}),
        "interpretability.contrast_vector": (
            interpretability.contrast_vector,
            {"lm": lm, "pairs": [("a", "b")], "name": "hook_embed"},
        ),
        "interpretability.load_steering": (interpretability.load_steering, {"path": home / "steer.safetensors"}),
        "interpretability.save_steering": (
            interpretability.save_steering,
            {"path": "steer.safetensors", "steer": steering},
        ),
        "ActivatingToken.marked": (lambda left, right: example.marked(left, right), {"left": "[", "right": "]"}),
        "interpretability.max_activating": (
            interpretability.max_activating,
            {"lm": lm, "texts": ["a b"], "name": "blocks.0.mlp.hook_post"},
        ),
        "corpus.max_activating_files": (
            corpus.max_activating_files,
            {"inputs": home / "a.txt", "out": "top.jsonl", "lm": lm, "name": "blocks.0.mlp.hook_post"},
        ),
        "MaxActivating.__getitem__": (lambda unit: activating[unit], {"unit": 1}),
        "SparseAutoencoder.load": (interpretability.SparseAutoencoder.load, {"directory": SAE}),
        "SparseAutoencoder.encode": (sae.encode, {"activation": np.ones(12)}),
        "SparseAutoencoder.decode": (sae.decode, {"features": np.ones(30)}),
        "SparseAutoencoder.reconstruct": (sae.reconstruct, {"activation": np.ones(12)}),
        "SparseAutoencoder.splice": (sae.splice, {}),
        "scoring.regions": (scoring.regions, {"text": "a |b| c"}),
        "scoring.word_rows": (consumed(scoring.word_rows), {"lm": lm, "items": [{"text": "a b"}]}),
        "compression.compress": (compression.compress, {"data": b"hi", "lm": lm}),
        "compression.decompress": (compression.decompress, {"data": compressed, "lm": lm}),
        "compression.inspect": (compression.inspect, {"file": home / "a.g2z"}),
        "compression.open": (closed(compression.open), {"file": home / "a.g2z", "lm": lm}),
        "CompressedReader.close": (compression.open(home / "a.g2z", lm).close, {}),
        "CompressedReader.readable": (reader.readable, {}),
        "CompressedReader.readinto": (lambda buffer: reader.readinto(buffer), {"buffer": bytearray(2)}),
        "CompressedReader.seek": (lambda offset, whence: reader.seek(offset, whence), {"offset": 0, "whence": 0}),
        "CompressedReader.seekable": (reader.seekable, {}),
        "CompressedReader.tell": (reader.tell, {}),
        "CompressedWriter.close": (compression.open(io.BytesIO(), lm, "wb").close, {}),
        "CompressedWriter.writable": (writer.writable, {}),
        "CompressedWriter.write": (lambda data: writer.write(data), {"data": b"hi"}),
        "ModelRecord.from_bytes": (record.from_bytes, {"body": record.to_bytes()}),
        "ModelRecord.to_bytes": (record.to_bytes, {}),
        "Score.share_within": (score.share_within, {"rank": 10}),
        "Score.starts": (score.starts, {}),
        "Score.by_spans": (score.by_spans, {"spans": [(0, 2)]}),
        "Score.by_word": (score.by_word, {}),
        "Settings": (Settings, {}),
        "Sampling": (gpt2fast.sampling.Sampling, {}),
        "Settings.check_ids": (sampling.check_ids, {"n_vocab": 5}),
        "Settings.choose": (sampling.choose, {"logits": logits, "seen": ids, "key": 1, "banned": [0], "prompt": 1}),
        "Settings.draw": (sampling.draw, {"n_vocab": 5, "key": 1}),
        "Settings.probabilities": (sampling.probabilities, {"logits": logits, "seen": ids}),
        "Settings.unwanted": (sampling.unwanted, {"seen": ids}),
        "sampling.highest": (gpt2fast.sampling.highest, {"values": logits, "k": 2}),
        "sampling.log_probabilities": (gpt2fast.sampling.log_probabilities, {"logits": logits}),
        "sampling.penalize_repetition": (
            gpt2fast.sampling.penalize_repetition,
            {"logits": logits, "seen": ids, "penalty": 2.0},
        ),
        "sampling.repeated_ngrams": (gpt2fast.sampling.repeated_ngrams, {"seen": ids, "size": 2}),
        "sampling.sample_key": (gpt2fast.sampling.sample_key, {"seed": 1}),
        "load": (gpt2fast.load, {"name_or_path": tiny, "tokenizer": enc}),
        "encoding_for_model": (gpt2fast.encoding_for_model, {"model_name": "gpt2"}),
        "get_encoding": (gpt2fast.get_encoding, {"name": "gpt2"}),
        "list_encoding_names": (gpt2fast.list_encoding_names, {}),
        "DecodeStream.feed": (enc.decode_stream().feed, {"token": 1}),
        "DecodeStream.flush": (enc.decode_stream().flush, {}),
        "Tokenizer.byte_symbols": (enc.byte_symbols, {}),
        "Tokenizer.check_saving": (enc.check_saving, {"directory": "out"}),
        "Tokenizer.count": (enc.count, {"text": "hi"}),
        "Tokenizer.count_batch": (enc.count_batch, {"texts": ["hi"]}),
        "Tokenizer.decode": (enc.decode, {"tokens": ids}),
        "Tokenizer.decode_batch": (enc.decode_batch, {"batch": [[8]]}),
        "Tokenizer.decode_bytes": (enc.decode_bytes, {"tokens": ids}),
        "Tokenizer.decode_bytes_batch": (enc.decode_bytes_batch, {"batch": [[1]]}),
        "Tokenizer.decode_single_token_bytes": (enc.decode_single_token_bytes, {"token": 1}),
        "Tokenizer.decode_stream": (enc.decode_stream, {}),
        "Tokenizer.decode_tokens_bytes": (enc.decode_tokens_bytes, {"tokens": ids}),
        "Tokenizer.decode_with_offsets": (enc.decode_with_offsets, {"tokens": ids}),
        "Tokenizer.encode": (enc.encode, {"text": "hi"}),
        "Tokenizer.encode_batch": (enc.encode_batch, {"text": ["hi"]}),
        "Tokenizer.encode_batch_flat": (enc.encode_batch_flat, {"texts": ["hi"]}),
        "Tokenizer.encode_ordinary": (enc.encode_ordinary, {"text": "hi"}),
        "Tokenizer.encode_ordinary_batch": (enc.encode_ordinary_batch, {"text": ["hi"]}),
        "Tokenizer.encode_single_token": (enc.encode_single_token, {"text_or_bytes": "a"}),
        "Tokenizer.encode_spans": (enc.encode_spans, {"data": b"hi", "spans": [0, 2]}),
        "Tokenizer.encode_to_numpy": (enc.encode_to_numpy, {"text": "hi"}),
        "Tokenizer.encode_with_offsets": (enc.encode_with_offsets, {"text": "hi"}),
        "Tokenizer.encode_with_offsets_flat": (enc.encode_with_offsets_flat, {"text": "hi"}),
        "Tokenizer.encode_with_unstable": (enc.encode_with_unstable, {"text": "hi"}),
        "Tokenizer.from_files": (gpt2fast.Tokenizer.from_files, {"vocab": vocab, "merges": merges}),
        "Tokenizer.from_pretrained": (gpt2fast.Tokenizer.from_pretrained, {"directory": "nowhere"}),
        "Tokenizer.is_added_token": (enc.is_added_token, {"token": 1}),
        "Tokenizer.is_special_token": (enc.is_special_token, {"token": 1}),
        "Tokenizer.last_cut": (enc.last_cut, {"text": "hi"}),
        "Tokenizer.save_pretrained": (enc.save_pretrained, {"directory": "out"}),
        "Tokenizer.split": (enc.split, {"text": "hi"}),
        "Tokenizer.token_byte_values": (enc.token_byte_values, {}),
        "hub.cache_directory": (hub.cache_directory, {}),
        "hub.download": (hub.download, {"name": "gpt2"}),
        "hub.resolve": (hub.resolve, {"name_or_path": tiny}),
        "corpus.score_items": (corpus.score_items, {"items": home / "items.csv", "out": "out.tsv", "lm": lm}),
        "ScoreBatches": (ScoreBatches, {}),
        "ScoreBatches.__call__": (ScoreBatches(lm), {"batch": pa.table({"text": ["hi"]})}),
        "ScoreExamples": (ScoreExamples, {}),
        "ScoreExamples.__call__": (ScoreExamples(lm), batch),
        "ScoreExamples.check": (ScoreExamples(lm).check, {"names": ["text"]}),
        "ScoreExamples.columns": (ScoreExamples(lm).columns, {"texts": ["hi"]}),
        "corpus.score_files": (corpus.score_files, {"inputs": home / "a.txt", "out": "out.jsonl", "lm": lm}),
        "corpus.tokenize_files": (
            corpus.tokenize_files,
            {"inputs": home / "a.txt", "out": "out.npy", "tokenizer": enc},
        ),
        "TokenizeBatches": (TokenizeBatches, {}),
        "TokenizeBatches.__call__": (TokenizeBatches(), {"batch": pa.table({"text": ["hi"]})}),
        "TokenizeExamples": (TokenizeExamples, {}),
        "TokenizeExamples.__call__": (TokenizeExamples(), batch),
        "SafeOpen.close": (other.close, {}),
        "SafeOpen.get_slice": (opened.get_slice, {"name": "a"}),
        "SafeOpen.get_tensor": (opened.get_tensor, {"name": "a"}),
        "SafeOpen.keys": (opened.keys, {}),
        "SafeOpen.metadata": (opened.metadata, {}),
        "TensorSlice.__getitem__": (lambda index: part[index], {"index": 0}),
        "TensorSlice.get_dtype": (part.get_dtype, {}),
        "TensorSlice.get_shape": (part.get_shape, {}),
        "safetensors.as_float32": (safetensors.as_float32, {"array": np.zeros(2, np.uint16), "dtype": "BF16"}),
        "safetensors.check_shard": (
            safetensors.check_shard,
            {"path": home / "a.safetensors", "names": ["a"], "index": {"a": home / "a.safetensors"}},
        ),
        "safetensors.deserialize": (safetensors.deserialize, {"data": safetensors.save({"a": np.zeros(1)})}),
        "safetensors.load": (safetensors.load, {"data": safetensors.save({"a": np.zeros(1)})}),
        "safetensors.load_file": (safetensors.load_file, {"path": home / "a.safetensors"}),
        "safetensors.load_sharded": (safetensors.load_sharded, {"directory": tiny}),
        "safetensors.read_file": (safetensors.read_file, {"path": home / "a.safetensors"}),
        "safetensors.read_index": (safetensors.read_index, {"directory": home / "shards"}),
        "safetensors.read_metadata": (safetensors.read_metadata, {"path": home / "a.safetensors"}),
        "safetensors.safe_open": (safetensors.safe_open, {"path": home / "a.safetensors"}),
        "safetensors.save": (safetensors.save, {"tensors": {"a": np.zeros(3)}}),
        "safetensors.save_file": (safetensors.save_file, {"tensors": {"a": np.zeros(3)}, "path": "out.safetensors"}),
        "safetensors.save_sharded": (safetensors.save_sharded, {"tensors": {"a": np.zeros(3)}, "directory": "out"}),
        "safetensors.serialize": (
            safetensors.serialize,
            {"tensors": {"a": {"dtype": "float32", "shape": [1], "data": b"abcd"}}},
        ),
        "ChatTemplate": (server.ChatTemplate, {"source": "{{ messages }}", "lm": lm}),
        "ChatTemplate.from_file": (server.ChatTemplate.from_file, {"path": home / "template", "lm": lm}),
        "ChatTemplate.prompt": (template.prompt, {"messages": [{"role": "user", "content": "a"}]}),
        "Key": (server.Key, {"secret": "s"}),
        "Limits": (server.Limits, {}),
        "server.bind": (lambda host, port: server.bind(host, port).close(), {"host": "127.0.0.1", "port": 0}),
        "server.create_app": (server.create_app, {"lm": lm}),
        "server.read_keys": (server.read_keys, {"path": home / "key"}),
    }
    opened.close()


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own, no network, and no waiting for a disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", sorted({*public()} - NOT_CALLED))
@pytest.mark.filterwarnings("ignore")
def test_odd_arguments(name: str, table: Table) -> None:
    assert name in table, "a new public name: say in the table above what it is called with"
    function, arguments = table[name]
    found = []
    for argument in inspect.signature(function).parameters.keys() - NOT_TRIED:
        for odd, value in ODD.items():
            for path in Path().iterdir():  # what the last call has written
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            given = {**arguments, argument: value()}
            try:
                call(function, given)
            except (gpt2fast.Error, TypeError, ALSO.get(name, TypeError)):
                pass
            except Exception as error:
                found.append(f"{argument}: {odd}: {error!r}")
    assert not found, "\n".join(found)


def test_the_arguments_of_the_table_are_right(table: Table) -> None:
    assert not table.keys() - {*public()}, "these are not public"
    for name, (function, arguments) in table.items():
        if name in ("Tokenizer.from_pretrained", "hub.download"):
            continue  # which take long, and need a network
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(function, arguments)
