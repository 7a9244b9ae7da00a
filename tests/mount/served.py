"""A real mount, served by another process: a process that serves itself can deadlock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.mount import unmount
from casfs.store import Store

SERVER = """
import sys
from pathlib import Path
from casfs.mount import serve
from casfs.store import Store

root, where, xattr = sys.argv[1:]
with Store.open(Path(root)) as store:
    serve(
        store, Path(where), xattr=bool(xattr),
        on_ready=lambda: print("ready", flush=True),
        log=lambda event, **fields: print(event, fields, file=sys.stderr, flush=True),
    )
print("over", flush=True)
"""
PATIENCE = 60  # seconds before a process that hangs fails the test


@dataclass
class Mount:
    store: Store
    path: Path
    server: subprocess.Popen[str]

    def requests(self) -> dict[str, int]:
        """How many requests of each kind reached the server so far."""
        report: dict[str, Any] = json.loads((self.path / ".casfs/stats.json").read_text())
        counts: dict[str, int] = report["requests"]
        return counts


@contextmanager
def serving(store: Store, where: Path, *, xattr: bool = False) -> Iterator[Mount]:
    """Mount `store` at `where`; unmounted and its process gone at the end, whatever happens."""
    where.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(store.root), str(where), "yes" if xattr else ""],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "ready\n"
        yield Mount(store, where, server)
    finally:
        if os.path.ismount(where):
            unmount(where, lazy=True)
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise
        finally:
            server.stdout.close()
