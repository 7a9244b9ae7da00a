"""casfs fsck."""

from __future__ import annotations

from pathlib import Path

from casfs.backend.derived import total_stored
from casfs.digest import hash_bytes
from casfs.store.store import Store
from tests.support.cli import LARGE_HASH, lines, value
from tests.support.engine import Cli
from tests.support.helpers import LARGE, write_tree
from tests.support.maintenance import fill, put_checkpoint


def spoil(cli: Cli, hash: str) -> None:
    path = cli.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    path.write_bytes(b"spoilt" + path.read_bytes()[6:])
    path.chmod(0o444)


def test_fsck_of_a_sound_store(cli: Cli, opened: Store) -> None:
    fill(opened)
    total = total_stored(opened.blobs)
    (line,) = lines(cli, "fsck")
    assert line.startswith(f"{total.blobs} blobs, ")
    assert line.endswith(f" {total.bytes} bytes: no faults")
    found = value(cli, "fsck")
    assert (found["faults"], found["repaired"], found["quarantined"]) == ([], [], [])
    assert (found["blobs"], found["bytes"]) == (total.blobs, total.bytes)


def test_fsck_of_a_damaged_store(cli: Cli, opened: Store) -> None:
    head = put_checkpoint(opened, {"f": LARGE})
    spoil(cli, LARGE_HASH)
    output = lines(cli, "fsck", code=1)
    assert output[0] == f"corrupt: blob {LARGE_HASH}: its file does not hash to its name"
    assert output[1:3] == [f"    affects {head}", f"quarantined {LARGE_HASH}"]
    assert output[3].endswith(": 1 fault")
    assert (cli.root / "quarantine" / LARGE_HASH).exists()
    again = value(cli, "fsck", code=1)
    assert [(one["kind"], one["hash"], one["takes"]) for one in again["faults"]] == [
        ("missing", LARGE_HASH, [head])
    ]


def test_fsck_repairs(cli: Cli, opened: Store, tmp_path: Path) -> None:
    put_checkpoint(opened, {"f": LARGE})
    source = write_tree(tmp_path / "source", {"copy": LARGE})
    spoil(cli, LARGE_HASH)
    found = value(cli, "fsck", "--repair-from", source)
    assert (found["repaired"], found["faults"]) == ([LARGE_HASH], [])
    assert found["quarantined"] == [LARGE_HASH]
    spoil(cli, LARGE_HASH)
    output = lines(cli, "fsck", "--repair-from", source)
    assert output[0] == f"repaired {LARGE_HASH}"
    assert output[-1].endswith("no faults")
    assert lines(cli, "fsck")[-1].endswith("no faults")


def test_fsck_repairs_what_it_can(cli: Cli, opened: Store, tmp_path: Path) -> None:
    put_checkpoint(opened, {"f": LARGE, "g": LARGE + b"!"})
    source = write_tree(tmp_path / "source", {"copy": LARGE})
    for hash in (LARGE_HASH, hash_bytes(LARGE + b"!")):
        spoil(cli, hash)
    found = value(cli, "fsck", "--repair-from", source, code=1)
    assert found["repaired"] == [LARGE_HASH]
    assert [one["hash"] for one in found["faults"]] == [hash_bytes(LARGE + b"!")]


def test_fsck_repairs_from_another_store(cli: Cli, there: Cli, opened: Store) -> None:
    put_checkpoint(opened, {"f": LARGE})
    with Store.open(there.root) as store:
        store.put(LARGE)
    spoil(cli, LARGE_HASH)
    assert value(cli, "fsck", "--repair-from", there.root)["repaired"] == [LARGE_HASH]


def test_fsck_from_nowhere(cli: Cli, opened: Store, tmp_path: Path) -> None:
    opened.put(LARGE)
    spoil(cli, LARGE_HASH)
    assert "nowhere" in cli.refused("fsck", "--repair-from", tmp_path / "nowhere", code=3)
    (tmp_path / "file").write_text("x")
    cli.refused("fsck", "--repair-from", tmp_path / "file", code=3)
    assert not (cli.root / "quarantine").exists()


def test_fsck_of_a_database_that_is_none(cli: Cli) -> None:
    for end in ("", "-wal", "-shm"):
        (cli.root / f"store.db{end}").unlink(missing_ok=True)
    (cli.root / "store.db").write_bytes(b"not SQLite " * 1000)
    answer = cli("fsck", code=1)
    assert answer.err.count("\n") == 1
    assert "store.db" in answer.err


def test_fsck_of_a_sample(cli: Cli, opened: Store) -> None:
    with opened.batch() as batch:
        for number in range(2000):
            batch.put(b"%d" % number)
    total = total_stored(opened.blobs).blobs
    assert value(cli, "fsck", "--sample", "100%")["blobs"] == total
    assert total / 20 < value(cli, "fsck", "--sample", "10")["blobs"] < total / 5
    for wrong in ("0", "101%", "some", "nan", ""):
        assert "not a percentage" in cli.refused("fsck", "--sample", wrong, code=2)
