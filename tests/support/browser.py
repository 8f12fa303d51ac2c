"""Debian's chromium without a window, driven over a pipe in the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        #: Everything that the tab has told, such as its requests.
        self.events: list[dict[str, Any]] = []

    def open(self) -> None:
        """Make the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def value(self, expression: str) -> Any:
        """The value of JavaScript, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of JavaScript once it is true."""
        end = time.monotonic() + 30
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} does not come true: {self.value('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press a key and let it go; modifiers are 1 Alt, 2 Ctrl."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def screenshot(self, file: str, width: int, height: int, dark: bool = False) -> None:
        """A PNG of the whole page in a window of that size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], 60)
            assert ready, "the browser does not answer"
            received = os.read(self._answers, 1 << 16)
            assert received, "the browser went away"
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that knows no other host than 127.0.0.1."""
    assert CHROMIUM is not None
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={profile}",
        ]
        # The pipe is on descriptors 3 and 4, which only the shell can say.
        script = f'exec "$0" "$@" 3<&{commands_in} 4>&{answers_out}'
        process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands_in, answers_out),
        )
        os.close(commands_in)
        os.close(answers_out)
        try:
            tab = Browser(commands_out, answers_in)
            tab.open()
            yield tab
        finally:
            os.close(commands_out)
            os.close(answers_in)
            process.terminate()
            process.wait(30)
