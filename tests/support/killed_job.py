"""Jobs in processes of their own, which may kill themselves in the middle.

`python killed_job.py JSON` is one job.  Without an argument, each line of standard input is one: it runs in a fork of
this process, which has all modules loaded already, so that a test can kill some hundred of them.

The JSON has the arguments of `tokenize_files`, `size` for parts and batches of so many bytes, and `kill_at`: at the
how-manieth call that changes what is on the disk (fsync, link, rename, unlink, write of tokens) the process gets
`signal`, SIGKILL where none is given, which ends it at once.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet

from gpt2fast.corpus import batches, documents, series, tokenize_files

# The first table loads pandas where that is installed; here it is once for all forks.
pa.table({"column": []})


def run(arguments: dict[str, Any]) -> list[int]:
    """Run a job, and tell how much it did, and in how many changes of the disk."""
    size, kill_at = arguments.pop("size"), arguments.pop("kill_at", None)
    sent = arguments.pop("signal", signal.SIGKILL)
    calls = 0

    def counted(call):
        def wrapper(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), sent)
            return call(*args, **kwargs)

        return wrapper

    class File(io.FileIO):
        def write(self, content):
            """Half of it, where this is the end."""
            if calls + 1 == kill_at:
                super().write(content[: len(content) // 2])
            return counted(super().write)(content)

    # What a killed process has written is there, synchronised or not; so the disk, which is slow, is not waited for.
    os.fsync = counted(os.fstat)
    for name in ("replace", "unlink", "truncate"):
        setattr(os, name, counted(getattr(os, name)))
    with (
        mock.patch.object(series.io, "FileIO", File),
        mock.patch.object(documents, "PART_BYTES", size),
        mock.patch.object(documents, "BATCH_BYTES", size),
        mock.patch.object(documents, "HASHED_BYTES", 0),
        mock.patch.object(batches, "BATCH_BYTES", size),
    ):
        summary = tokenize_files(**arguments, checkpoint_seconds=0)
    return [summary.documents, summary.tokens, summary.skipped, summary.text_bytes, calls]


def fork(arguments: dict[str, Any]) -> None:
    """Run a job in a fork: print its process, and when that has ended its status and what it reported."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        with os.fdopen(writing, "w") as report:
            try:
                report.write(json.dumps(run(arguments)))
                status = 0
            except BaseException:
                report.write(json.dumps(traceback.format_exc()))
        os._exit(status)
    os.close(writing)
    print(process, flush=True)
    with os.fdopen(reading) as report:
        said = report.read()
    _, status = os.waitpid(process, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), json.loads(said) if said else None]), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started to ignore it
    if len(sys.argv) > 1:
        print(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        for line in sys.stdin:
            fork(json.loads(line))
