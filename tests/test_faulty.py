"""What a fault leaves behind: nothing that can be seen, and nothing in the way of the next try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import Backend, Head
from casfs.checkpoints import checkpoint, create
from casfs.errors import Failed
from casfs.maintenance import fsck
from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.store.write_batch import PUBLISH_BATCH_BLOBS
from tests.contracts import blobs_contract, heads_contract, journal_contract
from tests.contracts.contract import Check
from tests.contracts.faults import Faults
from tests.support.helpers import LARGE, blobs, private_files, write_tree


def disk(root: Path) -> Backend:
    root.mkdir()
    DiskBackend.create(root)
    return DiskBackend(root)


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "disk": disk,
}
Make = Callable[[], Backend]


@pytest.fixture(params=BACKENDS)
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Backend] = []

    def make() -> Backend:
        made.append(BACKENDS[request.param](tmp_path / f"backend-{len(made)}"))
        Faults(made[-1])
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.mark.parametrize(
    "check",
    [*blobs_contract.CONTRACT, *heads_contract.CONTRACT, *journal_contract.CONTRACT],
    ids=lambda check: check.__name__,
)
def test_the_contracts_hold_where_no_fault_is_armed(check: Check, make_backend: Make) -> None:
    check(make_backend)


@pytest.fixture
def backend(make_backend: Make) -> Backend:
    return make_backend()


@pytest.fixture
def faults(backend: Backend) -> Faults:
    return Faults(backend)


@pytest.fixture
def faulty(backend: Backend, tmp_path: Path) -> Store:
    store = Store(backend, tmp_path / "backend-0")
    store.register_builtin()
    return store


def seen(store: Store) -> tuple[set[str], list[tuple[str, Head]]]:
    return blobs(store), list(store.heads.list())


def build(store: Store) -> None:
    """Blobs of both sizes, nodes and a head, in one batch."""
    with store.batch() as batch:
        parts = [batch.put(b"%d" % n).hash for n in range(5)] + [batch.put(LARGE).hash]
        node = batch.put_node("content", {"text": "t", "artifacts": parts})
        batch.swap("name", store.heads.get("name"), Head(node.hash, {"n": 1}))


@pytest.mark.parametrize(("where", "nth"), [("stage", 1), ("stage", 6), ("publish", 1)])
def test_a_fault_before_anything_is_published_leaves_nothing(
    where: str, nth: int, faulty: Store, faults: Faults, tmp_path: Path
) -> None:
    before = seen(faulty)
    faults.arm(where, nth)
    with pytest.raises(Failed, match=where):
        build(faulty)
    assert seen(faulty) == before
    assert private_files(tmp_path / "backend-0") == []
    build(faulty)
    assert faulty.heads.get("name") is not None
    assert fsck.check(faulty).faults == []


def test_a_fault_between_blobs_and_heads_leaves_garbage_and_no_head(
    faulty: Store, faults: Faults
) -> None:
    before, heads = seen(faulty)
    faults.arm("heads")
    with pytest.raises(Failed):
        build(faulty)
    assert list(faulty.heads.list()) == heads
    assert blobs(faulty) > before
    assert fsck.check(faulty).faults == []
    build(faulty)
    assert len([*walk(faulty, [faulty.heads.get("name").hash])]) > 7


@pytest.mark.parametrize(("where", "nth"), [("publish", 1), ("publish", 2), ("heads", 2)])
def test_a_batch_that_fails_in_a_later_part_moves_no_head(
    where: str, nth: int, faulty: Store, faults: Faults
) -> None:
    heads = list(faulty.heads.list())

    def fill() -> None:
        with faulty.batch() as batch:
            last = [batch.put(b"%d" % n) for n in range(PUBLISH_BATCH_BLOBS + 10)][-1]
            batch.swap("name", None, Head(last.hash))

    faults.arm(where, nth)
    with pytest.raises(Failed):
        fill()
    assert list(faulty.heads.list()) == heads
    assert fsck.check(faulty).faults == []
    fill()
    assert faulty.heads.get("name") is not None


@pytest.mark.parametrize(
    ("where", "nth"), [("stage", 1), ("publish", 1), ("publish", 2), ("heads", 2)]
)
def test_a_checkpoint_that_fails_is_not_there(
    where: str, nth: int, faulty: Store, faults: Faults, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "tree", {"a": b"1", "b": LARGE, "c": {"d": b"2"}})
    create.create(faulty, "name", folder)
    before = checkpoint.listing(faulty)
    (folder / "a").write_bytes(LARGE * 2)
    (folder / "c" / "d").write_bytes(b"new")
    faults.arm(where, nth)
    with pytest.raises(Failed):
        create.create(faulty, "name", folder)
    assert checkpoint.listing(faulty) == before
    assert fsck.check(faulty).faults == []
    assert create.create(faulty, "name", folder).stats["modified"] == 2
