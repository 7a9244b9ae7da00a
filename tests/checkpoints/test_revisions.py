"""What names a tree, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.checkpoints.revisions import resolve, resolve_entry, resolve_tree
from casfs.errors import Conflict, Invalid, NotFound
from casfs.maintenance import names
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.helpers import ABSENT, put_tree, set_head, write_tree
from tests.support.maintenance import put_checkpoint
from tests.support.thread_example import STARTED, make_thread


def test_a_checkpoint_is_named_by_name_id_and_hash(store: Store, tmp_path: Path) -> None:
    made = [
        create.create(store, "work", write_tree(tmp_path / "d", {"f": text})).checkpoint
        for text in (b"one", b"two")
    ]
    old, new = made
    assert old.root != new.root
    for revision in ("work", "work@latest", f"work@{new.id}", new.hash, new.root, new.root[:8]):
        assert resolve_tree(store, revision) == new.root
    assert resolve_tree(store, f"work@{old.id}") == old.root
    with pytest.raises(Conflict, match="is ambiguous"):
        resolve_tree(store, "work@2")


def test_a_step_is_its_workspace(store: Store) -> None:
    thread = make_thread(store)
    assert resolve_tree(store, thread.step("planner", "Planned.")) == thread.tree
    thread.tree = None  # type: ignore[assignment]
    step = thread.step("planner", "Without a workspace.")
    with pytest.raises(NotFound, match="has no workspace"):
        resolve_tree(store, step)


def test_a_thread_is_the_tree_of_a_step(store: Store, tmp_path: Path) -> None:
    thread = make_thread(store, "01JD00000087654ABCDEFGHJKM", name="mend")
    first = thread.tree
    assert resolve_tree(store, "mend") == resolve_tree(store, "mend@0") == first
    trees = [put_tree(store, {"f": b"%d" % n}) for n in range(3)]
    for tree in trees:
        thread.tree = tree
        thread.step("planner", "Planned.")
    for text, tree in {
        thread.id: trees[2],
        "mend": trees[2],
        "abcd": trees[2],
        "mend@2": trees[1],
        "mend~": trees[1],
        "mend@2~1": trees[0],
        "01JD0000~3": first,
        "mend@{now}": trees[2],
        "mend@{1970-01-02}": first,
        "@last": trees[2],
        "@last@1": trees[0],
        "@last~2": trees[0],
    }.items():
        assert resolve_tree(store, text) == tree, text
        found = resolve(store, text).thread
        assert found is not None
        assert found.id == thread.id
    thread.end()
    assert resolve_tree(store, threads.get(store, thread.id).hash) == trees[2]
    for text, said in {"mend@4": "has no step 4", "mend~4": "no step 4 before step 3"}.items():
        with pytest.raises(NotFound, match=said):
            resolve_tree(store, text)
    with pytest.raises(Invalid, match="invalid step 'x'"):
        resolve_tree(store, "mend@x")
    create.create(store, "mend", write_tree(tmp_path / "d", {"f": b"checkpoint"}))
    assert resolve(store, "mend").thread is None, "a checkpoint's name wins"


def test_the_newest_of_all(store: Store) -> None:
    with pytest.raises(NotFound):
        resolve(store, "@last")
    put_checkpoint(store, {"f": b"1"}, at=2 * STARTED)
    assert resolve(store, "@last").checkpoint is not None
    first = make_thread(store, "01JD00000087654ABCDEFGHJKM")
    make_thread(store, "01JD00000187654ABCDEFGHJKM").move(first.head.hash, parent=first.id)
    found = resolve(store, "@last").thread
    assert found is not None
    assert found.id == first.id, "no called one"
    heads = [name for name, _ in names.roots(store, ["@last"], running=True)[1]]
    assert heads[0] == f"threads/{first.id}"
    assert not any(name.startswith("checkpoints/") for name in heads)


def test_a_part_of_several_is_ambiguous(store: Store) -> None:
    id = put_checkpoint(store, {"f": b"1"}).rpartition("/")[2]
    part = id[-8:]
    assert resolve(store, part).checkpoint is not None, "the hash of its node begins so as well"
    make_thread(store, f"01JD00000000000000{part.upper()}")
    with pytest.raises(Conflict, match=f"thread 01JD.*, checkpoint work@{id}; give more"):
        resolve(store, part)


def test_a_path_in_a_tree(store: Store) -> None:
    put_checkpoint(store, {"d": {"e": {"f": b"1"}}, "g:h": {"f": b""}})
    below = put_tree(store, {"e": {"f": b"1"}})
    assert resolve_tree(store, "work:d") == resolve_tree(store, "work@{now}:/d/") == below
    assert resolve_tree(store, "work:d/e") == put_tree(store, {"f": b"1"})
    assert resolve_tree(store, "work:g:h") == put_tree(store, {"f": b""})
    assert resolve_tree(store, "work:") == resolve_tree(store, "work")
    assert resolve(store, "work:d").checkpoint is None, "it is not that checkpoint's tree"
    root, path, entry = resolve_entry(store, "work:d/e/f")
    assert (root, path, type(entry)) == (resolve_tree(store, "work"), b"d/e/f", File)
    with pytest.raises(NotFound, match="work:d/e/f is not a directory"):
        resolve_tree(store, "work:d/e/f")
    with pytest.raises(NotFound, match="not in tree"):
        resolve_tree(store, "work:x")


def test_what_is_no_tree_is_refused(store: Store) -> None:
    node = store.put_node("content", {"text": "a", "artifacts": []}).hash
    with pytest.raises(NotFound, match=r"is a content, not a tree"):
        resolve_tree(store, node)
    with pytest.raises(NotFound, match="not a node"):
        resolve_tree(store, store.put(b"plain").hash)
    with pytest.raises(NotFound, match="neither a hash nor a checkpoint"):
        resolve_tree(store, "nothing")
    with pytest.raises(NotFound, match=r"see `casfs checkpoint list`"):
        resolve_tree(store, "nothing@latest")
    with pytest.raises(NotFound, match="no blob"):
        resolve_tree(store, ABSENT)


def test_the_roots_of_an_export(store: Store) -> None:
    """A checkpoint's name is one also where an id of a thread has these characters."""
    heads = [put_checkpoint(store, {"d": {"f": b"%d" % n}}, "data", at=n) for n in range(2)]
    thread = make_thread(store, "01JD00000087654DATA0000000")
    step = thread.step("planner", "Planned.")
    assert [name for name, _ in names.roots(store, ["data"])[1]] == [heads[1]]
    assert [name for name, _ in names.roots(store, ["data~1"])[1]] == [heads[0]]
    assert names.roots(store, ["data:d"])[0] == [put_tree(store, {"f": b"1"})]
    assert names.roots(store, [f"{thread.id}@1"])[0] == [thread.tree]
    assert names.roots(store, [step])[0] == [step]


