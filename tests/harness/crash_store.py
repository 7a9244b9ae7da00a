"""Kill writers at random instants and look whether the store kept its word.

    python tests/harness/crash_store.py --kills 500 [--seed N] [--minutes M]

A generation is one store, first made by an `init` that is killed a few times. A round lets
eight writers (`crash_writers`) loose on it, kills them one after the other at random
instants and starts new ones, and in the end kills all. Then a fresh process checks that

- opening the store sweeps what the dead left in `tmp/`;
- fsck finds nothing, so every digest verifies and every ref and head leads somewhere;
- the closure of every head is complete;
- every acknowledged head stands, every acknowledged step is in its thread's chain;
- of each batch whose commit shared a transaction with those of other threads, all is there, or
  nothing where it was not acknowledged;
- every acknowledged blob is there, unless a gc with a short grace has run since;
- nothing that was acknowledged as purged can be read, though other writers put it again;
- a file in `objects/` without a row is not served, and not taken for the content either.

One writer packs and warms; gc rewrites packs and punches holes into them.

A generation ends with a gc of all that no head reaches; what is left are the heads'
closures and nothing else, and no purged text is in any file of the store. Exit 1 on any loss, with
the seed; the store is kept then.
Writers are forked, so a new one writes within milliseconds and the kills fall on writes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.backend.derived import repairable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.digest import Digest
from casfs.errors import NotFound, Purged
from casfs.maintenance import fsck, gc
from casfs.store import graph, tombstones
from casfs.store.store import Store
from casfs.threads import threads
from tests.harness.crash_writers import KINDS, Setup, Writer
from tests.support.packs import backend

FORK = multiprocessing.get_context("fork")
SLOTS = ("put", "checkpoint", "thread", "group", "tier", "purge", "versions", "put")
GRACES = ((), (0, 1, 2), (3600,))  # of a round's gc; () is none
ROUNDS = 4  # a generation
KILLS = 10  # a round, besides those at its end
LONGEST = 0.25  # seconds between two kills
PLANTED = b"planted " * 500


@dataclass
class Account:
    """What must be stored, as acknowledged to the writers."""

    blobs: set[str] = field(default_factory=set)
    heads: dict[str, str] = field(default_factory=dict)
    steps: dict[str, set[str]] = field(default_factory=dict)
    batches: dict[str, set[str]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)
    acked: int = 0

    def read(self, acks: Path, *, loses: bool) -> None:
        """Take in what was acknowledged in a round. `loses`: its gc took what no head held."""
        if loses:
            self.blobs.clear()
        for line in acks.read_text().splitlines() if acks.exists() else ():
            self._take(json.loads(line), loses)
        acks.unlink(missing_ok=True)

    def _take(self, said: dict[str, Any], loses: bool) -> None:
        self.acked += "drop" not in said and "batch" not in said
        if "error" in said:
            self.losses.append(said["error"])
        elif "purged" in said:
            self.purged |= set(said["purged"])
            self.texts |= {said["text"]} - {""}
        elif "drop" in said:
            self.dropped.add(said["drop"])
        elif "batch" in said:
            self.batches[said["batch"]] = set(said["hashes"])
        elif "head" in said:
            self.heads[said["head"]] = said["hash"]
        elif "step" in said:
            self.steps.setdefault(said["thread"], set()).add(said["step"])
        elif not loses:
            self.blobs.add(said["blob"])


class Harness:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.account = Account()
        self.kills = self.rounds = self.acked = 0
        self.losses: list[str] = []

    def run(self, kills: int, until: float) -> None:
        root = self.folder / "store"
        while self.kills < kills and time.monotonic() < until and not self.losses:
            self.account = Account()
            self._init(root)
            for _ in range(ROUNDS):
                if self.kills < kills and time.monotonic() < until and not self.losses:
                    self._round(root)
            self._apart(lambda: clean(root, self.account.texts))
            self.acked += self.account.acked
            if not self.losses:
                shutil.rmtree(self.folder)
                self.folder.mkdir()

    def _init(self, root: Path) -> None:
        """Make a store while inits are killed; two at a time."""
        for _ in range(2):
            both = [FORK.Process(target=init, args=(root,)) for _ in range(2)]
            for one in both:
                one.start()
            time.sleep(self.random.uniform(0, LONGEST / 2))
            for one in both:
                self._kill(one)
        self._apart(lambda: init(root))

    def _round(self, root: Path) -> None:
        self.rounds += 1
        grace = self.random.choice(GRACES)
        setup = Setup(root, self.folder, self.folder / "acks", grace)
        plant(root)
        writers = [self._writer(setup, slot) for slot in range(len(SLOTS))]
        for _ in range(KILLS):
            time.sleep(self.random.uniform(0, LONGEST))
            slot = self.random.randrange(len(SLOTS))
            self._kill(writers[slot])
            writers[slot] = self._writer(setup, slot)
        time.sleep(self.random.uniform(0, LONGEST))
        for writer in writers:
            self._kill(writer)
        self.account.read(setup.acks, loses=setup.loses)
        self.losses += self.account.losses
        self._apart(lambda: verify(root, self.account))

    def _writer(self, setup: Setup, slot: int) -> multiprocessing.process.BaseProcess:
        """The last slot is gc's in the rounds that have one."""
        kind = "gc" if setup.grace and slot == len(SLOTS) - 1 else SLOTS[slot]
        seed = self.random.getrandbits(64)
        process = FORK.Process(target=write, args=(setup, slot, seed, kind))
        process.start()
        return process

    def _kill(self, process: multiprocessing.process.BaseProcess) -> None:
        process.kill()
        process.join()
        self.kills += process.exitcode == -9

    def _apart(self, action: Callable[[], None]) -> None:
        """Do it in a process of its own, which has nothing in memory of the store."""
        report_file = self.folder / "report"
        process = FORK.Process(target=report, args=(action, report_file))
        process.start()
        process.join()
        if process.exitcode != 0:
            self.losses.append(
                report_file.read_text() if report_file.exists() else f"exit {process.exitcode}"
            )


