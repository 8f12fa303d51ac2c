"""The command line: exact bytes in and out, what is an error and how it ends, and text as it comes."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpt2fast
from gpt2fast.cli import main

ROOT = Path(gpt2fast.__file__).parents[1]


class Result(NamedTuple):
    status: int
    out: bytes
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs the command in this process: arguments, and what is on standard input."""

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "ascii"))
        capsysbinary.readouterr()
        try:
            status = main(arguments)
        except SystemExit as exit:
            status = int(exit.code or 0)
        captured = capsysbinary.readouterr()
        return Result(status, captured.out, captured.err.decode())

    return run


@pytest.fixture(scope="module")
def case(data: Path) -> Any:
    return {case["id"]: case for case in json.loads((data / "cli" / "cases.json").read_text())}.__getitem__


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    line = [sys.executable, "-m", "gpt2fast", *arguments]
    return subprocess.run(line, capture_output=True, env=environment, timeout=120, **options)


def numbers(out: bytes) -> list[int]:
    return [int(word) for word in out.split()]


# Encode, decode, count


FILES = ("bom", "crlf_and_final_newline", "empty", "no_final_newline", "nul", "separators")


@pytest.mark.parametrize("name", FILES)
def test_bytes_are_exact(run: Run, data: Path, case: Any, name: str) -> None:
    path = data / "cli" / f"{name}.txt"
    expected = case("cli-file-exact")["expected"]["ids"][path.name]
    from_file = run("encode", str(path))
    assert (from_file.status, numbers(from_file.out)) == (0, expected)
    assert from_file.out.endswith(b"\n")
    assert from_file.out.count(b"\n") == 1
    assert run("encode", "-", stdin=path.read_bytes()) == from_file
    assert run("encode", stdin=path.read_bytes()) == from_file
    assert run("count", str(path)).out == b"%d\n" % len(expected)
    assert run("count", stdin=path.read_bytes()).out == b"%d\n" % len(expected)
    assert run("decode", stdin=from_file.out).out == path.read_bytes()


def test_bytes_are_exact_in_the_c_locale(data: Path, case: Any) -> None:
    environment = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    path = data / "cli" / "separators.txt"
    encoded = command("encode", str(path), env=environment)
    assert numbers(encoded.stdout) == case("cli-file-exact")["expected"]["ids"][path.name]
    assert command("decode", input=encoded.stdout, env=environment).stdout == path.read_bytes()
    assert command("encode", "--text", "é🦊", env=environment).stdout == command("encode", "--text", "é🦊").stdout
    told = command("generate", "--model", "é🦊", "x", env=environment)
    assert (told.returncode, told.stderr.count(b"\n")) == (1, 1)


@given(st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_come_back(run: Run, text: bytes) -> None:
    encoded = run("encode", stdin=text)
    assert run("decode", stdin=encoded.out).out == text
    assert numbers(run("count", stdin=text).out) == [len(numbers(encoded.out))]


def test_a_text_as_argument_has_no_escapes(run: Run, case: Any) -> None:
    assert numbers(run("encode", "--text", "a\\nb").out) == case("cli-file-exact")["expected"]["argument_ids"]
    assert run("encode", "--text", "a", "some.txt").status == 2


def test_special_tokens_are_text_unless_allowed(run: Run, case: Any) -> None:
    text = case("cli-special-text")["input"]["stdin"].encode()
    expected = case("cli-special-text")["expected"]
    assert numbers(run("encode", stdin=text).out) == expected["default_ids"]
    assert numbers(run("encode", "--allow-special", stdin=text).out) == expected["allowed_ids"]
    assert numbers(run("count", stdin=text).out) == [expected["default_count"]]
    assert numbers(run("count", "--allow-special", stdin=text).out) == [len(expected["allowed_ids"])]


def test_two_dashes_as_a_value(run: Run) -> None:
    assert run("decode", stdin=run("encode", "--text=--").out).out == b"--"
    told = run("generate", "a", "--quiet", "--echo", "--stop=--", "--tokens", "1", "--temperature", "0", "--stop", "\0")
    assert told.status == 0


@pytest.mark.parametrize("ids", [b"15496 11\n995", b"[15496, 11, 995]", b"15496\n11\n995\n", b"(15496,11,995)"])
def test_ids_in_the_shapes_that_people_have(run: Run, ids: bytes) -> None:
    assert run("decode", stdin=ids) == Result(0, b"Hello, world", "")


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (b"1 x 2", "standard input: 'x' is no token id"),
        (b"-1", "'-1' is no token id"),
        (b"1.5", "'1.5' is no token id"),
        (b"50257", "50257"),
        (b"9" * 30, "9999"),
        (b"\xb2", "is no token id"),
    ],
)
def test_ids_that_are_none(run: Run, ids: bytes, words: str) -> None:
    told = run("decode", stdin=ids)
    assert (told.status, told.out) == (1, b"")
    assert words in told.err
    assert told.err.count("\n") == 1


