"""Blame through apply: a checkpoint of a directory names the steps whose work it got."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.checkpoints.watch_list import WatchSpec
from casfs.digest import BlobHash, NodeHash
from casfs.history.blame import removal
from casfs.history.log import log
from casfs.history.versions import find
from casfs.maintenance.gc import collect
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import applied_steps
from casfs.trees.restore.apply import apply
from tests.history.oracle import start
from tests.history.test_blame import CHILD, OTHER, PARENT, by, step
from tests.support.following import OwnWatch
from tests.support.helpers import put_tree, write_tree
from tests.support.maintenance import age
from tests.support.thread_example import Example

BASE = b"one\ntwo\nthree\nfour\nfive\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "site", {"f": BASE, "g": b"other\n"})


def made(store: Store, place: Path, name: str = "site") -> str:
    one = create.create(store, name, place).checkpoint
    return f"{one.name}@{one.id}"


def applied(
    store: Store, place: Path, id: str, before: bytes, after: bytes, name: str = "f"
) -> Example:
    """A thread of one step that made `after` of `before`, applied to the directory."""
    old = put_tree(store, {"f": before, "g": b"other\n"})
    thread = start(store, id, old)
    step(thread, {name: after, "g": b"other\n"})
    apply(
        store,
        RecordedState(old),
        RecordedState(thread.tree),
        place,
        label="thread",
        step=thread.steps[-1],
    )
    return thread


def test_lines_of_a_step_whatever_was_edited_beside_it(disk_store: Store, place: Path) -> None:
    first = made(disk_store, place)
    (place / "f").write_bytes(BASE.replace(b"five", b"5"))
    applied(disk_store, place, PARENT, BASE, b"one\n2\nthree\nfour\nfive\n")
    second = made(disk_store, place)
    assert by(disk_store, "site:f") == [first, f"{PARENT}@1", first, first, second]
    (place / "f").write_bytes(b"zero\n" + (place / "f").read_bytes())
    third = made(disk_store, place)
    assert by(disk_store, "site:f") == [third, first, f"{PARENT}@1", first, first, second]
    payload = disk_store.node(checkpoint.find(disk_store, "site").hash).payload
    assert "applied" not in payload, "an earlier checkpoint has it"
    shown = [one.version.revision for one in log(*find(disk_store, "site:f"))]
    assert shown == [third, second, f"{PARENT}@1", first]


def test_two_threads_and_what_one_removed(disk_store: Store, place: Path) -> None:
    first = made(disk_store, place)
    applied(disk_store, place, CHILD, BASE, b"1\ntwo\nthree\nfour\nfive\n")
    applied(disk_store, place, OTHER, BASE, b"one\ntwo\nthree\nfive\nsix\n")
    made(disk_store, place)
    expected = [f"{CHILD}@1", first, first, first, f"{OTHER}@1"]
    assert by(disk_store, "site:f") == expected
    gone = removal(*find(disk_store, "site:f"), b"four")
    assert gone.version.revision == f"{OTHER}@1"


def test_a_rename_with_an_edit(disk_store: Store, place: Path) -> None:
    first = made(disk_store, place)
    applied(disk_store, place, PARENT, BASE, BASE + b"six\n", "h")
    made(disk_store, place)
    assert by(disk_store, "site:h") == [first] * 5 + [f"{PARENT}@1"]


def test_the_first_checkpoint_of_every_name(disk_store: Store, place: Path) -> None:
    """What a person wrote before the thread started is the checkpoint's, and not the thread's."""
    applied(disk_store, place, PARENT, BASE, BASE + b"six\n")
    (place / "f").write_bytes((place / "f").read_bytes() + b"seven\n")
    for name in ("site", "copy"):
        own = made(disk_store, place, name)
        assert by(disk_store, f"{name}:f") == [own] * 5 + [f"{PARENT}@1", own]


def test_an_apply_during_a_look_is_carried_again(
    disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(disk_store, place)
    whole = create.compare

    def late(*arguments: object) -> object:  # the directory was read
        monkeypatch.setattr(create, "compare", whole)
        applied(disk_store, place, PARENT, BASE, BASE + b"six\n")
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(create, "compare", late)
    made(disk_store, place)
    made(disk_store, place)
    assert by(disk_store, "site:f")[-1] == f"{PARENT}@1"


def test_a_watched_directory(disk_store: Store, place: Path) -> None:
    first = made(disk_store, place)
    applied(disk_store, place, PARENT, BASE, BASE + b"six\n")
    watch = OwnWatch(disk_store, WatchSpec(str(place), "site", settle=0.0), fanotify=False)
    try:
        watch.record("site", "", skip=True)
    finally:
        watch.close()
    assert by(disk_store, "site:f") == [first] * 5 + [f"{PARENT}@1"]


def test_the_step_stays_as_long_as_the_checkpoint(disk_store: Store, place: Path) -> None:
    thread = applied(disk_store, place, PARENT, BASE, BASE + b"six\n")
    made(disk_store, place)
    with disk_store.batch() as batch:
        name = f"threads/{PARENT}"
        batch.swap(name, disk_store.heads.get(name), None)  # type: ignore[arg-type]
    age(disk_store)
    collect(disk_store)
    named = by(disk_store, "site:f")[-1]
    assert named == f"{thread.start[:12]}@1"


def test_a_step_that_is_gone_is_left_out(disk_store: Store, place: Path) -> None:
    applied_steps.note(disk_store, place, NodeHash(BlobHash("ab" * 32)))
    own = made(disk_store, place)
    assert by(disk_store, "site:f") == [own] * 5


def test_a_step_that_changed_nothing_is_not_before_a_first_checkpoint(
    disk_store: Store, place: Path
) -> None:
    """The thread may have run in any directory with the same files."""
    tree = put_tree(disk_store, {"f": BASE, "g": b"other\n"})
    step(start(disk_store, PARENT, tree), {"f": BASE, "g": b"other\n"})
    own = made(disk_store, place)
    assert by(disk_store, "site:f") == [own] * 5
