"""Runs an action, or replays its cached result.

On a cache hit the outputs are staged first; only when all content could be read are they
moved to their paths, and stdout and stderr replayed. A miss is single-flight: one process at
a time runs an action, the others wait for its lock and then find its result. When that
process dies, the next ends the rest of its command and runs it again.

A result is cached only for exit code 0, complete outputs and an unchanged input (a run that
changes its own input, or during which the input was edited, logs that). A result that cannot
be cached is logged, and never fails the run. On a stored tree (`Request.tree`) failures are cached
as well, and the command may change its input.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import Any, BinaryIO, cast

from casfs.actions import cache as actions
from casfs.actions import outputs
from casfs.actions.cache import Result
from casfs.actions.key import Action, Request, identify
from casfs.actions.miss_reason import changed_input, explain_miss
from casfs.backend.derived import note_use
from casfs.digest import NodeHash, hash_stream
from casfs.errors import CasfsError, Corrupt, Failed, NotFound
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.store import Store
from casfs.system import locks, processes, run_command
from casfs.system.clock import now_ms
from casfs.system.locks import Lock
from casfs.system.run_command import Ended, Sinks
from casfs.trees import recorded_state
from casfs.trees.snapshot import policy
from casfs.trees.snapshot.file_reader import scanned_stream

LogLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`duration_ms`: of the whole run; `saved_ms`: by not running the command; `result` is None
    where nothing is cached."""

    exit_code: int
    hit: bool = False
    timed_out: bool = False
    duration_ms: int = 0
    saved_ms: int = 0
    action: NodeHash | None = None
    result: NodeHash | None = None


@dataclass(frozen=True, slots=True)
class Streams:
    """Receivers of stdout, stderr and lines about the cache."""

    out: BinaryIO
    err: BinaryIO
    log: LogLine


def run(store: Store, request: Request, streams: Streams, *, cached: bool) -> Outcome:
    """Runs or replays a request. Raises NotFound (the program), Failed, Refused (a symlink in the
    way of an output)."""
    if cached and (kind := _secret_in(store, request)):
        streams.log(f"not cached: the command or its environment holds a secret ({kind})")
        cached = False
    if not cached:
        ended = _execute(request, [streams.out], err=[streams.err], lock=Lock())
        return _outcome(ended, action=None, result=None)
    begin = time.monotonic()
    action = identify(store, request)
    for warning in action.warnings:
        streams.log(f"not part of the input: {warning}")
    return _CachedRun(store, request, action=action, streams=streams, begin=begin).run()


def _secret_in(store: Store, request: Request) -> str:
    """Returns the kind of a secret in what an action node would have; empty where there is none."""
    recorded = [*request.argv, *(f"{name}={value}" for name, value in request.env.items())]
    text = "\n".join(recorded).encode("utf-8", "surrogateescape")
    findings = policy.load(store).scanner().scan(text)
    return findings[0].kind if findings else ""


def _execute(request: Request, out: Sinks, err: Sinks, lock: Lock) -> Ended:
    if request.tree and request.prepare:
        request.prepare(request.tree)
    return run_command.run(
        request.argv,
        cwd=request.directory,
        env=request.env,
        timeout=None if request.timeout_ms is None else request.timeout_ms / 1000,
        stdout=out,
        stderr=err,
        started=lambda identity: lock.note(str(identity)),
    )


def _outcome(ended: Ended, action: NodeHash | None, result: NodeHash | None) -> Outcome:
    return Outcome(
        ended.exit_code,
        timed_out=ended.timed_out,
        duration_ms=ended.duration_ms,
        action=action,
        result=result,
    )


@dataclass(frozen=True, slots=True)
class _CachedRun:
    """One run through the cache. `begin`: its start on the monotonic clock."""

    store: Store
    request: Request
    action: Action
    streams: Streams
    begin: float

    def run(self) -> Outcome:
        replayed = self._try_replay()
        if replayed is not None:
            return replayed
        with locks.held(self.store.root, f"action-{self.action.hash}", self._waiting) as lock:
            replayed = self._try_replay()
            if replayed is not None:
                return replayed
            left = processes.Identity.parse(lock.left)
            if left is not None and processes.end(left):
                self._log(f"ended process {left.pid}, left over from a killed run")
            if self.request.tree is None:
                self._log(f"miss {self._name}: {explain_miss(self.store, self.action)}")
            return self._run(lock)

    @property
    def _name(self) -> str:
        return self.action.hash[:12]

    def _log(self, line: str) -> None:
        self.streams.log(line)

    def _waiting(self) -> None:
        self._log(f"waiting for {self._name}, which another process runs")

    # -- a hit --------------------------------------------------------------------------------

    def _try_replay(self) -> Outcome | None:
        """Returns None for a cache miss and for a result that cannot be replayed."""
        result = actions.lookup(self.store, self.action.hash)
        if result is None:
            return None
        try:
            self._replay(result)
        except (Corrupt, NotFound, Failed) as error:
            self._log(f"the result of {self._name} cannot be replayed: {error}")
            return None
        note_use(self.store.heads, [actions.head_name(self.action.hash)])
        took = round((time.monotonic() - self.begin) * 1000)
        saved = max(0, result.duration_ms - took)
        self._log(f"hit {self._name}: {saved / 1000:.2f} s saved")
        return Outcome(
            result.exit_code,
            hit=True,
            duration_ms=took,
            saved_ms=saved,
            action=self.action.hash,
            result=result.hash,
        )

    def _replay(self, result: Result) -> None:
        root = self.request.root
        paths = self.request.outputs
        with (
            self.store.blobs.open(result.stdout) as out,
            self.store.blobs.open(result.stderr) as err,
            outputs.staged(self.store, result.outputs.work, root=root, paths=paths) as staged,
        ):
            staged.move()
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
            most = 125 if self.request.tree else 0  # above: of shells, which found no program
            if 0 <= ended.exit_code <= most and not ended.timed_out:
                try:
                    result = self._record(ended, out, err)
                except CasfsError as error:
                    self._log(f"not cached: {error}")
        return _outcome(ended, self.action.hash, result)

    def _record(self, ended: Ended, out: BinaryIO, err: BinaryIO) -> NodeHash | None:
        """Caches the result of a run; logs why and returns None where it must not be cached."""
        changed = changed_input(self.store, self.action, identify(self.store, self.request))
        if changed:
            self._log(f"not cached: the input changed while it ran: {changed}")
            return None
        scanner = policy.load(self.store).scanner()
        for stream, name in ((out, "stdout"), (err, "stderr")):
            stream.seek(0)
            findings, _ = scanned_stream(cast(FileIO, stream), scanner, hash_stream)
            if findings:
                self._log(f"not cached: its {name} holds a secret ({findings[0]})")
                return None
        with self.store.batch() as batch:
            state = outputs.record(
                self.store, batch, root=self.request.root, paths=self.request.outputs
            )
            missing = outputs.missing(self.store, state.full, self.request.outputs)
            if missing:
                self._log(f"not cached: it did not produce the output {', '.join(missing)}")
                return None
            out.seek(0)
            err.seek(0)
            payload: dict[str, Any] = {
                "action": self.action.hash,
                "exitCode": ended.exit_code,
                "stdout": batch.put_stream(out).hash,
                "stderr": batch.put_stream(err).hash,
                "outputs": state.tree,
                "detail": None,
                "artifacts": [],
                "durationMs": ended.duration_ms,
                "createdAt": now_ms(),
            }
            result = recorded_state.put_node(batch, actions.TYPE, payload=payload, state=state).hash
        retry_on_conflict(lambda: actions.publish(self.store, self.action, result))
        return result
