"""Kill writers, gcs and the database under a shared store: does gc ever delete what a head needs?

    python tests/harness/gc_shared.py --minutes 10 [--seed N] [--writers 3]

Writers and two gcs, each with a machine's directory of its own, are killed at random instants, and
so are connections of PostgreSQL (SIGKILL, after which it recovers, without unlogged tables) and all
of it. gc runs with a grace of a second or none, objects stay for some seconds. After each round, on
a machine with an empty cache and on one that has cached since the start,

- every acknowledged head stands, and all that a head reaches is read and verified;
- fsck finds no fault: each row has its bytes, each object a row.

In the end all is collected: what is stored are the closures of the heads, and each object is a pack
of theirs. Exit 1 on any loss, with the seed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.backend.postgres import gc as shared_gc
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import targets
from casfs.errors import Conflict, NotFound, Unreachable
from casfs.maintenance import fsck, gc
from casfs.store import graph, write_batch
from casfs.store.store import Store
from tests.harness.crash_store import FORK, Account, report
from tests.harness.crash_writers import Setup, Writer, put
from tests.support.links import Link
from tests.support.postgres_server import PostgresServer, run_postgres
from tests.support.s3_servers import CREDENTIALS, S3Server, run_seaweedfs

GCS = 2
ROUND_S, PAUSE_S = 60.0, 4.0  # between two kills: up to
PACK_GRACE_S, TTL_S = 6, 4
SPARED = 0.7  # share of the kills of a gc that are left out
PASSING = (Conflict, NotFound, Unreachable)  # NotFound: the grace is shorter than writers need


class Harness:
    def __init__(
        self, folder: Path, postgres: PostgresServer, url: str, objects: Link, seed: int
    ) -> None:
        self.folder, self.postgres, self.url, self.objects = folder, postgres, url, objects
        self.random = random.Random(seed)
        self.account = Account()
        self.kills: Counter[str] = Counter()
        self.losses: list[str] = []
        self.rounds = 0

    def run(self, s3: S3Server, seconds: float, writers: int) -> None:
        end = time.monotonic() + seconds
        self._apart(lambda: Store.init_shared(self._root("old"), self.url, s3.url(), s3.endpoint))
        kinds = ["writer"] * writers + ["gc"] * GCS
        for slot in range(len(kinds)):
            self._apart(partial(join, self._root(f"m{slot}"), self.url))
        while time.monotonic() < end and not self.losses:
            self._round(kinds, min(end, time.monotonic() + ROUND_S))
        if not self.losses:
            self._apart(partial(clean, self._root("old")))

    def _round(self, kinds: list[str], end: float) -> None:
        self.rounds += 1
        running = [self._begin(slot, kind) for slot, kind in enumerate(kinds)]
        while time.monotonic() < end:
            time.sleep(self.random.uniform(0, PAUSE_S))
            what = self.random.randrange(len(kinds) + 3)
            if what < len(kinds) and kinds[what] == "gc" and self.random.random() < SPARED:
                continue  # a run takes as long as some kills of others
            if what < len(kinds):
                self._kill(running[what], kinds[what])
                running[what] = self._begin(what, kinds[what])
            elif what == len(kinds):
                self._kill_connection()
            elif what == len(kinds) + 1:
                self._break_objects()
            elif self.random.random() < 0.3:
                self.kills["server"] += 1
                self.postgres.kill()
                time.sleep(self.random.uniform(0, 1))
                self.postgres.start()
        for process, kind in zip(running, kinds, strict=True):
            self._kill(process, kind)
        self.account.read(self.folder / "acks", loses=True)
        self.losses += self.account.losses
        for machine in (f"new{self.rounds}", "old"):
            self._apart(partial(verify, self._root(machine), self.url, self.account))
        shutil.rmtree(self._root(f"new{self.rounds}"), ignore_errors=True)

    def _root(self, machine: str) -> Path:
        return self.folder / machine

    def _begin(self, slot: int, kind: str) -> BaseProcess:
        setup = Setup(self._root(f"m{slot}"), self.folder, self.folder / "acks", (0, 1))
        values = setup, slot, self.random.getrandbits(64)
        process = FORK.Process(target=write if kind == "writer" else collect, args=values)
        process.start()
        return process

    def _kill(self, process: BaseProcess, kind: str) -> None:
        process.kill()
        process.join()
        self.kills[kind] += process.exitcode == -signal.SIGKILL

    def _kill_connection(self) -> None:
        with suppress(Exception):  # none is there, or the server is recovering
            found = self.postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'casfs'"
            )
            os.kill(int(str(self.random.choice(found)[0])), signal.SIGKILL)
            self.kills["connection"] += 1

    def _break_objects(self) -> None:
        """Ends the connections to object storage, or has one of its next answers lost."""
        self.kills["connection to objects"] += 1
        if self.random.random() < 0.5:
            self.objects.reset()
        else:
            self.objects.lose(self.random.randint(1, 5))

    def _await(self) -> None:
        """Waits until the server has recovered."""
        self.postgres.start()
        while True:
            with suppress(Exception):
                self.postgres.execute("SELECT 1")
                return
            time.sleep(0.1)

    def _apart(self, action: Callable[[], object]) -> None:
        """In a process of its own, since the S3 client is not to be open in a fork."""
        self._await()
        said = self.folder / "report"
        process = FORK.Process(target=report, args=(action, said))
        process.start()
        process.join()
        if process.exitcode != 0:
            self.losses.append(said.read_text() if said.exists() else f"exit {process.exitcode}")


# -- in processes of their own ----------------------------------------------------------------


def join(root: Path, url: str) -> None:
    Store.init_shared(root, url).close()


def write(setup: Setup, slot: int, seed: int) -> None:
    writer = Writer(setup, slot, seed)
    write_batch.PUBLISH_BATCH_BLOBS = writer.random.choice((4, 4096))
    _forever(writer, "writer", put)


def collect(setup: Setup, slot: int, seed: int) -> None:
    writer = Writer(setup, slot, seed)
    shared_gc.TTL_S, shared_gc.PACK_GRACE_S = TTL_S, PACK_GRACE_S

    def runs(writer: Writer, store: Store) -> object:
        while True:
            yield lambda: _collect(writer, store)

    _forever(writer, "gc", runs)


def _collect(writer: Writer, store: Store) -> None:
    found = gc.collect(store, grace=writer.random.choice(writer.setup.grace))
    with (writer.setup.work / "freed").open("a") as file:
        file.write(f"{found.freed.blobs}\n")


def _forever(writer: Writer, kind: str, actions: Callable[..., object]) -> None:
    try:
        with suppress(*PASSING), Store.open(writer.setup.root) as store:
            for action in actions(writer, store):  # type: ignore[attr-defined]
                try:
                    action()
                except PASSING as error:
                    with (writer.setup.work / "passing").open("a") as file:
                        file.write(f"{kind} {type(error).__name__} {str(error)[:60]}\n")
                    time.sleep(writer.random.uniform(0, 0.3))
    except BaseException:
        writer.ack(error=f"{kind}: {traceback.format_exc()}")
        raise


def verify(root: Path, url: str, account: Account) -> None:
    with Store.init_shared(root, url) as store:
        heads = dict(store.heads.list())
        for name, hash in account.heads.items():
            if name not in account.dropped:
                assert name in heads, f"the head {name} was acknowledged and is not there"
                assert heads[name].hash == hash, f"the head {name} was moved by no writer"
        for hash in graph.walk(store, [hash for head in heads.values() for hash in targets(head)]):
            store.get(hash)
        found = fsck.check(store, quarantine=False)
        assert not found.faults, found.faults


def clean(root: Path) -> None:
    """Collects all that no head reaches: nothing else is left, and nothing else is lost."""
    with Store.open(root) as store:
        assert isinstance(store.backend, PostgresBackend)
        time.sleep(shared_gc.TTL_S if shared_gc.TTL_S < 10 else TTL_S)  # a dead gc's lease
        real = time.time
        time.time = lambda: real() + 10
        shared_gc.PACK_GRACE_S = 2
        heads = dict(store.heads.list())
        reached = set(
            graph.walk(store, [hash for head in heads.values() for hash in targets(head)])
        )
        for _ in range(2):
            gc.collect(store, grace=0)
            time.sleep(3)
        gc.collect(store, grace=0)
        assert {hash for _, hash, _ in store.blobs.iterate()} == reached
        run = store.backend.pool.run
        assert run("SELECT * FROM casfs.strays") == [], "strays are left"
        packs = {f"packs/{name.hex()}.pack" for (name,) in run("SELECT name FROM casfs.packs")}
        assert {key for key, _ in store.backend._storage().list("packs/")} == packs
        found = fsck.check(store)
        assert not found.faults, found.faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill writers and gcs of a shared store.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--writers", type=int, default=3)
    wanted = parser.parse_args()
    os.environ.update(CREDENTIALS)
    folder = Path(tempfile.mkdtemp(prefix="casfs-gc-"))
    began = time.monotonic()
    with ExitStack() as stack:
        postgres = stack.enter_context(run_postgres())
        s3 = stack.enter_context(run_seaweedfs(folder))
        url = postgres.url()
        port = urlsplit(s3.endpoint).port or 80
        link = stack.enter_context(Link("127.0.0.1", port))
        s3 = S3Server(s3.name, f"http://{link.host}:{link.port}")
        harness = Harness(folder, postgres, url, link, wanted.seed)
        harness.run(s3, 60 * wanted.minutes, wanted.writers)
    for loss in harness.losses:
        print(loss)
    (folder / "freed").touch()
    freed = [int(one) for one in (folder / "freed").read_text().split()]
    kills = ", ".join(f"{count} of a {what}" for what, count in sorted(harness.kills.items()))
    print(
        f"kills: {kills}; rounds {harness.rounds}; acknowledged {harness.account.acked};"
        f" gc runs {len(freed)}, blobs freed {sum(freed)}; losses {len(harness.losses)};"
        f" {time.monotonic() - began:.0f} s, seed {wanted.seed}"
    )
    shutil.rmtree(folder)
    return 1 if harness.losses else 0


if __name__ == "__main__":
    sys.exit(main())