# -- in processes of their own ----------------------------------------------------------------


def init(root: Path) -> None:
    Store.init(root).close()


def write(setup: Setup, slot: int, seed: int, kind: str) -> None:
    Writer(setup, slot, seed).run(kind)


def report(action: Callable[[], None], report_file: Path) -> None:
    try:
        action()
    except BaseException:
        report_file.write_text(traceback.format_exc())
        sys.exit(1)


def plant(root: Path) -> None:
    """A file as a crash leaves it, or worse: in the place of content that no writer put."""
    hash = Digest.of(PLANTED).hash
    path = root / "objects" / hash[:2] / hash[2:]
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"not " + PLANTED)


def verify(root: Path, account: Account) -> None:
    with Store.open(root) as store:
        _check_swept(root)
        _check_strays(store)
        found = fsck.check(store, quarantine=False)
        assert not found.faults, found.faults
        heads = dict(store.heads.list())
        for _ in graph.walk(
            store, [hash for head in heads.values() for hash in gc.targets(head)], with_local=True
        ):
            pass
        for name, hash in account.heads.items():
            if name not in account.dropped:
                assert name in heads, f"the head {name} was acknowledged and is not there"
                assert heads[name].hash == hash, f"the head {name} was moved by no writer"
        for name, hashes in account.batches.items():
            stored = store.blobs.info(hashes).keys()
            assert stored == (hashes if name in heads else set()), f"half of the batch {name}"
        for id, steps in account.steps.items():
            lost = steps - set(_chain(store, id))
            assert not lost, f"thread {id} was told to have {lost}"
        _check_purged(store, account.purged)
        lost = account.blobs - store.blobs.info(account.blobs).keys()
        assert not lost, f"acknowledged blobs are not there: {lost}"


