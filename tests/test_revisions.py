"""What names a tree, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.errors import Conflict, NotFound
from casfs.maintenance import names
from casfs.revisions import resolve_tree
from casfs.store import Store
from engine.workflow import registry as workflows
from tests.support.helpers import ABSENT, put_tree, set_head, write_tree
from tests.support.maintenance import put_checkpoint
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
