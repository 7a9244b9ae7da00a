"""Traces the modules that four operations enter, in order, for docs/architecture.md.

    python -m tests.support.journeys NAME STORE SOURCE

prints them, a line each. A process of its own, since trio keeps idle worker threads of earlier
runs, which no profiler set later reaches. Calls in other processes (a command agent, a rule worker)
are not traced. SOURCE is a directory that holds a file `small`; STORE is made.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio

from casfs.checkpoints import create
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system.log import silent
from casfs.threads.threads import ENDED
from engine.moderator.evaluator_pool import WorkerPool
from engine.runtime.run_services import RunServices
from engine.runtime.supervisor import Supervisor
from tests.fuse.kernel.test_server import LINUX_6_12, Kernel, init
from tests.support.engine import ONE, begin, says
from tests.support.maintenance import age

ROOT = Path(__file__).resolve().parents[2]
PREFIXES = tuple(f"{ROOT}{os.sep}{top}{os.sep}" for top in ("casfs", "engine"))


@contextmanager
def tracing() -> Iterator[list[str]]:
    """The list grows by a module's name whenever a call enters a module."""
    entered: list[str] = []
    last: dict[int, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        if code.co_filename.startswith(PREFIXES):
            file = Path(code.co_filename).relative_to(ROOT).with_suffix("")
            name = ".".join(file.parts).removesuffix(".__init__")
            if last.get(threading.get_ident()) != name:
                last[threading.get_ident()] = name
                entered.append(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def checkpoint(store: Store, source: Path) -> list[str]:
    with tracing() as entered:
        create.create(store, "app", source)
    return entered


def read(store: Store, source: Path) -> list[str]:
    """LOOKUP of a small file in a checkpoint, then READ."""
    root = create.create(store, "app", source).checkpoint.root
    with tracing() as entered:
        kernel = Kernel(store)
        try:
            kernel.ask("init", 0, init(LINUX_6_12))
            top = kernel.lookup(f"trees/{root}")
            entered.clear()
            error, found = kernel.ask("lookup", top, b"small\0")
            assert error == 0
            assert kernel.read(int.from_bytes(found[:8], sys.byteorder)) == b"small"
            seen = entered.copy()
        finally:
            kernel.close()
    return seen


def step(store: Store, source: Path) -> list[str]:
    """A thread of one step by a command agent, as the daemon runs it."""
    tree = create.create(store, "app", source).checkpoint.root
    thread = begin(store, ONE, {"a": says({})}, tree)

    async def run() -> None:
        async with WorkerPool(silent) as pool, trio.open_nursery() as nursery:
            supervisor = Supervisor(RunServices(store, evaluator=pool), dict(os.environ), 1)
            supervisor.nursery = nursery
            supervisor.launch(thread.id)
            assert (await supervisor.wait(thread.id)).status == ENDED

    with tracing() as entered:
        trio.run(run)
    return entered


def collection(store: Store, source: Path) -> list[str]:
    create.create(store, "app", source)
    with store.batch() as batch:
        batch.put(b"unreferenced" * 1000)
        batch.commit()
    age(store)
    with tracing() as entered:
        assert gc.collect(store).freed.blobs == 1
    return entered


JOURNEYS: dict[str, Callable[[Store, Path], list[str]]] = {
    "read": read,
    "checkpoint": checkpoint,
    "step": step,
    "gc": collection,
}

if __name__ == "__main__":
    with Store.init(Path(sys.argv[2])) as made:
        print(*JOURNEYS[sys.argv[1]](made, Path(sys.argv[3])), sep="\n")