def test_counts_of_several_files(run: Run, data: Path) -> None:
    files = [str(data / "cli" / f"{name}.txt") for name in ("nul", "empty", "bom")]
    lines = run("count", *files).out.decode().splitlines()
    assert lines == [f"4\t{files[0]}", f"0\t{files[1]}", f"5\t{files[2]}", "9\ttotal"]


def test_tokenizer_of_a_model(run: Run) -> None:
    expected = gpt2fast.load("demo").tokenizer.encode_ordinary("Once upon a time")
    assert numbers(run("encode", "--tokenizer", "demo", "--text", "Once upon a time").out) == expected
    assert numbers(run("encode", "--text", "Once upon a time").out) != expected


# Generate


GREEDY = ("--tokens", "12", "--temperature", "0")
CONTINUATION = b", and the old man was very fond of his own,"


@pytest.mark.parametrize(
    "prompt",
    [
        ["Once upon a time"],
        ["--prompt", "Once upon a time"],
        ["--prompt=Once upon a time"],
        ["-"],
        ["--", "Once upon a time"],
    ],
)
def test_generate(run: Run, prompt: list[str]) -> None:
    told = run("generate", *GREEDY, *prompt, stdin=b"Once upon a time")
    assert told.status == 0
    assert told.out == CONTINUATION + b"\n"
    assert "12 tokens in" in told.err
    assert "tokens/s" in told.err


@pytest.mark.parametrize("prompt", ["--help is text", "-5", "--", "-x", "a\\nb", ""])
@pytest.mark.parametrize("by_name", [False, True])
def test_any_prompt_can_be_given(run: Run, prompt: str, by_name: bool) -> None:
    arguments = [f"--prompt={prompt}"] if by_name else ["--", prompt]
    told = run("generate", "--tokens", "3", "--seed", "1", "--quiet", "--echo", *arguments)
    expected = gpt2fast.load("demo").generate(prompt, max_new_tokens=3, seed=1).text
    assert told == Result(0, (prompt + expected + "\n").encode(), "")


def test_a_prompt_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(b"The end.\r\n")
    line = ("generate", "--tokens", "8", "--seed", "5", "--quiet")
    assert run(*line, "--prompt-file", str(tmp_path / "prompt")) == run(*line, "-", stdin=b"The end.\r\n")
    assert run(*line, "--prompt-file", str(tmp_path / "none")).status == 1
    assert run(*line, "a", "--prompt-file", str(tmp_path / "prompt")).status == 2


def test_several_texts(run: Run) -> None:
    first, second = gpt2fast.load("demo").generate("A king", n=2, max_new_tokens=5, seed=3, logprobs=1)  # type: ignore[misc]
    told = run("generate", "A king", "-n", "2", "--tokens", "5", "--seed", "3")
    assert told.out.decode() == f"--- 1 of 2 ---\n{first.text}\n--- 2 of 2 ---\n{second.text}\n"
    told = run("generate", "A king", "-n", "2", "--tokens", "5", "--seed", "3", "--json", "--logprobs", "1", "--echo")
    for line, text in zip(told.out.splitlines(), (first, second), strict=True):
        found = json.loads(line)
        assert (found["prompt"], found["text"], found["ids"], found["seed"]) == ("A king", text.text, text.ids, 3)
        assert (found["finish_reason"], found["logprobs"]) == ("length", text.logprobs)
        assert [[(i, p) for i, p in token] for token in found["top_logprobs"]] == text.top_logprobs


def test_beams(run: Run) -> None:
    found = gpt2fast.load("demo").beam_search("A king", num_beams=3, num_return_sequences=2, max_new_tokens=5)
    told = run("generate", "A king", "--beams", "3", "-n", "2", "--tokens", "5", "--json", "--quiet")
    assert [json.loads(line)["ids"] for line in told.out.splitlines()] == [beam.ids for beam in found]
    assert json.loads(told.out.splitlines()[0])["score"] == found[0].score
    assert run("generate", "A king", "--beams", "3", "--tokens", "5").out == (found[0].text + "\n").encode()


