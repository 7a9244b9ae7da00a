from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.block_maps import BLOCK_BYTES
from casfs.checkpoints import checkpoint
from casfs.checkpoints import create as recording
from casfs.checkpoints.checkpoint import HEADS
from casfs.checkpoints.create import MAX_CHANGED_PATHS
from casfs.digest import Digest
from casfs.errors import Conflict, Failed, Invalid, NotFound, Refused
from casfs.store.store import Store
from tests.support.block_maps import FIRST, changed, is_mapped
from tests.support.helpers import LARGE, Link, Program, blobs, put_tree, read_tree, write_tree
from tests.support.new_store import init_store
from tests.support.restores import restore_tree

TREE = {"a": b"1", "d": {"b": b"2", "big": LARGE}, "e": {}}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "w", TREE)


def create(
    store: Store, work: Path, name: str = "demo", message: str = "", **options: Any
) -> recording.Created:
    choice = recording.CreateOptions(**options)
    return recording.create(store, name, work, message, options=choice)


def test_a_checkpoint_records_the_tree(store: Store, work: Path) -> None:
    before = time.time_ns() // 1_000_000
    made = create(store, work, message="first")
    found = made.checkpoint
    assert found.root == put_tree(store, TREE)
    assert before <= found.created_at <= time.time_ns() // 1_000_000
    assert made.stats == {
        "files": 3,
        "bytes": 2 + len(LARGE),
        "added": 4,
        "modified": 0,
        "deleted": 0,
    }
    assert store.node(found.hash, "checkpoint").payload == {
        "root": found.root,
        "times": checkpoint.recorded(store, found).times,
        "previous": None,
        "name": "demo",
        "createdAt": found.created_at,
        "message": "first",
        "stats": made.stats,
        "changed_files": ["a", "d/b", "d/big", "e"],
    }
    assert checkpoint.listing(store) == [found]


def test_a_large_file_that_changed_a_little_is_stored_as_its_differences(
    disk_store: Store, work: Path, tmp_path: Path
) -> None:
    (work / "large").write_bytes(FIRST)
    (work / "text").write_bytes(b"a line of text\n" * 1_000_000)
    create(disk_store, work)
    versions = [FIRST]
    for number in range(3):
        versions.append(changed(versions[-1], 7 * number, seed=number))
        (work / "large").write_bytes(versions[-1])
        with (work / "text").open("r+b") as file:
            file.write(b"%d more" % number)
        made = create(disk_store, work)
        assert made.new_bytes < 4 * BLOCK_BYTES
        assert is_mapped(disk_store, Digest.of(versions[-1]).hash)
        assert is_mapped(disk_store, Digest.of((work / "text").read_bytes()).hash)
    restore_tree(disk_store, made.checkpoint.root, tmp_path / "out")
    assert (tmp_path / "out/large").read_bytes() == versions[-1]
    assert (tmp_path / "out/text").read_bytes() == (work / "text").read_bytes()
    # A secret in a text is seen in a change, too.
    with (work / "text").open("r+b") as file:
        file.seek(9_000_000)
        file.write(b"\nAKIAQ3EGRPLXZ7VOTN5B and more\n")
    assert b"text" in create(disk_store, work).report.findings
    # What became another file altogether is kept whole.
    (work / "large").write_bytes(FIRST[::-1])
    create(disk_store, work)
    assert not is_mapped(disk_store, Digest.of(FIRST[::-1]).hash)
    assert disk_store.get(Digest.of(FIRST[::-1]).hash) == FIRST[::-1]


