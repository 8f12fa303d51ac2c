"""A small stand-in for the Hugging Face hub on this machine: its list of files, its downloads, and its troubles."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


def commit_of(text: str) -> str:
    """A commit's 40 digits, made from any text."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def blob_id(content: bytes) -> str:
    """The id that `git hash-object` gives."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """Files by name for each commit, and where branches are."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False


class FakeHub:
    """The server.  Its attributes are its state and its faults, and may be changed while it runs."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        #: Names whose bytes arrive changed, the length being right.
        self.corrupt: set[str] = set()
        #: The connection breaks after so many bytes of a weight file.
        self.cut: int | None = None
        #: After the cut no more is sent until this is set, where it is not None.
        self.stall: threading.Event | None = None
        self.ignore_range = False
        #: What the list states instead of the right values, by file name.
        self.lies: dict[str, dict[str, Any]] = {}
        self.sha_lie: str | None = None
        #: (name of the file, first byte asked for, bytes sent) for each download, in the order of their beginnings.
        self.downloads: list[list[Any]] = []
        self.requests = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repo: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Commit `files`; returns the commit."""
        commit = commit_of(repr((repo, sorted(files.items()))))
        repository = self.repositories.setdefault(repo, Repository())
        repository.commits[commit] = files
        repository.branches[branch] = commit
        return commit

    def close(self) -> None:
        if self.stall is not None:
            self.stall.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
        if name.endswith((".safetensors", ".bin")):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
        return {**entry, **self.lies.get(name, {})}

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.requests += 1
                with suppress(ConnectionError):
                    self.answer([unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")])

            def answer(self, parts: list[str]) -> None:
                if parts[:2] == ["api", "models"]:
                    repo, revision = "/".join(parts[2:4]), "/".join(parts[5:]) or "main"
                else:
                    cdn = parts[0] == "cdn"
                    parts = parts[1:] if cdn else parts
                    repo, revision = "/".join(parts[:2]), parts[3] if len(parts) > 3 else ""
                repository = hub.repositories.get(repo)
                if repository is None:
                    return self.refuse(404, "RepoNotFound")
                if repository.gated:
                    return self.refuse(403, "GatedRepo")
                commit = repository.branches.get(revision, revision)
                files = repository.commits.get(commit)
                if files is None:
                    return self.refuse(404, "RevisionNotFound")
                if parts[0] == "api":
                    entries = [hub._entry(name, content) for name, content in files.items()]
                    body = {"id": repo, "sha": hub.sha_lie or commit, "siblings": entries}
                    return self.send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
                name = "/".join(parts[4:])
                if name not in files:
                    return self.refuse(404, "EntryNotFound")
                if name.endswith(".safetensors") and not cdn:
                    return self.send(302, b"", {"Location": f"/cdn/{'/'.join(parts)}"})
                return self.download(name, files[name])

            def download(self, name: str, content: bytes) -> None:
                if name in hub.corrupt:
                    content = bytes([content[0] ^ 1]) + content[1:]
                asked = self.headers.get("Range")
                start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and not hub.ignore_range else 0
                record = [name, start, 0]
                hub.downloads.append(record)
                headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
                cut = hub.cut if name.endswith(".safetensors") else None
                body = content[start:]
                sent = body if cut is None else body[:cut]
                record[2] = len(sent)
                self.send(206 if start else 200, sent, headers, len(body))
                if len(sent) < len(body):
                    if hub.stall is not None:
                        hub.stall.wait(60)
                    self.close_connection = True

            def refuse(self, status: int, code: str) -> None:
                self.send(status, b"{}", {"X-Error-Code": code})

            def send(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()

        return Handler