def test_a_prompt_keeps_its_last_newline(run: Run) -> None:
    arguments = ("generate", "-", "--tokens", "8", "--seed", "5", "--quiet")
    expected = gpt2fast.load("demo").generate("The end.\r\n", max_new_tokens=8, seed=5).text
    assert run(*arguments, stdin=b"The end.\r\n").out == (expected + "\n").encode()


def test_options_reach_the_model(run: Run) -> None:
    line = (
        "--tokens=30 --temperature=1.1 --top-k=7 --top-p=0.9 --min-p=0.02 --repetition-penalty=1.2 --seed=9 --threads=1"
    )
    options = {"top_k": 7, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "seed": 9, "stop": ["the", "."]}
    expected = gpt2fast.load("demo").generate("A king", max_new_tokens=30, temperature=1.1, **options)
    told = run("generate", "A king", *line.split(), "--stop", "the", "--stop", ".")
    assert told.out == (expected.text + "\n").encode()
    assert "seed 9]" in told.err


@pytest.mark.parametrize("how", ["int8", "int4", "lookup"])
def test_speculation_changes_only_the_rate(run: Run, how: str) -> None:
    line = ("generate", "Once upon a time, once upon a", "--seed", "4", "--tokens", "30")
    quick = run(*line, "--speculate", how)
    assert quick.out == run(*line, "--speculate", "off").out
    assert re.search(r"; \d+ of \d+ proposals accepted; seed 4\]", quick.err)


def test_a_packed_model_writes_the_same_text(run: Run, tmp_path: Path) -> None:
    assert run("pack", str(tmp_path / "small")) == Result(0, b"", "")
    line = ("generate", "Once", "--dtype", "int8", "--seed", "1", "--tokens", "20")
    assert run(*line, "--model", str(tmp_path / "small")).out == run(*line).out
    assert run(*line[:2], *line[4:], "--model", str(tmp_path / "small")).out == run(*line).out  # it knows its own dtype
    told = run("generate", "Once", "--dtype", "float32", "--model", str(tmp_path / "small"))
    assert (told.status, told.err.count("load them with dtype='int8'")) == (1, 1)
    assert "U8" in run("inspect", str(tmp_path / "small")).out.decode()


def test_a_drawn_seed_is_told(run: Run) -> None:
    first = run("generate", "A king")
    seed = first.err.rsplit("seed ", 1)[1].rstrip("]\n")
    assert run("generate", "A king", "--seed", seed).out == first.out


def test_special_tokens_in_a_prompt(run: Run) -> None:
    lm = gpt2fast.load("demo")
    told = run("generate", "<|endoftext|>", "--allow-special", *GREEDY)
    assert told.out == (lm.generate([lm.tokenizer.eot_token], max_new_tokens=12, temperature=0).text + "\n").encode()
    assert run("generate", "<|endoftext|>", *GREEDY).out != told.out