def test_an_id_is_utc_time_and_the_hash(store: Store, work: Path) -> None:
    found = create(store, work).checkpoint
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}", found.id)
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(found.created_at // 1000))
    assert found.id == f"{moment}.{found.created_at % 1000:03}Z-{found.hash[:8]}"
    assert store.heads.get(f"{HEADS}demo/{found.id}") is not None


def test_ids_sort_by_age_even_when_the_clock_goes_back(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_790_000_000_000_000_000
    made = []
    for nanoseconds in (now, now, now - 5_000_000_000, now + 999_999):
        monkeypatch.setattr(time, "time_ns", lambda at=nanoseconds: at)
        made.append(create(store, work).checkpoint)
    assert [one.id for one in made] == sorted(one.id for one in made)
    assert len({one.id for one in made}) == 4
    assert checkpoint.listing(store, "demo") == made
    assert checkpoint.latest(store, "demo") == made[-1]


def test_the_second_stores_only_what_changed(disk_store: Store, work: Path) -> None:
    first = create(disk_store, work)
    before = blobs(disk_store)
    (work / "d" / "b").write_bytes(b"changed")
    second = create(disk_store, work)
    new = blobs(disk_store) - before
    root = put_tree(disk_store, {**TREE, "d": {"b": b"changed", "big": LARGE}})
    assert second.checkpoint.root == root
    assert len(new) == 6  # the file, two directories with their times, the checkpoint
    assert second.new_bytes == sum(info.size for info in disk_store.blobs.info(new).values())
    assert second.stats["modified"] == 1
    payload = disk_store.node(second.checkpoint.hash).payload
    assert payload["previous"] == first.checkpoint.hash
    assert payload["changed_files"] == ["d/b"]


def test_when_nothing_changed_only_the_checkpoint_is_new(store: Store, work: Path) -> None:
    create(store, work)
    before = blobs(store)
    second = create(store, work)
    assert blobs(store) - before == {second.checkpoint.hash}
    assert second.stats["added"] == second.stats["modified"] == second.stats["deleted"] == 0


def test_all_kinds_of_change_are_counted(store: Store, work: Path) -> None:
    write_tree(work, {"x": b"", "l": Link(b"1"), "gone": b""})
    create(store, work)
    (work / "x").chmod(0o755)
    (work / "l").unlink()
    (work / "l").symlink_to("2")
    (work / "gone").unlink()
    (work / "e").rmdir()
    (work / "new").mkdir()
    (work / "a").write_bytes(b"one")
    made = create(store, work)
    assert made.stats["added"] == 1
    assert made.stats["modified"] == 3
    assert made.stats["deleted"] == 2
    changed = store.node(made.checkpoint.hash).payload["changed_files"]
    assert changed == ["a", "e", "gone", "l", "new", "x"]


def test_changed_files_are_bounded(store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {f"{n:05}": b"" for n in range(MAX_CHANGED_PATHS + 5)})
    made = create(store, tmp_path / "w")
    changed = store.node(made.checkpoint.hash).payload["changed_files"]
    assert changed == [f"{n:05}" for n in range(MAX_CHANGED_PATHS)]
    assert made.stats["added"] == MAX_CHANGED_PATHS + 5


def test_names_that_are_not_utf8_can_be_recorded(store: Store, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {b"\xff": b"", b"\xfe": b""})
    made = create(store, work)
    assert store.node(made.checkpoint.hash).payload["changed_files"] == ["\ufffd", "\ufffd"]


def test_derived_directories_are_left_out(store: Store, work: Path) -> None:
    write_tree(work, {"__pycache__": {"x": b""}, "build": b"a file"})
    with_defaults = create(store, work).checkpoint.root
    assert with_defaults == put_tree(store, {**TREE, "build": b"a file"})
    everything = create(store, work, defaults=False).checkpoint.root
    assert everything == put_tree(store, {**TREE, "build": b"a file", "__pycache__": {"x": b""}})


def test_a_long_message_fits_into_the_record(store: Store, work: Path) -> None:
    for message in ("\x01" * 5000, "😀" * 5000, '"' * 5000):
        made = create(store, work, message=message)
        assert store.node(made.checkpoint.hash).payload["message"] == message
        assert checkpoint.find(store, "demo").message == message[:500]


# -- nothing half-made --------------------------------------------------------------------


def test_what_cannot_be_recorded_leaves_no_head(store: Store, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"a": b"1", "z": {"f": b""}})
    (work / ".casfsignore").mkdir()
    with pytest.raises(Failed, match="casfsignore"):
        create(store, work)
    with pytest.raises(NotFound, match="missing"):
        create(store, tmp_path / "missing")
    with pytest.raises(Invalid, match=r"\$\.message"):
        create(store, tmp_path, message="\udcff")
    assert list(store.heads.list(HEADS)) == []


CHILD = """
import os, sys, warnings
from pathlib import Path
from casfs.api.checkpoints import Checkpoints
from casfs.checkpoints import create
from casfs.store.store import Store
from casfs.trees import tree
Store.memory().close()  # the imports: another user may not read the program
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store = Store.memory()
created = create.create(store, "demo", Path(sys.argv[1]))
print(created.report.unreadable)
print([name for name, _ in tree.walk(store, created.checkpoint.root)])
with warnings.catch_warnings(record=True) as caught:
    Checkpoints(store).create("again", sys.argv[1])
    print(caught[0].message)
Checkpoints(store).create("again", sys.argv[1], warn=print)
"""


def test_an_unreadable_file_is_left_out_and_named(runtime_dir: Path) -> None:
    runtime_dir.chmod(0o755)
    work = write_tree(runtime_dir / "w", {"a": b"1", "secret": b"2", "z": b"3"})
    (work / "secret").chmod(0)
    project = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", CHILD, work]
    env = {**os.environ, "XDG_CONFIG_HOME": str(runtime_dir / "none")}  # readable by another user
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, env=env, check=True)
    named = "cannot read secret: Permission denied; it is left out\n"
    assert done.stdout == ("{b'secret': 'Permission denied'}\n[b'a', b'z']\n" + named + named)


