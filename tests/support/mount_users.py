"""Processes that keep a mount busy, one for each way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

USES: dict[str, Callable[[Path], list[str]]] = {
    "stands in it": lambda where: ["sh", "-c", f"cd '{where}/trees'; echo up; exec sleep 600"],
    "has it open": lambda where: [
        "sh",
        "-c",
        f"exec <'{where}/README.txt'; echo up; exec sleep 600",
    ],
    "has it mapped": lambda where: [
        sys.executable,
        "-c",
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1] + '/README.txt', 0)\n"
        "kept = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n"
        "os.close(fd)\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n",
        str(where),
    ],
}


@contextmanager
def user(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
