"""Run an action, or replay what it left behind when it ran before.

On a hit the outputs are written beside their places first; only when all of it could be
read do they take their places and is stdout and stderr replayed. On a miss one process at
a time runs an action: the others wait for its lock, and then find its result. When the one
that runs it dies, the next ends what is left of its command and runs it itself.

Recorded is only what a later hit may stand for: exit code 0, every output there, and an
input that is still what it was (a run that changes its own input, or one during which
somebody edited it, says so). That nothing could be recorded is told, and never fails a run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from casfs.actions import cache as actions
from casfs.actions import nearest, outputs
from casfs.actions.cache import Action, Request, Result
from casfs.backend.derived import note_use
from casfs.errors import CasfsError, Corrupt, Failed, NotFound
from casfs.store import Store
from casfs.system import locks, processes, run_command
from casfs.system.clock import now_ms
from casfs.system.locks import Lock
from casfs.system.run_command import Ended, Sinks
from casfs.write_batch import retry_on_conflict

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `run` did. `duration_ms`: of all of it; `saved_ms`: by not running the command.
    `result` is None where nothing is cached."""

    exit_code: int
    hit: bool = False
    timed_out: bool = False
    duration_ms: int = 0
    saved_ms: int = 0
    action: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Streams:
    """Where stdout and stderr go, and what is to be told about the cache."""

    out: BinaryIO
    err: BinaryIO
    tell: Tell


def run(store: Store, request: Request, streams: Streams, *, cached: bool) -> Outcome:
    """Do what is asked for. Raises NotFound (no such program), Failed, Refused (a symlink is
    in the way of an output)."""
    if not cached:
        ended = _execute(request, [streams.out], [streams.err], Lock())
        return _outcome(ended, None, None)
    begin = time.monotonic()
    action = actions.identify(store, request)
    for warning in action.warnings:
        streams.tell(f"not part of the input: {warning}")
    return _Cached(store, request, action, streams, begin).run()


def _execute(request: Request, out: Sinks, err: Sinks, lock: Lock) -> Ended:
    return run_command.run(
        request.argv,
        cwd=request.directory,
        env=request.env,
        timeout=None if request.timeout_ms is None else request.timeout_ms / 1000,
        stdout=out,
        stderr=err,
        started=lambda identity: lock.note(str(identity)),
    )


def _outcome(ended: Ended, action: str | None, result: str | None) -> Outcome:
    return Outcome(
        ended.exit_code,
        timed_out=ended.timed_out,
        duration_ms=ended.duration_ms,
        action=action,
        result=result,
    )


@dataclass(frozen=True, slots=True)
class _Cached:
    """One run through the cache. `begin`: when it began."""

    store: Store
    request: Request
    action: Action
    streams: Streams
    begin: float

    def run(self) -> Outcome:
        found = self._replayed()
        if found is not None:
            return found
        with locks.held(self.store.root, f"action-{self.action.hash}", self._waiting) as lock:
            found = self._replayed()
            if found is not None:
                return found
            left = processes.Identity.parse(lock.left)
            if left is not None and processes.end(left):
                self._tell(f"ended process {left.pid}, left over by a run that was killed")
            self._tell(f"miss {self._name}: {nearest.explain(self.store, self.action)}")
            return self._run(lock)

    @property
    def _name(self) -> str:
        return self.action.hash[:12]

    def _tell(self, line: str) -> None:
        self.streams.tell(line)

    def _waiting(self) -> None:
        self._tell(f"waiting for {self._name}, which another process runs")

    # -- a hit --------------------------------------------------------------------------------

    def _replayed(self) -> Outcome | None:
        """None where there is nothing to replay, or it cannot be: the command must run then."""
        result = actions.lookup(self.store, self.action.hash)
        if result is None:
            return None
        try:
            self._replay(result)
        except (Corrupt, NotFound, Failed) as error:
            self._tell(f"the result of {self._name} cannot be replayed: {error}")
            return None
        note_use(self.store.heads, [actions.HEADS + self.action.hash])
        took = round((time.monotonic() - self.begin) * 1000)
        saved = max(0, result.duration_ms - took)
        self._tell(f"hit {self._name}: {saved / 1000:.2f} s saved")
        return Outcome(
            result.exit_code,
            hit=True,
            duration_ms=took,
            saved_ms=saved,
            action=self.action.hash,
            result=result.hash,
        )

    def _replay(self, result: Result) -> None:
        root, paths = self.request.root, self.request.outputs
        with (
            self.store.blobs.open(result.stdout) as out,
            self.store.blobs.open(result.stderr) as err,
            outputs.prepared(self.store, result.outputs, root, paths) as ready,
        ):
            ready.place()
            for source, sink in ((out, self.streams.out), (err, self.streams.err)):
                shutil.copyfileobj(source, sink)
                sink.flush()

    # -- a miss -------------------------------------------------------------------------------

    def _run(self, lock: Lock) -> Outcome:
        outputs.make_parents(self.request.root, self.request.outputs)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sinks = [self.streams.out, out], [self.streams.err, err]
            ended = _execute(self.request, *sinks, lock)
            result = None
            if ended.exit_code == 0 and not ended.timed_out:
                try:
                    result = self._record(ended, out, err)
                except CasfsError as error:
                    self._tell(f"not cached: {error}")
        return _outcome(ended, self.action.hash, result)

    def _record(self, ended: Ended, out: BinaryIO, err: BinaryIO) -> str | None:
        """Keep what a run left behind; None where that may not be, and why not is told."""
        changed = nearest.changed(self.store, self.action, self._now())
        if changed:
            self._tell(f"not cached: the input changed while it ran: {changed}")
            return None
        with self.store.batch() as batch:
            tree = outputs.take(batch, self.request.root, self.request.outputs).hash
            batch.commit()
            missing = outputs.missing(self.store, tree, self.request.outputs)
            if missing:
                self._tell(f"not cached: it did not make the output {', '.join(missing)}")
                return None
            out.seek(0)
            err.seek(0)
            payload = {
                "action": self.action.hash,
                "exitCode": ended.exit_code,
                "stdout": batch.put_stream(out).hash,
                "stderr": batch.put_stream(err).hash,
                "outputs": tree,
                "detail": None,
                "artifacts": [],
                "durationMs": ended.duration_ms,
                "createdAt": now_ms(),
            }
            result = batch.put_node("action-result", payload).hash
        retry_on_conflict(lambda: actions.publish(self.store, self.action, result))
        return result

    def _now(self) -> Action:
        return actions.identify(self.store, self.request)
