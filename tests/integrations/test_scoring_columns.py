"""Scores as columns: Hugging Face datasets, Arrow tables as Ray Data hands them on, datatrove, Data-Juicer.

datatrove and Data-Juicer are tried where they are installed.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.integrations.datasets import ScoreExamples
from gpt2fast.integrations.ray import ScoreBatches

TEXTS = ["Once upon a time there was a king.", "", None, "click here >>> FREE $$$ xx 4839", "The wolf said no."]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    scores = [None if text is None else gpt2fast.load("demo").score(text) for text in TEXTS]
    return {
        "tokens": [None if score is None else len(score) for score in scores],
        "log_likelihood": [None if score is None else score.log_likelihood for score in scores],
        "perplexity": [score.perplexity if score else None for score in scores],
        "bits_per_byte": [score.bits_per_byte if score else None for score in scores],
    }


def test_datasets(expected: dict[str, list[Any]]) -> None:
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(5))})
    scored = dataset.map(ScoreExamples(), batched=True, batch_size=2)
    assert scored["id"][:] == list(range(5))
    for name, values in expected.items():
        assert scored[name][:] == values
    plausible = scored.filter(lambda value: value is not None and value < 200, input_columns="perplexity")
    assert plausible["id"][:] == [i for i, value in enumerate(expected["perplexity"]) if value and value < 200]


def test_arrow_tables(expected: dict[str, list[Any]]) -> None:
    table = ScoreBatches()(pa.table({"text": TEXTS}))
    assert table.to_pydict() == {"text": TEXTS, **expected}
    empty = ScoreBatches()(pa.table({"text": pa.array([], pa.string())}))
    assert empty.schema == table.schema


@pytest.mark.parametrize("kind", [ScoreExamples, ScoreBatches])
def test_pickled_as_a_name_to_the_same_bytes(kind: Any, expected: dict[str, list[Any]]) -> None:
    before = kind("demo", dtype="int8", field="x")
    kept = pickle.dumps(before)
    batch: Any = {"x": ["a king"]} if kind is ScoreExamples else pa.table({"x": ["a king"]})
    first = before(batch)
    assert pickle.dumps(before) == kept
    assert len(kept) < 500
    assert pickle.loads(kept)(batch) == first
    lm = gpt2fast.load("demo", dtype="int8")
    assert kind(lm, field="x")(batch) == first


def test_refusals() -> None:
    for call, error, words in [
        (lambda: ScoreExamples()({"x": ["a"]}), InputError, "there is no column 'text', but 'x'"),
        (lambda: ScoreExamples()({"text": "a"}), InputTypeError, "a single example"),
        (lambda: ScoreExamples()({"text": [1]}), InputTypeError, "'text' holds a int"),
        (lambda: ScoreExamples()({"text": ["a"], "tokens": [1]}), InputError, "a column 'tokens' already"),
        (lambda: ScoreExamples()(pa.table({"text": ["a"]})), InputTypeError, "an Arrow table"),
        (lambda: ScoreBatches()({"text": ["a"]}), InputTypeError, "expected an Arrow table"),
        (lambda: ScoreBatches()(pa.table({"text": [1]})), InputTypeError, "'text' holds a int"),
    ]:
        with pytest.raises(error) as caught:
            call()  # type: ignore[no-untyped-call]
        assert words in str(caught.value)


def test_tokenizing_with_these_modules_loads_no_engine() -> None:
    program = "import gpt2fast.integrations.ray, gpt2fast.integrations.datasets, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("gpt2fast.model", "gpt2fast.kernels"))]


def test_datatrove(tmp_path: Path, expected: dict[str, list[Any]]) -> None:
    pytest.importorskip("datatrove")
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    from gpt2fast.integrations.datatrove import PerplexityFilter

    source = tmp_path / "in"
    source.mkdir()
    rows = [{"text": text, "id": str(i)} for i, text in enumerate(TEXTS) if text]
    (source / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    dropped = JsonlWriter(str(tmp_path / "dropped"), compression=None)
    kept = JsonlWriter(str(tmp_path / "kept"), compression=None)
    step = PerplexityFilter("demo", maximum=200, exclusion_writer=dropped, batch_size=2)
    LocalPipelineExecutor([JsonlReader(str(source)), step, kept], logging_dir=str(tmp_path / "logs")).run()
    found = {
        name: [json.loads(line) for path in (tmp_path / name).glob("*.jsonl") for line in path.open(encoding="utf-8")]
        for name in ("kept", "dropped")
    }
    assert [row["id"] for row in found["kept"]] == [
        str(i) for i, value in enumerate(expected["perplexity"]) if value is not None and value <= 200
    ]
    for row in found["kept"] + found["dropped"]:
        assert row["metadata"]["perplexity"] == expected["perplexity"][int(row["id"])]


def test_data_juicer(tmp_path: Path, expected: dict[str, list[Any]]) -> None:
    pytest.importorskip("data_juicer")
    from data_juicer.core.data import NestedDataset
    from data_juicer.utils.constant import Fields, StatsKeys

    from gpt2fast.integrations.data_juicer import Gpt2fastPerplexityFilter

    numbers = [i for i, text in enumerate(TEXTS) if text]
    dataset = NestedDataset.from_list([{"text": TEXTS[i], "number": i, Fields.stats: {}} for i in numbers])
    step = Gpt2fastPerplexityFilter("demo", max_score=200.0)
    kept = list(step.run(dataset))
    assert [row["number"] for row in kept] == [i for i in numbers if expected["perplexity"][i] <= 200]
    for row in kept:
        assert row[Fields.stats][StatsKeys.llm_perplexity] == expected["perplexity"][row["number"]]
