"""A thread whose record is damaged is shown as broken and can be removed; a called thread goes with
its caller's export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casfs.errors import Conflict, Corrupt
from casfs.maintenance import archive, fsck, gc
from casfs.store.store import Store
from casfs.threads import threads
from engine.runtime import stop_thread
from engine.threads import lifecycle, transitions
from tests.support.archives import ID
from tests.support.helpers import set_head
from tests.support.maintenance import SECOND, export, fork, sql
from tests.support.new_store import init_store
from tests.support.thread_example import make_thread

DAMAGE = [
    """record = '{"bad":1}'""",
    "record = 'no json'",
    "record = replace(record, '1700000', '9990000000')",
    "hash = 'text'",
]


@pytest.mark.parametrize("change", DAMAGE)
def test_a_damaged_record(tmp_path: Path, change: str) -> None:
    """Fails before: tracebacks of show and rm, and nothing from fsck."""
    root = tmp_path / "store"
    with init_store(root) as store:
        example = make_thread(store, ID)
        example.end()
        fork(example, SECOND, example.head.hash)
        sql(store, f"UPDATE heads SET {change} WHERE name = 'threads/{ID}'")
        thread = threads.get(store, threads.ThreadId(ID))
        assert thread.status == "broken"
        with pytest.raises(Corrupt, match=r"is broken: .*; `casfs thread rm` removes it"):
            transitions.cancel(store, thread)
        with pytest.raises(Corrupt, match=r"is broken: .*; `casfs thread rm` removes it"):
            stop_thread.request(root, thread.id, "cancel")
        assert [one.takes for one in fsck.check(store).faults] == [[f"threads/{ID}"]]
        for verb in (["list"], ["show", ID], ["list", "--json"], ["show", ID, "--json"]):
            argv = [sys.executable, "-m", "casfs", "--store", str(root), "thread", *verb]
            done = subprocess.run(argv, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
            assert "broken" in done.stdout
        lifecycle.remove(store, thread)
        assert [one.id for one in threads.list_threads(store)] == [SECOND]
        assert not fsck.check(store).faults
        gc.collect(store)


def test_a_running_thread_is_not_removed(store: Store) -> None:
    make_thread(store, ID)
    with pytest.raises(Conflict, match="is running"):
        lifecycle.remove(store, threads.get(store, threads.ThreadId(ID)))


def test_called_threads_go_with_their_caller(tmp_path: Path) -> None:
    with init_store(tmp_path / "a") as store, init_store(tmp_path / "b") as other:
        caller = make_thread(store, ID)
        caller.end()
        head = caller.head
        fork(caller, SECOND, head.hash, parent=ID)
        set_head(store, caller.name, head.hash, **{**head.record, "children": [SECOND]})
        export(store, tmp_path / "a.tar", ID)
        done = archive.load(other, tmp_path / "a.tar")
        assert {f"threads/{ID}", f"threads/{SECOND}"} <= set(done.heads)
        moved = other.heads.get(threads.head_name(threads.ThreadId(SECOND)))
        assert moved is not None
        assert moved.record["parent"] == ID
