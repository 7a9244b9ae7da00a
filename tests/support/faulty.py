"""A backend with faults to order: wraps another and fails where a test arms it.

    backend.arm("stage")            the next stage fails
    backend.arm("publish", 2)       the second publish from now fails, with nothing done
    backend.arm("heads")            the next publish fails after the blobs, before the heads

Nothing armed, it does what the other does: it passes the same contracts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, BinaryIO

from casfs.backend.protocols import Backend, Staged, Swap
from casfs.digest import Digest
from casfs.errors import Failed


class FaultyBackend:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self._armed: Counter[str] = Counter()
        self.blobs: Any = FaultyBlobs(self)

    def arm(self, where: str, nth: int = 1) -> None:
        """Fail at the `nth` time from now, and only then."""
        self._armed[where] = nth

    def reach(self, where: str) -> None:
        """Raises Failed when that was ordered."""
        if self._armed[where]:
            self._armed[where] -= 1
            if not self._armed[where]:
                raise Failed(f"cannot {where}: a fault was ordered")

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> set[str]:
        self.reach("publish")
        batch, moves = list(staged), list(swaps)
        if self._armed["heads"] == 1:
            self._real.publish(batch, (), require)
        self.reach("heads")
        return self._real.publish(batch, moves, require)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FaultyBlobs:
    def __init__(self, backend: FaultyBackend) -> None:
        self._backend = backend
        self._real = backend._real.blobs

    def stage(self, source: BinaryIO) -> Staged:
        self._backend.reach("stage")
        return self._real.stage(source)

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        self._backend.reach("stage")
        return self._real.stage_bytes(digest, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
