"""A server that cannot start says why."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import pytest
from live_server import ROOT

from gpt2fast.cli import main


def test_the_command_says_what_is_wrong() -> None:
    def error(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpt2fast", "serve", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            timeout=60,
        )
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert error("--port", str(port)) == (1, f"gpt2fast: 127.0.0.1:{port}: Address already in use\n")
    assert error("--port", "0", GPT2FAST_API_KEY="") == (
        1,
        "gpt2fast: the key is empty; expected one, or none to let everybody in\n",
    )
    assert error("--queue", "-1") == (1, "gpt2fast: queue is -1; expected 0 or more\n")
    assert error("--port", "65536")[0] == 2
    # Open to everybody, under any name: only where that is said.
    status, text = error("--host", "0.0.0.0", "--port", "0")
    assert (status, text.startswith("gpt2fast: whoever reaches 0.0.0.0 could use this server")) == (1, True)
    assert "--allow-host" in text
    assert error("--tls-key", "x") == (
        2,
        "gpt2fast: there is --tls-key without --tls-cert, the certificate that it belongs to\n",
    )
    for option in ("--tls-cert", "--chat-template", "--api-keys"):
        status, text = error("--port", "0", option, "no/such/file")
        assert (status, "no/such/file" in text, len(text.splitlines())) == (1, True, 1), text
    assert error("--port", "0", "--tls-cert", __file__)[1].startswith(f"gpt2fast: no TLS with {__file__}: ")
    status, text = error("--host", "no host", "--port", "0")
    assert (status, text.startswith("gpt2fast: host is 'no host'")) == (1, True)


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "prometheus_client"])
def test_what_is_missing_is_asked_for_by_name(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None\nfrom gpt2fast.cli import main\nsys.exit(main(['serve']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    expected = f"gpt2fast: serving needs {name}, which is not installed: pip install 'gpt2fast[serve]'\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_what_two_hyphens_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """argparse of Python 3.10 to 3.12 makes an empty list of them; and an option that was not given is no list."""
    from gpt2fast.cli import _parser

    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        for action in parser._actions:
            if action.option_strings:
                assert action.default != [], (name, action.option_strings)
    given: dict[str, object] = {}
    monkeypatch.setattr("gpt2fast.server.serve", lambda *_, **options: given.update(options), raising=False)
    assert main(["serve", "--port", "0"]) == 0
    assert (given["origins"], given["hosts"]) == ((), None)
    assert main(["serve", "--port", "0", "--allow-origin=--", "--allow-origin", "http://a.example"]) == 0
    assert given["origins"] == ["--", "http://a.example"]
