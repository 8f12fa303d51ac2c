"""A job in a process of its own, which may kill itself in the middle: `python killed_job.py JSON`.

The JSON has the arguments of `tokenize_files`, `size` for parts and batches of so many bytes, and `kill_at`: at the
how-manieth call that changes what is on the disk (fsync, rename, unlink, write of tokens) the process ends at once.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from unittest import mock

from gpt2fast.corpus import batches, documents, series, tokenize_files


def main() -> None:
    arguments = json.loads(sys.argv[1])
    size, kill_at = arguments.pop("size"), arguments.pop("kill_at", None)
    calls = 0

    def counted(call):
        def wrapper(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    class File(io.FileIO):
        def write(self, content):
            """Half of it, where this is the end."""
            if calls + 1 == kill_at:
                super().write(content[: len(content) // 2])
            return counted(super().write)(content)

    for name in ("fsync", "replace", "unlink", "truncate"):
        setattr(os, name, counted(getattr(os, name)))
    with (
        mock.patch.object(series.io, "FileIO", File),
        mock.patch.object(documents, "PART_BYTES", size),
        mock.patch.object(documents, "BATCH_BYTES", size),
        mock.patch.object(documents, "HASHED_BYTES", 0),
        mock.patch.object(batches, "BATCH_BYTES", size),
    ):
        print("ready", flush=True)
        summary = tokenize_files(**arguments, checkpoint_seconds=0)
    print(json.dumps([summary.documents, summary.tokens, summary.skipped, summary.text_bytes, calls]))


if __name__ == "__main__":
    main()
