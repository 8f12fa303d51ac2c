"""A server that cannot start says why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from live_server import ROOT


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
