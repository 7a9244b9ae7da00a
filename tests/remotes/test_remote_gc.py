"""gc and fsck of a remote: what no ref reaches goes, in two steps, and nothing else."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Corrupt
from casfs.maintenance import fsck
from casfs.maintenance.fsck import Report
from casfs.remotes import gc, push, view
from casfs.remotes.gc import Collected
from casfs.remotes.remote import Settings
from tests.remotes.conftest import Sites
from tests.support.remotes import Site

NOTHING = (0, 0, 0, 0)


def tree(seed: int, files: int = 40) -> Any:
    source = random.Random(seed)
    return {f"f{n}": source.randbytes(source.randint(1, 9000)) for n in range(files)}


def collect(site: Site, *, dry_run: bool = False) -> Collected:
    with site.remote() as remote:
        return gc.collect(remote, dry_run=dry_run)


def counts(done: Collected) -> tuple[int, int, int, int]:
    return len(done.orphaned), len(done.copied), len(done.deleted), len(done.strays)


def check(site: Site, *, read_data: bool = True) -> Report:
    with site.remote() as remote, view.opened(remote, read_data=read_data) as (store, _):
        return fsck.check(store, quarantine=False)


def forget(site: Site, *names: str) -> None:
    with site.remote() as remote:
        assert push.delete(remote, list(names), dry_run=False).refs == sorted(names)


def packs(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "packs").iterdir()}


def age(folder: Path, days: int = 1) -> None:
    """All that is in a directory is older."""
    for path in folder.rglob("*"):
        if path.is_file():
            before = path.stat().st_mtime - timedelta(days=days, minutes=1).total_seconds()
            os.utime(path, (before, before))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def test_packs_that_nothing_reaches_go_after_a_day(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    site = sites(directory)
    kept, gone = site.checkpoint("kept", tree(1)), site.checkpoint("gone", tree(2))
    site.push("kept")
    before = packs(folder)
    site.push("gone")
    assert counts(collect(site)) == NOTHING
    forget(site, gone)
    everything = packs(folder)
    assert counts(collect(site, dry_run=True)) == (2, 0, 0, 0)
    assert counts(collect(site)) == (2, 0, 0, 0)
    assert counts(collect(site)) == NOTHING
    assert packs(folder) == everything
    age(folder)
    assert counts(collect(site, dry_run=True)) == (0, 0, 2, 0)
    assert packs(folder) == everything
    assert counts(collect(site)) == (0, 0, 2, 0)
    assert packs(folder) == before
    assert check(site).faults == []
    other = sites(directory)
    other.pull()
    assert other.contents(kept) == site.contents(kept)


def test_what_is_reached_in_a_pack_of_garbage_is_copied(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    site = sites(directory)
    kept, gone = site.checkpoint("kept", tree(1, 5)), site.checkpoint("gone", tree(2, 60))
    site.push("kept", "gone")
    forget(site, gone)
    done = collect(site)
    assert len(done.copied) >= 1
    age(folder)
    assert sorted(collect(site).deleted) == sorted(done.orphaned)
    assert check(site).faults == []
    other = sites(directory)
    other.pull()
    assert other.contents(kept) == site.contents(kept)


def test_a_push_of_what_was_given_up_uploads_it_again(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    site = sites(directory)
    name = site.checkpoint("t", tree(3))
    site.push("t")
    forget(site, name)
    assert len(collect(site).orphaned) >= 1
    assert site.push("t").packs >= 1
    age(folder)
    collect(site)
    assert check(site).faults == []
    other = sites(directory)
    other.pull()
    assert other.contents(name) == site.contents(name)


def test_strays_go_after_a_week(directory: Settings, sites: Sites, folder: Path) -> None:
    site = sites(directory)
    site.checkpoint("t", tree(3))
    site.push("t")
    stray = folder / "packs" / f"{'ab' * 32}.pack"
    stray.write_bytes(b"left by a push that was interrupted")
    assert counts(collect(site)) == NOTHING
    assert check(site).faults == []
    age(stray.parent, 6)
    assert counts(collect(site)) == NOTHING
    age(stray.parent)
    assert "in no entry" in check(site).faults[0].message
    assert counts(collect(site)) == (0, 0, 0, 1)
    assert not stray.exists()
    assert check(site).faults == []


def test_runs_and_pushes_at_once_lose_nothing(anywhere: Settings, sites: Sites) -> None:
    first = sites(anywhere)
    names = [first.checkpoint(f"t{n}", tree(n, 12)) for n in range(8)]
    first.push("t0", "t1", "t2")
    second = sites(anywhere)

    def push(number: int) -> None:
        first.push(f"t{number}")
        if number % 2:
            forget(first, names[number - 3])

    def run(_: int) -> None:
        collect(second)
        time.sleep(0.01)

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(lambda: [push(n) for n in range(3, 8)])]
        done += [pool.submit(lambda: [run(n) for n in range(4)]) for _ in range(2)]
        for one in done:
            one.result()
    assert check(first).faults == []
    third = sites(anywhere)
    third.pull()
    left = third.heads("checkpoints/")
    assert set(left) == set(names) - {names[0], names[2], names[4]}
    for name in left:
        assert third.contents(name) == first.contents(name)


def test_nothing_is_deleted_where_something_is_missing(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    site = sites(directory)
    name = site.checkpoint("t", tree(4))
    site.push("t")
    (nodes,) = [path for path in (folder / "packs").iterdir() if path.stat().st_size < 20_000]
    data = bytearray(nodes.read_bytes())
    data[60:90] = bytes(30)
    nodes.chmod(0o644)
    nodes.write_bytes(data)
    with pytest.raises(Corrupt, match=r"nothing was deleted: .* run `casfs remote fsck origin`"):
        collect(site)
    assert any(name in fault.takes for fault in check(site).faults)


@pytest.mark.parametrize("read_data", [False, True])
def test_fsck_names_what_is_damaged_and_the_refs(
    directory: Settings, sites: Sites, folder: Path, *, read_data: bool
) -> None:
    site = sites(directory)
    sound, hit = site.checkpoint("sound", tree(5)), site.checkpoint("hit", tree(6))
    site.push("sound")
    before = packs(folder)
    site.push("hit")
    (blobs,) = sorted(
        (folder / "packs" / f"{one}.pack" for one in packs(folder) - before),
        key=lambda path: path.stat().st_size,
    )[-1:]
    data = bytearray(blobs.read_bytes())
    data[5000] ^= 1
    blobs.chmod(0o644)
    blobs.write_bytes(data)
    faults = check(site, read_data=read_data).faults
    assert bool(faults) == read_data
    assert all(fault.takes == [hit] for fault in faults if fault.hash)
    blobs.unlink()
    faults = check(site, read_data=read_data).faults
    assert any(blobs.stem in fault.message for fault in faults)
    assert {name for fault in faults for name in fault.takes} == {hit}
    assert sound in site.refs()


@pytest.mark.parametrize("damage", ["missing", "bytes", "order"])
def test_fsck_reads_the_whole_log(
    directory: Settings, sites: Sites, folder: Path, damage: str
) -> None:
    site = sites(directory)
    for number in range(3):
        site.checkpoint(f"t{number}", tree(number, 3))
        site.push(f"t{number}")
    entry, after = folder / "log" / f"{2:016}", folder / "log" / f"{3:016}"
    if damage == "missing":
        entry.unlink()
    elif damage == "bytes":
        entry.write_bytes(b"x" * 50)
    else:
        entry.write_bytes(after.read_bytes())
    assert any(
        f"log/{2:016}" in fault.message or f"log/{3:016}" in fault.message
        for fault in check(site).faults
    )


def test_a_lazy_store_finds_what_a_gc_has_moved(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    site, lazy = sites(directory), sites(directory)
    kept, gone = site.checkpoint("kept", tree(1, 5)), site.checkpoint("gone", tree(2, 60))
    site.push("kept", "gone")
    lazy.pull(lazy=True)
    forget(site, gone)
    assert collect(site).copied
    age(folder)
    assert collect(site).deleted
    with pytest.raises(Corrupt, match="gone from the remote origin"):
        lazy.contents(kept)
    lazy.pull(lazy=True)
    assert lazy.contents(kept) == site.contents(kept)
