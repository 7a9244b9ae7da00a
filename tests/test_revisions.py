"""What names a tree, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.checkpoints import create
from casfs.errors import Conflict, NotFound
from casfs.revisions import resolve_tree
from casfs.store import Store
from tests.support.helpers import ABSENT, write_tree
from tests.support.thread_example import make_thread


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


def test_what_is_no_tree_is_refused(store: Store) -> None:
    node = store.put_node("content", {"text": "a", "artifacts": []}).hash
    with pytest.raises(NotFound, match=r"is a content, not a tree"):
        resolve_tree(store, node)
    with pytest.raises(NotFound, match="not a node"):
        resolve_tree(store, store.put(b"plain").hash)
    with pytest.raises(NotFound, match="neither a hash nor a checkpoint name"):
        resolve_tree(store, "nothing")
    with pytest.raises(NotFound, match=r"see `casfs checkpoint list`"):
        resolve_tree(store, "nothing@latest")
    with pytest.raises(NotFound, match="no blob"):
        resolve_tree(store, ABSENT)
