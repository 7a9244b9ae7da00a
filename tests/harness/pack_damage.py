"""Damage packs at random places, read, and count what is wrong.

    python tests/harness/pack_damage.py --reads 100000 [--seed N]

A store has its blobs in hot and cold packs, a large one among them, and a larger one of which a
second version is stored as its differences. Again and again some bytes of a pack, or of a file
that others have blocks of, are changed (in a frame, between frames, in the index, in the trailer),
zeroed as a hole is, or cut off. Then blobs are read in every way, by the process that has the pack
open and by a new backend. Each read must give the right bytes or an error. Then the file is as it
was. Exit 1 on any wrong byte.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.backend.disk import DiskBackend
from casfs.errors import CasfsError
from casfs.store.store import Store
from tests.support.block_maps import FIRST, changed, put_change
from tests.support.packs import contents, files, freeze, packs, put_all

READS_OF_A_DAMAGE = 100
LARGE_BYTES = 2_500_000
LARGE_SHARE = 0.03  # of the reads, of the four largest blobs


class Harness:
    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.right = self.refused = self.wrong = 0
        self.store = Store.init(root)
        blobs = [*contents(300, 3000), *contents(20, 70_000, seed=1), os.urandom(LARGE_BYTES)]
        put_all(self.store, blobs)
        freeze(self.store)
        blobs += (hot := contents(300, 3000, seed=2))
        put_all(self.store, hot, "held/2")
        assert len(packs(self.store, "hot")) == len(packs(self.store, "cold")) == 1
        base = self.store.put(FIRST).hash
        for number in range(2):
            base = put_change(self.store, changed(self.store.get(base), 3, 40 + number), base)
        names = [hash for _, hash, info in self.store.blobs.iterate() if info.type is None]
        self.content = {hash: self.store.get(hash) for hash in names}
        self.names = sorted(names, key=lambda hash: len(self.content[hash]))

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.store.close()

    def run(self, reads: int) -> None:
        while self.right + self.refused + self.wrong < reads:
            path = self.random.choice([*packs(self.store), *files(self.store)])
            whole = path.read_bytes()
            self._damage(path, whole)
            backend = self.store.backend
            assert isinstance(backend, DiskBackend)
            assert self.store.root
            if self.random.random() < 0.5:
                backend = DiskBackend(self.store.root)
            for _ in range(READS_OF_A_DAMAGE):
                self._read(backend)
            if backend is not self.store.backend:
                backend.close()
            os.truncate(path, len(whole))
            path.write_bytes(whole)

    def _damage(self, path: Path, whole: bytes) -> None:
        path.chmod(0o644)
        size, kind = len(whole), self.random.randrange(5)
        at = self.random.randrange(size - 60_000 if kind < 3 else size - 20_000, size)
        at = self.random.randrange(size) if kind < 2 else at
        count = min(self.random.choice((1, 8, 4096, 300_000)), size - at)
        with path.open("r+b") as file:
            if kind == 4:
                file.truncate(at)
            else:
                file.seek(at)
                file.write(bytes(count) if kind == 1 else self.random.randbytes(count))

    def _read(self, backend: DiskBackend) -> None:
        blobs = backend.blobs
        hash = self.names[int(self.random.triangular(0, len(self.names), 0))]
        if self.random.random() < LARGE_SHARE:
            hash = self.random.choice(self.names[-4:])
        size = len(self.content[hash])

        def opened() -> bytes:
            with blobs.open(hash) as source:
                return source.read()

        ways: list[Callable[[], bytes | None]] = [
            lambda: blobs.get(hash).data,
            lambda: blobs.get_sized(hash, size),
            lambda: next(blobs.get_many([hash])),
        ]
        if size != LARGE_BYTES:  # else it would be a file again
            ways.append(opened)
        try:
            data = self.random.choice(ways)()
        except CasfsError:
            self.refused += 1
        else:
            if data in (None, self.content[hash]):
                self.right += 1
            else:
                self.wrong += 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Damage packs and count wrong bytes.")
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="casfs-damage-"))
    began = time.monotonic()
    with Harness(folder / "store", wanted.seed) as harness:
        harness.run(wanted.reads)
    shutil.rmtree(folder)
    print(
        f"right {harness.right}, refused {harness.refused}, wrong {harness.wrong},"
        f" {time.monotonic() - began:.1f} s, seed {wanted.seed}"
    )
    return 1 if harness.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
