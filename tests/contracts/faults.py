"""Fault injection: makes a backend fail where a test orders it.

    faults = Faults(backend)
    faults.arm("stage")            the next stage fails
    faults.arm("publish", 2)       the second publish from now fails, with nothing done
    faults.arm("heads")            the next publish fails after the blobs, before the heads

With nothing armed the backend behaves as before, so it still passes its contracts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from casfs.backend.derived import publish_each
from casfs.backend.protocols import Backend, Staged, Swap
from casfs.errors import Failed


class Faults:
    def __init__(self, backend: Backend) -> None:
        """Wraps the writing methods of `backend`, in place."""
        self._armed: Counter[str] = Counter()
        self._publish = backend.publish
        vars(backend)["publish"] = self._publish_or_fail
        vars(backend)["publish_group"] = partial(publish_each, self._publish_or_fail)
        for name in {"stage", "stage_bytes"} & set(dir(backend.blobs)):
            vars(backend.blobs)[name] = self._guarded(getattr(backend.blobs, name))

    def arm(self, where: str, nth: int = 1) -> None:
        """Orders a failure at the `nth` call from now, and only then."""
        self._armed[where] = nth

    def _reach(self, where: str) -> None:
        if self._armed[where]:
            self._armed[where] -= 1
            if not self._armed[where]:
                raise Failed(f"cannot {where}: a fault was ordered")

    def _guarded(self, real: Callable[..., Staged]) -> Callable[..., Staged]:
        def stage(*arguments: Any) -> Staged:
            self._reach("stage")
            return real(*arguments)

        return stage

    def _publish_or_fail(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        self._reach("publish")
        batch, moves = list(staged), list(swaps)
        if self._armed["heads"] == 1:
            self._publish(batch, (), require, local)
        self._reach("heads")
        return self._publish(batch, moves, require, local)