def test_text_comes_while_it_is_made() -> None:
    line = [sys.executable, "-m", "gpt2fast", "generate", "x", "--tokens", "400", "--temperature", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pieces = []
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            pieces.append(piece)
        process.stderr.read()
    assert process.returncode == 0
    assert len(pieces) > 5  # not one piece at the end


# Score, inspect, download


@pytest.mark.parametrize(("options", "delimiter"), [([], "\t"), (["--csv"], ",")])
@pytest.mark.parametrize(
    "text",
    [
        "Once\tupon\n🦊",
        '"Yes," she said. "No," he said.',
        "a\r\nb\rc \\n, 'd'",
        'He called it "good" and "bad" that day.',
    ],
)
def test_score_as_a_table(run: Run, options: list[str], delimiter: str, text: str) -> None:
    told = run("score", *options, stdin=text.encode())
    names, *rows = csv.reader(io.StringIO(told.out.decode(), newline=""), delimiter=delimiter)
    assert names == ["id", "start", "end", "token", "log_probability", "surprisal", "rank", "entropy"]
    score = gpt2fast.load("demo").score(text)
    assert [int(row[0]) for row in rows] == score.ids.tolist()
    assert [row[3] for row in rows] == [token.text for token in score.tokens]
    assert [float(row[4]) for row in rows] == pytest.approx(score.log_probabilities.tolist(), abs=1e-6)
    assert f"{len(score)} tokens, perplexity {score.perplexity:.2f}" in told.err
    table = pandas.read_csv(io.BytesIO(told.out), sep=delimiter, keep_default_na=False, dtype={"token": str})
    assert table["token"].tolist() == [token.text for token in score.tokens]


def test_a_table_of_tokens_by_pandas() -> None:
    score = gpt2fast.load("demo").score("Once upon a time")
    table = pandas.DataFrame(score.tokens)
    assert list(table.columns) == ["id", "text", "span", "log_probability", "rank", "entropy", "surprisal"]
    assert table["surprisal"].tolist() == pytest.approx(score.surprisal.tolist())
    words = pandas.DataFrame(score.by_word())
    assert words["surprisal"].sum() == pytest.approx(score.surprisal.sum())


def test_score_as_json_lines(run: Run) -> None:
    told = run("score", "--json", "--quiet", "--context", "The fox", "--text", "ran “away”.")
    tokens = gpt2fast.load("demo").score("ran “away”.", context="The fox").tokens
    assert told.err == ""
    values = [json.loads(line) for line in told.out.splitlines()]
    assert [value["token"] for value in values] == [token.text for token in tokens]
    assert [(value["start"], value["end"]) for value in values] == [token.span for token in tokens]
    assert [value["rank"] for value in values] == [token.rank for token in tokens]


def test_score_as_a_page(run: Run, tmp_path: Path) -> None:
    text = "<script>alert('1 & 2')</script>\n\0 🦊 end"
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    page = run("score", "--html", str(path)).out.decode()
    assert "<script" not in page
    assert "http" not in page.lower()
    body = re.split("<main[^>]*>", page)[1].split("</main>")[0]
    assert html.unescape(re.sub("<[^>]*>", "", body)) == text.replace("\0", "␀")


def test_score_of_bytes_that_are_no_text(run: Run) -> None:
    told = run("score", stdin=b"caf\xe9")
    assert told.status == 0
    assert b"\t\\xe9\t" in told.out


def test_score_of_nothing(run: Run) -> None:
    told = run("score", stdin=b"")
    assert (told.status, told.out.count(b"\n"), told.err) == (0, 1, "[0 tokens]\n")


def test_inspect(run: Run) -> None:
    directory = run("download", "demo").out.decode().rstrip("\n")
    told = run("inspect", directory)
    assert b"wte.weight" in told.out
    assert json.loads(run("inspect", "--json", directory).out)["num_parameters"] == 5918720


# Errors and endings


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["frobnicate"],
        ["generate"],
        ["generate", "a", "b"],
        ["generate", "a", "--prompt", "b"],
        ["generate", "a", "--frobnicate"],
        ["generate", "a", "--tok", "3"],
        ["generate", "a", "--tokens"],
        ["generate", "a", "--tokens", "many"],
        ["generate", "a", "--tokens", "0"],
        ["generate", "a", "--tokens", "-3"],
        ["generate", "a", "--device", "gpu"],
        ["generate", "a", "--device", "cuda:x"],
        ["generate", "a", "--dtype", "float64"],
        ["generate", "a", "--temperature", "warm"],
        ["generate", "--prompt"],
        ["score", "--html", "--json"],
        ["encode", "a", "b"],
        ["inspect"],
        ["download"],
    ],
)
def test_a_line_that_is_not_understood(run: Run, line: list[str]) -> None:
    told = run(*line)
    assert (told.status, told.out) == (2, b"")
    assert "usage: gpt2fast" in told.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["encode", "no-such-file"], "no-such-file: No such file"),
        (["encode", "."], ".: Is a directory"),
        (["count", "no-such-file"], "no-such-file"),
        (["decode", "no-such-file"], "no-such-file"),
        (["score", "no-such-file"], "no-such-file"),
        (["inspect", "no-such-file"], "no-such-file"),
        (["generate", "a", "--model", "no-such-model"], "no-such-model"),
        (["encode", "--tokenizer", "no-such-model"], "no-such-model"),
        (["generate", "a", "--tokens", "600", "--overflow", "error"], "512"),
        (["generate", "a " * 600], "512"),
    ],
)
def test_an_error_is_one_line(run: Run, line: list[str], words: str) -> None:
    told = run(*line)
    assert (told.status, told.out) == (1, b"")
    assert words in told.err
    assert told.err.startswith("gpt2fast: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["generate", "a", "--temperature", "-1"], "temperature is -1"),
        (["generate", "a", "--temperature", "nan"], "temperature is nan"),
        (["generate", "a", "--top-p", "1.5"], "top_p is 1.5"),
        (["generate", "a", "--stop", ""], "stop"),
        (["generate", "a", "--seed", "-4"], "seed"),
        (["generate", "a", "--min-tokens", "70"], "min_new_tokens is 70"),
        (["generate", "a", "--presence-penalty", "inf"], "presence_penalty is inf"),
        (["generate", "a", "--logprobs", "2"], "--json"),
        (["generate", "a", "--beams", "2", "--temperature", "1"], "--temperature is for sampling"),
        (["generate", "a", "--beams", "2", "--seed", "1"], "--seed"),
        (["generate", "a", "--beams", "2", "-n", "3"], "only 2 beams"),
        (["score", "--stride", "513", "--text", "a"], "--stride is 513"),
        (["score", "--html", "--by-word", "--text", "a"], "--by-word"),
        (["score", "--by-word", "-o", "b.tsv", "a"], "--by-word"),
    ],
)
def test_values_that_make_no_sense_are_the_command_lines_fault(run: Run, line: list[str], words: str) -> None:
    told = run(*line)
    assert (told.status, told.out) == (2, b"")
    assert words in told.err
    assert told.err.startswith("gpt2fast: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["generate", "a", "--temprature", "1"], "did you mean --temperature?"),
        (["generate", "a", "--top_k=3"], "did you mean --top-k?"),
        (["score", "--by-words"], "did you mean --by-word?"),
        (["gnerate", "a"], "did you mean generate?"),
        (["generate", "a", "--dtype", "flot32"], "did you mean float32?"),
    ],
)
def test_what_may_have_been_meant(run: Run, line: list[str], hint: str) -> None:
    told = run(*line)
    assert (told.status, told.out) == (2, b"")
    assert told.err.endswith(f"{hint}\n")