def _check_purged(store: Store, purged: set[str]) -> None:
    infos = store.blobs.info(purged)
    for hash in purged:
        assert hash in infos, f"the row of the purged {hash} is gone"
        assert infos[hash].purged, f"the purged {hash} came back"
        assert tombstones.get(store, hash), f"the purged {hash} has no tombstone"
        with suppress(Purged):
            assert Digest.of(store.get(hash)).hash != hash, f"the purged {hash} can be read"


def _check_swept(root: Path) -> None:
    """Nothing but what died while it made its directory, which is given a minute."""
    for left in (root / "tmp").iterdir():
        assert left.name.startswith("."), f"tmp/{left.name} was not swept"
        assert all(path.name == "lock" for path in left.iterdir())
        os.utime(left, (0, 0))  # the next open takes it for old


def _check_strays(store: Store) -> None:
    """The planted file is not served; put for real, the content is what it should be."""
    hash = Digest.of(PLANTED).hash
    if not store.blobs.info([hash]):
        for read in (store.blobs.get, store.blobs.open):
            try:
                read(hash)
            except NotFound:
                continue
            raise AssertionError("a file without a row was served")
    store.put(PLANTED)
    assert store.get(hash) == PLANTED
    repairable(store.blobs).quarantine(hash)


def _chain(store: Store, id: str) -> list[str]:
    thread = threads.get(store, id)
    steps = [node.hash for node in threads.backwards(store, thread)]
    return [thread.hash, *steps, str(thread.record["start"])]


def clean(root: Path, texts: Collection[str] = ()) -> None:
    """Collect all that no head reaches: nothing else is lost, and nothing else is left."""
    with Store.open(root) as store:
        gc.collect(store)  # trains dictionaries, which have heads of their own
        before = dict(store.heads.list())
        roots = [hash for head in before.values() for hash in gc.targets(head)]
        reached = set(graph.walk(store, roots, with_local=True))
        for block_map in backend(store).blobs.block_maps(reached).values():
            reached.update(block_map.sources)
        real = time.time
        time.time = lambda: real() + 10  # so that even what was touched just now is old
        gc.collect(store, grace=0)
        assert dict(store.heads.list()) == before
        assert {hash for _, hash, _ in store.blobs.iterate()} == reached
        files = {path.parent.name + path.name for path in (root / "objects").glob("??/*")}
        assert files <= reached, f"files without a row: {files - reached}"
        names = {path.stem for path in (root / "packs").iterdir()}
        assert names == known_packs(root), "packs without a row, or rows without a pack"
        found = fsck.check(store)
        assert not found.faults, found.faults
    assert not [*(root / "tmp").iterdir()]
    _check_erased(root, texts)


def _check_erased(root: Path, texts: Collection[str]) -> None:
    if not texts:
        return
    pattern = re.compile("|".join(texts).encode())
    for path in root.rglob("*"):
        found = pattern.search(path.read_bytes()) if path.is_file() else None
        assert found is None, f"the purged {found and found[0]!r} is in {path}"


def known_packs(root: Path) -> set[str]:
    with closing(sqlite3.connect(root / "store.db")) as db:
        return {name.hex() for (name,) in db.execute("SELECT name FROM packs")}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill writers and look what is lost.")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--minutes", type=float, default=60)
    wanted = parser.parse_args()
    assert set(SLOTS) < KINDS.keys()
    folder = Path(tempfile.mkdtemp(prefix="casfs-crash-"))
    began = time.monotonic()
    harness = Harness(wanted.seed, folder)
    harness.run(wanted.kills, began + 60 * wanted.minutes)
    for loss in harness.losses:
        print(loss)
    print(
        f"kills {harness.kills}, rounds {harness.rounds}, acknowledged {harness.acked},"
        f" losses {len(harness.losses)}, {time.monotonic() - began:.1f} s, seed {wanted.seed}"
    )
    if harness.losses:
        print(f"the store is kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
