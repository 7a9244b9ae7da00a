"""Put-if-absent under faults: in thousands of tries through a bad network, exactly one of the
writers of a key wins, and what it wrote is what stands there."""

from __future__ import annotations

import random
from functools import partial
from threading import Barrier, Lock

import pytest

from casfs.errors import Unreachable
from casfs.object_storage import retrying
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from casfs.object_storage.retrying import parallel
from tests.support.fault_proxy import (
    Cut,
    Delayed,
    Dropped,
    Fault,
    FaultProxy,
    Lost,
    Request,
    Status,
)
from tests.support.s3_servers import S3Server

KEYS, WRITERS, AT_ONCE = 400, 3, 3
FAULTS: list[Fault | None] = [
    Lost(),
    Lost(),
    Dropped(),
    Cut(0),
    Cut(5),
    Status(500),
    Status(409, error="ConditionalRequestConflict"),
    Delayed(0.005),
]
HEALTHY: list[Fault | None] = [None] * len(FAULTS)  # half of the requests pass


class Network:
    """Faults by a seeded generator; most requests of a key meet one."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), Lock()
        self.made = 0

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            fault = self._random.choice(FAULTS + HEALTHY)
            self.made += fault is not None
        return fault


def race(storage: ObjectStorage, number: int) -> list[str]:
    """What each writer of a key was answered: won, lost, or that it cannot be known."""
    start = Barrier(WRITERS)

    def write(writer: int) -> str:
        start.wait(60)
        try:
            won = storage.put_if_absent(f"log/{number}", f"entry of {writer}".encode())
        except Unreachable:
            return "unknown"
        return "won" if won else "lost"

    return list(parallel([partial(write, writer) for writer in range(WRITERS)], WRITERS))


@pytest.mark.parametrize("patience_s", [60, 0.002])
def test_one_writer_wins_whatever_the_network_does(
    s3: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE_S", 0.0002)
    monkeypatch.setattr(retrying, "MAX_PAUSE_S", 0.005)
    storage = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=patience_s)
    direct = open_storage(storage.url, endpoint=s3.endpoint)
    proxy.rule = network = Network(seed=7)
    races = [partial(race, storage, number) for number in range(KEYS)]
    outcomes = list(parallel(races, AT_ONCE))
    proxy.reset()
    assert network.made > KEYS
    known = 0
    for number, found in enumerate(outcomes):
        stored = direct.head(f"log/{number}") and direct.get(f"log/{number}").decode()
        owner = found[int(stored[-1])] if stored else None
        assert found.count("won") <= 1, (number, found, stored)
        if "won" in found:
            assert owner == "won", (number, found, stored)
        else:  # only a writer that was given up may have written
            assert owner in ("unknown", None), (number, found, stored)
            assert "unknown" in found
        known += "unknown" not in found
    assert known == KEYS if patience_s > 1 else 0 < known < KEYS