# -- names and finding --------------------------------------------------------------------

GOOD = ["a", "A", "9", "a.b", "a-b", "a_b", "x" * 64, "plugin", "latest2", "ab" * 31]
BAD = [
    "",
    ".a",
    "-a",
    "_a",
    "a/b",
    "a b",
    "a@b",
    "é",
    "a\n",
    "x" * 65,
    "plugins",
    "latest",
    "ab" * 32,
    "\udcff",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_is_accepted(name: str) -> None:
    checkpoint.check_name(name)


@pytest.mark.parametrize("name", BAD)
def test_a_name_is_refused(store: Store, work: Path, name: str) -> None:
    with pytest.raises(Invalid, match="invalid checkpoint name"):
        create(store, work, name)
    assert list(store.heads.list(HEADS)) == []


def test_names_and_listing(store: Store, work: Path) -> None:
    made = {name: [create(store, work, name).checkpoint for _ in range(2)] for name in ("b", "a")}
    other = create(store, work, "ab").checkpoint
    assert checkpoint.names(store) == ["a", "ab", "b"]
    assert checkpoint.listing(store) == [*made["a"], other, *made["b"]]
    assert checkpoint.listing(store, "a") == made["a"]
    assert checkpoint.listing(store, "none") == []
    assert checkpoint.latest(store, "none") is None


def test_find(store: Store, work: Path) -> None:
    first, second = (create(store, work, message=text).checkpoint for text in "12")
    assert checkpoint.find(store, "demo") == second
    assert checkpoint.find(store, "demo@latest") == second
    for one in (first, second):
        assert checkpoint.find(store, f"demo@{one.id}") == one
        assert checkpoint.find(store, f"demo@{one.id[:-1]}") == one
    with pytest.raises(Conflict, match="ambiguous"):
        checkpoint.find(store, f"demo@{first.id[:4]}")


@pytest.mark.parametrize(
    "text", ["none", "", "demo@1999", "dem", "demo/x", "@", "\udcff", "demo@\udcff"]
)
def test_what_is_not_there_is_not_found(disk_store: Store, work: Path, text: str) -> None:
    create(disk_store, work)
    with pytest.raises(NotFound):
        checkpoint.find(disk_store, text)


def test_restore(store: Store, work: Path, tmp_path: Path) -> None:
    (work / "a").chmod(0o755)
    first = create(store, work).checkpoint
    (work / "a").write_bytes(b"later")
    create(store, work)
    assert checkpoint.find(store, f"demo@{first.id}") == first
    restore_tree(store, first.root, tmp_path / "old")
    assert read_tree(tmp_path / "old")[b"a"] == Program(b"1")
    newest = checkpoint.find(store, "demo").root
    restore_tree(store, newest, tmp_path / "new")
    assert read_tree(tmp_path / "new") == read_tree(work)
    write_tree(tmp_path / "unknown", {"a": b"of a person"})
    with pytest.raises(Refused):
        restore_tree(store, newest, tmp_path / "unknown")


def test_the_store_is_left_out_and_named(tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"f": b"1", "d": {"g": b"2"}})
    with init_store(work / "d/store") as store:
        for _ in range(2):
            made = create(store, work)
            assert made.checkpoint.root == put_tree(store, {"f": b"1", "d": {"g": b"2"}})
            assert made.report.warnings == [f"{work}/d/store: left out, it is the store"]
        with pytest.raises(Refused, match="is the store itself"):
            create(store, work / "d/store")
