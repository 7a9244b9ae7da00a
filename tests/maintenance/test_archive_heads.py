"""What an archive may say of heads: a thread arrives without processes, records fit their nodes.
Each of these was imported before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs.maintenance import archive
from casfs.store.store import Store
from tests.support.archives import ID, members, refused, sealed
from tests.support.helpers import set_head
from tests.support.maintenance import SECOND, export, put_checkpoint
from tests.support.new_store import init_store
from tests.support.thread_example import make_thread

Record = dict[str, Any]
INTENT = {
    "role": "planner",
    "index": 2,
    "attempt": 1,
    "since": 1_700_000_000_000,
    "run": "0" * 32,
    "pid": 4242,
    "pidStart": 17,
    "turns": [],
    "turnCount": 0,
    "calls": [SECOND],
}


@pytest.fixture
def source(tmp_path: Path) -> Store:
    """A suspended thread with a stale process and a call, and a checkpoint."""
    store = init_store(tmp_path / "source")
    thread = make_thread(store, ID)
    thread.step("planner", "one")
    thread.move(thread.head.hash, status="suspended", intent=INTENT, children=[SECOND])
    put_checkpoint(store, {"f": b"good"})
    return store


def forged(path: Path, change: Callable[[str, Record], object]) -> Path:
    """The archive with changed heads, sealed again. `change` may return another name."""
    found = members(path)
    manifest = json.loads(found[0][1])
    for head in manifest["heads"]:
        head["name"] = change(head["name"], head["record"]) or head["name"]
    manifest["heads"].sort(key=lambda head: head["name"])
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return sealed(path.with_name("forged.tar"), [(found[0][0], data), *found[1:]])


def test_a_thread_arrives_without_processes(source: Store, target: Store, tmp_path: Path) -> None:
    """Fails before: `cancel` of it ended whatever its record named."""
    export(source, tmp_path / "a.tar", ID)
    ((name, record),) = [
        (head["name"], head["record"])
        for head in json.loads(members(tmp_path / "a.tar")[0][1])["heads"]
        if head["name"].startswith("threads/")
    ]
    assert [record["intent"][key] for key in ("pid", "pidStart", "run", "calls")] == [
        None,
        None,
        None,
        [],
    ]

    def bystander(name: str, record: Record) -> None:
        if name.startswith("threads/"):
            record.update(intent=INTENT, children=[SECOND], parent=SECOND)

    set_head(target, f"threads/{SECOND}", target.put(b"a local thread").hash)
    archive.load(target, forged(tmp_path / "a.tar", bystander))
    head = target.heads.get(name)
    assert head is not None
    clean = {"pid": None, "pidStart": None, "run": None, "calls": []}
    assert head.record["intent"] == {**INTENT, **clean}
    assert (head.record["children"], head.record["parent"]) == ([], None)
    assert head.record["status"] == "suspended"
    archive.load(target, tmp_path / "forged.tar")  # again: an equal head is no conflict


THREAD_FORGERIES: list[Record] = [
    {"updatedAt": 2**53 - 1},
    {"updatedAt": 9_999_999_999_999},
    {"updatedAt": "now"},
    {"start": "0" * 63},
    {"status": "ended"},
    {"intent": {**INTENT, "pid": 1}},
    {"intent": {**INTENT, "pid": -1}},
    {"intent": {**INTENT, "index": 7}},
    {"intent": {**INTENT, "calls": ["../x"]}},
    {"intent": "yes"},
    {"question": 5},
    {"children": "x"},
    {"parent": "../../x"},
    {"spent": {"tokens": "many"}},
    {"attempts": None},
]


@pytest.mark.parametrize("change", THREAD_FORGERIES)
def test_a_forged_thread(source: Store, target: Store, tmp_path: Path, change: Record) -> None:
    export(source, tmp_path / "a.tar", ID)

    def forge(name: str, record: Record) -> None:
        if name.startswith("threads/"):
            record.update(change)

    refused(target, forged(tmp_path / "a.tar", forge))


def test_a_record_refers_to_nodes_of_the_right_type(
    source: Store, target: Store, tmp_path: Path
) -> None:
    export(source, tmp_path / "a.tar", ID)

    def forge(name: str, record: Record) -> None:
        if name.startswith("threads/"):
            record["question"] = record["start"]

    refused(target, forged(tmp_path / "a.tar", forge), "is a thread-start, not a content")


@pytest.mark.parametrize("field", ["root", "createdAt", "future"])
def test_a_forged_checkpoint(source: Store, target: Store, tmp_path: Path, field: str) -> None:
    other = put_checkpoint(source, {"f": b"other"}, "other")
    export(source, tmp_path / "a.tar", "work", "other")
    head = source.heads.get(other)
    assert head is not None

    def forge(name: str, record: Record) -> None:
        if name.startswith("checkpoints/work/"):
            known = {"root": head.record["root"], "createdAt": 1, "future": 2**53 - 1}
            record["createdAt" if field == "future" else field] = known[field]

    refused(target, forged(tmp_path / "a.tar", forge))


@pytest.mark.parametrize("name", ["plugins", "latest", "HASH", "other"])
def test_a_checkpoint_under_another_name(
    source: Store, target: Store, tmp_path: Path, name: str
) -> None:
    """Fails before: a name that stood for a hash gave another tree."""
    export(source, tmp_path / "a.tar", "work")

    def forge(old: str, record: Record) -> str | None:
        if old.startswith("checkpoints/"):
            return old.replace("work", record["root"] if name == "HASH" else name)
        return None

    refused(target, forged(tmp_path / "a.tar", forge), "its name is not")


def test_a_checkpoint_of_the_year_9999(source: Store, target: Store, tmp_path: Path) -> None:
    export(source, tmp_path / "a.tar", "work")
    refused(
        target,
        forged(
            tmp_path / "a.tar",
            lambda old, _: old.replace("/2023", "/9999") if "checkpoints" in old else None,
        ),
        "its name is not that of its node",
    )