def test_a_hash_is_looked_up_before_a_name(store: Store) -> None:
    """A head with the name of a hash, as an archive could bring it, stands for nothing."""
    good, other = (put_tree(store, {"f": text}) for text in (b"good", b"other"))
    head = next(iter(store.heads.list(put_checkpoint(store, {"f": b"other"}))))[1]
    set_head(store, f"checkpoints/{good}/20231114T221300.000Z-{head.hash[:8]}", head.hash)
    set_head(store, f"workflows/{good}", other)
    assert resolve_tree(store, good) == good
    assert checkpoint.find_if_named(store, good) is None
    with pytest.raises(NotFound, match="no checkpoint"):
        checkpoint.find(store, good)
    assert names.roots(store, [good])[0] == [good]
    with pytest.raises(NotFound, match="no workflow"):
        workflows.find(store, good)


def test_a_turn_is_the_tree_that_it_left(store: Store) -> None:
    thread = make_thread(store, name="mend")
    first, second = (put_tree(store, {"f": text}) for text in (b"1", b"2"))
    told = store.put_node("content", {"text": "", "artifacts": []}).hash
    turn = {"input": told, "output": told, "toolCalls": [], "latencyMs": 0}
    turn["tokens"] = {"input": 0, "output": 0}
    trees = [{"workspace": first}, {"workspace": second, "before": first}, {}]
    turns = [store.put_node("react-turn", {**turn, **more}).hash for more in trees]
    intent = {"role": "planner", "index": 1, "attempt": 1, "since": 1, "run": "0" * 32}
    thread.move(thread.head.hash, intent={**intent, "turns": turns, "turnCount": 3})
    for text, root in {"mend@1.1": first, "mend@1.2": second, "mend@1.2~1": first}.items():
        assert resolve_tree(store, text) == root
        assert resolve(store, text).thread is not None
    assert resolve_entry(store, "mend@1.2:f")[2] == resolve_entry(store, f"{second}:f")[2]
    for text, said in {
        "mend@1.3": "turn 3 has no tree",
        "mend@1.4": "no turn 4; it has 3",
        "mend@1.0": "no turn 0",
        "mend@1.1~1": "no turn 0",
        "mend@2.1": "has no step 2",
    }.items():
        with pytest.raises(NotFound, match=said):
            resolve_tree(store, text)
    for text in ("mend@1.", "mend@.1", "mend@1.1.1", "mend@1.x"):
        with pytest.raises(Invalid, match=r"use @3, or @3\.2"):
            resolve_tree(store, text)
