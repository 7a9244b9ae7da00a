"""Blame and log: what the random histories do not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import create, revisions
from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.history import details
from casfs.history.blame import blame, removal
from casfs.history.log import log
from casfs.history.versions import at, find
from casfs.store.store import Store
from tests.history.oracle import start
from tests.support.helpers import put_tree
from tests.support.maintenance import put_checkpoint
from tests.support.thread_example import Example, make_thread

PARENT, CHILD, OTHER = (f"01JD000000000000000000000{one}" for one in "ABC")


def by(store: Store, text: str) -> list[str]:
    return [line.version.revision for line in blame(*find(store, text))]


def step(thread: Example, tree: dict[str, Any], **more: Any) -> None:
    thread.tree = put_tree(thread.store, tree)
    thread.step("planner", "text", **more)


def called(store: Store, tree: dict[str, Any], id: str, parent: str) -> str:
    thread = start(store, id, put_tree(store, {"f": b"one\n"}), parent)
    step(thread, tree)
    return thread.end()


@pytest.fixture
def calls(store: Store) -> Example:
    """A step that calls two threads at once, and puts together what they wrote."""
    thread = start(store, PARENT, put_tree(store, {"f": b"one\n"}))
    ends = [
        called(store, {"f": b"zero\none\n"}, CHILD, thread.start),
        called(store, {"f": b"one\ntwo\n"}, OTHER, thread.start),
    ]
    step(thread, {"f": b"zero\none\ntwo\nthree\n"}, children=ends)
    return thread


def test_threads_that_were_called_at_once(store: Store, calls: Example) -> None:
    expected = [f"{CHILD}@1", f"{PARENT}@0", f"{OTHER}@1", f"{PARENT}@1"]
    assert by(store, f"{PARENT}:f") == expected
    shown = [one.version.revision for one in log(*find(store, f"{PARENT}:f"))]
    assert shown == [f"{PARENT}@1", f"{OTHER}@1", f"{CHILD}@1", f"{PARENT}@0"]
    assert by(store, f"{CHILD}:f") == [f"{CHILD}@1", f"{PARENT}@0"], "from the caller's tree"


def test_a_called_thread_that_was_removed_is_named_by_its_start(
    store: Store, calls: Example
) -> None:
    with store.batch() as batch:
        batch.swap(f"threads/{CHILD}", store.heads.get(f"threads/{CHILD}"), None)  # type: ignore[arg-type]
    named = by(store, f"{PARENT}:f")[0]
    assert named.endswith("@1")
    assert store.expand(named.partition("@")[0])


def test_what_a_called_thread_removed(store: Store) -> None:
    thread = start(store, PARENT, put_tree(store, {"f": b"one\n"}))
    step(thread, {"f": b""}, children=[called(store, {"f": b""}, CHILD, thread.start)])
    step(thread, {})
    place, path = find(store, f"{PARENT}:f")
    assert removal(place, path, b"one").version.revision == f"{CHILD}@1"


def test_a_thread_goes_on_with_the_step_that_has_its_first_tree(store: Store) -> None:
    old = start(store, "0000000000000000000000000A", put_tree(store, {"f": b"one\n"}))
    step(old, {"f": b"one\ntwo\n"})
    new = start(store, CHILD, old.tree)
    new.tree = put_tree(store, {"f": b"one\ntwo\nthree\n"})
    new.step("planner", "text", startedAt=1 << 42)
    assert by(store, f"{CHILD}:f") == [f"{old.id}@0", f"{old.id}@1", f"{CHILD}@1"]
    assert by(store, f"{old.tree}:f") == [f"{old.id}@0", f"{old.id}@1"], "a tree by its hash"


def test_steps_of_the_same_millisecond_do_not_hide_one_another(store: Store) -> None:
    old = start(store, "0000000000000000000000000A", put_tree(store, {"f": b"one\n"}))
    step(old, {"f": b"one\ntwo\n"})
    for number in range(8):
        # It began with that tree, so it has not made it.
        other = start(store, f"0000000000000000000000001{number}", old.tree)
        step(other, {"f": b"one\ntwo\n"})
    assert by(store, f"{old.tree}:f") == [f"{old.id}@0", f"{old.id}@1"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_that_is_removed_meanwhile(store: Store, count: int) -> None:
    for number in range(count):
        name = put_checkpoint(store, {"f": b"%d" % number}, at=number)
    revision = revisions.resolve(store, "work")
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), None)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="was removed meanwhile"):
        at(store, revision)


def test_only_directories_on_the_path_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = make_thread(store)
    other = {"large": {f"f{n}": b"%d" % n for n in range(20)}}
    wanted: set[str] = set()
    for n in range(40):
        tree = {"src": {"a": {"f": b"%d\n" % (n // 10)}, "b": {"g": b"%d" % n}}, "o": other}
        step(thread, tree if n else {**tree, "n": b""})
        a = put_tree(store, tree["src"]["a"])  # type: ignore[index]
        wanted |= {thread.tree, put_tree(store, tree["src"]), a}  # type: ignore[arg-type]
    thread.tree = put_tree(store, {"src": {"a": {"f": b"3\n"}}})
    read: list[str] = []
    many = store.blobs.get_many

    def counted(hashes: Any) -> Any:
        read.extend(hashes := list(hashes))
        return many(hashes)

    monkeypatch.setattr(store.blobs, "get_many", counted)
    monkeypatch.setattr("casfs.trees.tree.load", None)
    place, path = find(store, f"{thread.id}@40:src/a/f")
    place.chain.entries(path)
    place.chain.entries(path)
    nodes = [one for one in read if one not in thread.steps]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) - wanted == {make_start_tree(store, thread)}


def make_start_tree(store: Store, thread: Example) -> TreeHash:
    root: TreeHash = store.node(thread.start).payload["workspace"]
    return root


def session(store: Store, agent: str, calls: Sequence[tuple[str, str]]) -> str:
    """A session with a turn for each call: its tool and arguments."""
    put = store.put_node

    def call(name: str, arguments: str) -> str:
        texts = [put("content", {"text": one, "artifacts": []}).hash for one in (arguments, "")]
        payload = {"name": name, "arguments": texts[0], "result": texts[1], "durationMs": 1}
        return put("react-tool-call", payload).hash

    said = put("content", {"text": "said", "artifacts": []}).hash
    turns = [
        put(
            "react-turn",
            {
                "input": said,
                "output": said,
                "toolCalls": [call(*one)],
                "tokens": {"input": 1, "output": 1},
                "latencyMs": 1,
            },
        ).hash
        for one in calls
    ]
    payload = {"agent": agent, "role": "r", "turns": turns, "totalTokens": 2, "durationMs": 1}
    return put("react-session", payload).hash


def test_the_tool_call_that_wrote_a_line(store: Store) -> None:
    thread = start(store, PARENT, put_tree(store, {}))
    calls = [
        ("write_file", '{"path": "f", "text": "one\\ntwo\\n"}'),
        ("edit_file", '{"path": "f", "old": "two", "new": "2"}'),
    ]
    detail = session(store, thread.agent, calls)
    step(thread, {"f": b"one\n2\nby a shell\n"}, detail=detail)
    rows = list(details.lines(store, blame(*find(store, f"{PARENT}:f"))))
    told = [(row["turn"], row["tool"]) for row in rows]
    assert told == [(1, "write_file"), (2, "edit_file"), (None, None)]
    assert rows[0]["version"]["agent"] == "command"


def test_lines_of_a_first_checkpoint_are_its_own(store: Store, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    create.create(store, "other", tmp_path)
    made = create.create(store, "site", tmp_path).checkpoint
    assert by(store, "site:f") == [f"site@{made.id}"]


def test_a_private_file_is_seen_however_its_path_is_spelled(store: Store) -> None:
    work: dict[str, Any] = {"a": {"f": b"1\n"}}
    put_checkpoint(store, work, local={"a": {"f": b"1\n", ".env": b"KEY=1\n"}})
    for spelled in ("a/.env", "./a/.env", "a//.env", "/a/./.env"):
        position, path = find(store, f"work:{spelled}")
        assert path == b"a/.env"
        assert [line.text for line in blame(position, path)] == [b"KEY=1\n"]


@pytest.fixture
def told(store: Store) -> Callable[..., list[tuple[int | None, str | None]]]:
    """Returns turn and tool of each line of a file that a step with these calls left."""

    def told(data: bytes, *calls: tuple[str, str]) -> list[tuple[int | None, str | None]]:
        thread = start(store, PARENT, put_tree(store, {}))
        step(thread, {"f": data}, detail=session(store, thread.agent, calls))
        rows = details.lines(store, blame(*find(store, f"{PARENT}:f")))
        return [(row["turn"], row["tool"]) for row in rows]

    return told


def test_a_call_wrote_only_whole_lines_of_what_it_was_given(told: Any) -> None:
    wrote = told(
        b"one\n\ntwo\n",
        ("write_file", '{"path": "f", "text": "one\\n\\n2\\n"}'),
        ("edit_file", '{"path": "f", "old": "2", "new": "two"}'),
        ("edit_file", '{"path": "f", "old": "phone", "new": ""}'),
    )
    assert wrote == [(1, "write_file"), (1, "write_file"), (2, "edit_file")]


def test_a_file_without_lines_has_no_call(told: Any) -> None:
    assert told(b"\0", ("write_file", '{"path": "f", "text": "None"}')) == [(None, None)]


def test_a_call_that_is_malformed_hides_none_before_it(told: Any) -> None:
    wrote = told(
        b"one\n",
        ("write_file", '{"path": "f", "text": "one"}'),
        ("write_file", '{"path": "f", '),
        ("run_command", '["no object"]'),
    )
    assert wrote == [(1, "write_file")]
