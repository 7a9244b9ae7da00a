"""fsck and repair over packs: damage costs the members of its frame alone, each is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.digest import Digest
from casfs.errors import CorruptBlob
from casfs.maintenance import fsck, repair
from casfs.packs.reader import open_pack
from casfs.store.store import Store
from tests.harness.pack_damage import Harness
from tests.support.helpers import put_tree
from tests.support.maintenance import put_checkpoint, reopened, sql
from tests.support.new_store import init_store
from tests.support.packs import (
    backend,
    check_readable,
    contents,
    damage,
    files,
    freeze,
    packs,
    put_all,
)


@pytest.fixture(params=["hot", "cold"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def blobs(disk_store: Store, kind: str) -> list[bytes]:
    found = contents()
    put_all(disk_store, found)
    if kind == "cold":
        freeze(disk_store)
    return found


def frame_of(path: Path, hash: str) -> tuple[int, set[str]]:
    """Where the frame of a member is, and all members of it."""
    index = open_pack(path).index
    members = [index.member(number) for number in range(index.members)]
    (place,) = {one.frame for one in members if one.hash == hash}
    return index.frame(place).offset, {one.hash for one in members if one.frame == place}


def test_a_damaged_frame_costs_its_members_alone(
    disk_store: Store, kind: str, blobs: list[bytes], tmp_path: Path
) -> None:
    store, victim = disk_store, Digest.of(blobs[50]).hash
    head = put_checkpoint(store, {"dir": {"file": blobs[50]}})
    (path,) = packs(store)
    offset, lost = frame_of(path, victim)
    assert len(lost) == 1 if kind == "hot" else 10 < len(lost) < len(blobs)
    damage(path, offset)
    with reopened(store) as other, pytest.raises(CorruptBlob, match="frame"):
        other.get(victim)
    check_readable(store, [one for one in blobs if Digest.of(one).hash not in lost])
    report = fsck.check(store)
    assert {one.hash for one in report.faults} == lost
    assert {one.kind for one in report.faults} == {"corrupt"}
    assert set(report.quarantined) == lost
    takes = {one.hash: set(one.takes) for one in report.faults}
    assert takes[victim] == {"held/1", head}
    assert all(heads == {"held/1"} for hash, heads in takes.items() if hash != victim)
    assert store.root
    if kind == "hot":
        kept = (store.root / "quarantine" / victim).read_bytes()
        assert len(kept) == len(blobs[50])
    with init_store(tmp_path / "backup") as backup:
        put_all(backup, blobs)
        freeze(backup)
    report, restored = repair.repair_all(
        store, report, tmp_path / "backup", lambda: fsck.check(store)
    )
    assert (set(restored), report.faults) == (lost, [])
    check_readable(store, blobs)


def test_put_again(disk_store: Store, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    damage(path, frame_of(path, Digest.of(blobs[0]).hash)[0])
    assert fsck.check(disk_store).quarantined
    put_all(disk_store, blobs)
    assert fsck.check(disk_store).faults == []
    check_readable(disk_store, blobs)


@pytest.mark.parametrize("how", ["index", "trailer", "short", "gone", "another"])
def test_a_pack_that_cannot_be_opened(
    disk_store: Store, kind: str, blobs: list[bytes], how: str
) -> None:
    (path,) = packs(disk_store)
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
    elif how == "short":
        os.truncate(path, size // 2)
    elif how == "another":
        put_all(disk_store, contents(seed=7), "held/2")
        other = packs(disk_store)[1]
        path.unlink()
        path.write_bytes(other.read_bytes())
        path.chmod(0o444)
    else:
        damage(path, size - (20 if how == "trailer" else 500))
    with reopened(disk_store) as opened:
        report = fsck.check(opened)
        lost = {Digest.of(one).hash for one in blobs}
        assert {one.hash for one in report.faults if one.hash} == lost
        (store_fault,) = (one for one in report.faults if not one.hash)
        assert store_fault.message.startswith(f"packs/{path.name}: ")
        assert set(report.quarantined) == lost
        put_all(opened, blobs)
        check_readable(opened, blobs)


def test_files_that_do_not_belong_there(disk_store: Store, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    path.chmod(0o644)
    (path.parent / "notes.txt").write_text("x")
    (path.parent / f"{'0f' * 32}.pack").mkdir()
    lines = [one.message for one in fsck.check(disk_store).faults]
    assert lines == [
        f"packs/{'0f' * 32}.pack: not a regular file",
        f"packs/{path.name}: its mode is 644, must be 444",
        "packs/notes.txt: not the name of a pack; a foreign file, or damage",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_users_pack(disk_store: Store, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    os.chown(path, 1234, 1234)
    (fault,) = fsck.check(disk_store).faults
    assert fault.message == f"packs/{path.name}: it belongs to the user 1234, who can change it"


def test_a_row_that_names_another_member(disk_store: Store, blobs: list[bytes]) -> None:
    key = bytes.fromhex(Digest.of(blobs[0]).hash)
    sql(disk_store, "UPDATE blobs SET member = member + 1 WHERE hash = ?", key)
    (fault,) = fsck.check(disk_store).faults
    assert (fault.kind, fault.hash) == ("corrupt", key.hex())
    assert "its row names member" in fault.message


def test_a_damaged_large_blob(disk_store: Store) -> None:
    data = os.urandom(3_000_000)
    hash = disk_store.put(data).hash
    put_tree(disk_store, {"f": data})
    freeze(disk_store)
    (path,) = packs(disk_store)
    damage(path, 2_000_000)
    with pytest.raises(CorruptBlob):
        disk_store.blobs.open(hash)
    assert files(disk_store) == []
    (fault,) = fsck.check(disk_store).faults
    assert (fault.kind, fault.hash) == ("corrupt", hash)


def test_no_wrong_bytes(tmp_path: Path) -> None:
    """A short run of the harness. The long one: `python tests/harness/pack_damage.py`."""
    with Harness(tmp_path / "store", seed=1) as harness:
        harness.run(2000)
    assert harness.wrong == 0
    assert harness.refused > 0
    assert harness.right > 0


def test_the_harness_sees_wrong_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from casfs.packs.reader import PackReader

    monkeypatch.setattr(
        PackReader, "read", lambda self, number: b"".join(self.pieces(number)), raising=True
    )
    with Harness(tmp_path / "store", seed=1) as harness:
        harness.run(2000)
    assert harness.wrong > 0
    assert backend(harness.store).packs
