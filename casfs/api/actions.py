"""The action cache of a store: run a command or replay its result."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from casfs.actions import cache, key, runner
from casfs.api.trees import HostPath, Warn, pass_on
from casfs.api.values import ActionResult
from casfs.store.store import Store
from casfs.trees.scratch_store import ScratchStore

NO_ENV: Mapping[str, str] = {}


class Actions:
    """The cached results of commands. The key of one covers all files below its directory but its
    `outputs`, its arguments, its `env`, the platform and `timeout_s`; it runs without a sandbox."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(
        self,
        argv: Sequence[str],
        directory: HostPath,
        *,
        outputs: Sequence[str] = (),
        env: Mapping[str, str] = NO_ENV,
        timeout_s: float | None = None,
        warn: Warn | None = None,
    ) -> ActionResult:
        """Runs a command in `directory`, or replays its cached result there.

        Cached is a result with exit code 0, all `outputs` and an unchanged input. `env` is the
        whole environment. `warn` gets lines about hits and misses. Raises NotFound, Invalid,
        Failed, Refused.
        """
        request = _request(argv, directory, outputs=outputs, env=env, timeout_s=timeout_s)
        out = io.BytesIO()
        err = io.BytesIO()
        streams = runner.Streams(out, err, lambda line: pass_on([line], warn))
        done = runner.run(self._store, request, streams, cached=True)
        cached_result = None if done.result is None else cache.load(self._store, done.result)
        return ActionResult(
            exit_code=done.exit_code,
            stdout=out.getvalue(),
            stderr=err.getvalue(),
            outputs=None if cached_result is None else cached_result.outputs.tree,
            is_hit=done.hit,
            hash=done.result,
        )

    def lookup(
        self,
        argv: Sequence[str],
        directory: HostPath,
        *,
        outputs: Sequence[str] = (),
        env: Mapping[str, str] = NO_ENV,
        timeout_s: float | None = None,
    ) -> ActionResult | None:
        """Returns the cached result of a command; None for a miss. Nothing is run or restored."""
        request = _request(argv, directory, outputs=outputs, env=env, timeout_s=timeout_s)
        action = key.identify(ScratchStore(self._store), request)
        cached_result = cache.lookup(self._store, action.hash)
        if cached_result is None:
            return None
        return ActionResult(
            exit_code=cached_result.exit_code,
            stdout=self._store.get(cached_result.stdout),
            stderr=self._store.get(cached_result.stderr),
            outputs=cached_result.outputs.tree,
            is_hit=True,
            hash=cached_result.hash,
        )


def _request(
    argv: Sequence[str],
    directory: HostPath,
    outputs: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float | None,
) -> key.Request:
    root = Path(directory)
    return key.request(
        argv,
        directory=root,
        working_directory=root,
        env=env,
        names=env,
        outputs=outputs,
        timeout=timeout_s,
    )