@pytest.mark.parametrize(
    "line", [["--help"], *([name, "--help"] for name in ("generate", "encode", "score", "inspect"))]
)
def test_help(run: Run, line: list[str]) -> None:
    told = run(*line)
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith(b"usage: gpt2fast")
    assert all(len(text) <= 100 for text in told.out.decode().splitlines())


def test_scores_by_word(run: Run) -> None:
    text = "Once upon a\ttime, there"
    words = gpt2fast.load("demo").score(text).by_word()
    told = run("score", "--by-word", "--json", "--text", text)
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [(row["word"], row["start"], row["end"]) for row in rows] == [(word.text, *word.span) for word in words]
    assert [row["surprisal"] for row in rows] == [word.surprisal for word in words]
    header, *lines = run("score", "--by-word", "--text", text).out.decode().splitlines()
    assert header.split("\t") == list(rows[0])
    assert [line.split("\t")[2] for line in lines] == [word.text for word in words]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    told = run("--completion", shell)
    assert (told.status, told.err) == (0, "")
    for word in (b"generate", b"tokenize", b"temperature", b"bfloat16"):
        assert word in told.out
    if shell == "bash" and shutil.which("bash"):
        script = told.out + b"COMP_WORDS=(gpt2fast gener); COMP_CWORD=1; _shtab_gpt2fast; echo ${COMPREPLY[@]}\n"
        script += b"COMP_WORDS=(gpt2fast score --by); COMP_CWORD=2; _shtab_gpt2fast; echo ${COMPREPLY[@]}\n"
        done = subprocess.run(["bash"], input=script, capture_output=True, check=True)
        assert done.stdout.split() == [b"generate", b"--by-word"]


def test_version(run: Run) -> None:
    assert run("--version") == Result(0, f"gpt2fast {gpt2fast.__version__}\n".encode(), "")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("line", [["generate", "x", "--tokens", "500"], ["encode", __file__]])
def test_a_reader_that_goes_away(line: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "gpt2fast", *line], stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=120
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_is_quiet() -> None:
    # A shell has its background commands ignore interrupts, and what they start inherits that.
    heeds = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    heeds += "from gpt2fast.cli import main; sys.exit(main())"
    # The greedy text repeats itself and so never comes to an end of its own.
    line = [sys.executable, "-c", heeds, "generate", "Once upon a time", "--temperature", "0"]
    line += ["--tokens", "1000000", "--overflow", "slide"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, b"")


def test_no_standard_streams() -> None:
    """As a service manager or `>&-` starts it."""
    line = f"{sys.executable} -m gpt2fast encode --text a >&-"
    done = subprocess.run(
        line, shell=True, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, b"gpt2fast: standard output is closed\n")


def test_counting_loads_no_engine() -> None:
    code = (
        "import io, sys; from gpt2fast.cli import main; sys.stdin = io.TextIOWrapper(io.BytesIO(b'x'))\n"
        "assert main(['count']) == 0\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('numpy', 'scipy', 'huggingface_hub', 'torch')))\n"
        "print('gpt2fast.model' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60)
    assert done.stdout.split() == [b"1", b"[]", b"False"]
