"""The daemon's Evaluator: a pool of rule workers, processes that can be killed.

The first worker is started for the first expression, a second one when a decision waited
SPAWN_DELAY_S. Where none of them answers for SPAWN_DELAY_S, another one is started, up to
MAX_WORKERS, so a rule that does not end does not delay other threads; surplus idle workers are
ended. A caller has a worker to itself until it has answered; a worker that did not answer is
ended, whatever the reason: the rule exceeded time or memory, or the thread was cancelled.

Each worker is sent the steps of a thread once. What it has is tracked by identity: if the
thread-start and the last step that it was sent are not the same objects as in the question, it is
sent everything again. It keeps at most WORKER_HISTORY_BYTES, evicted least recently used first;
the thread in question stays, however long it is. A worker that died, or ran out of memory while it
held other threads' steps too, is replaced and asked once more.

Steps are sent STEPS_PER_MESSAGE at a time, so the daemon's loop is never blocked for long.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from casfs.errors import Invalid
from casfs.system.files import os_errors
from casfs.system.log import Log, silent
from engine.moderator import evaluator_messages
from engine.moderator.decision import DecisionInput
from engine.processes import subprocesses

WORKER_MEMORY_BYTES = 512 << 20  # address space
EXPRESSION_CPU_S = 1.0
ANSWER_TIMEOUT_S = 20.0  # wall time
SPAWN_DELAY_S = 0.02  # how long a decision waits before it may start another worker
STARTUP_ALLOWANCE_S = 0.1  # until a new worker can answer
MAX_WORKERS = 8
MAX_IDLE_WORKERS = 2
WORKER_HISTORY_BYTES = 64 << 20  # steps that a worker keeps, as encoded
STEPS_PER_MESSAGE = 64


class _WorkerFailed(Exception):
    """The worker ended instead of answering. `final`: a retry would end the same way."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


@dataclass
class _SentHistory:
    """The part of a thread's steps that a worker was sent."""

    start: Mapping[str, Any]
    count: int = 0
    last: Mapping[str, Any] | None = None
    size: int = 0

    def is_prefix_of(self, context: DecisionInput) -> bool:
        same = self.start is context.start and self.count <= len(context.steps)
        return same and (not self.count or self.last is context.steps[self.count - 1])


class _WorkerProcess:
    def __init__(self, process: subprocesses.Process) -> None:
        self._process = process
        self._sent: OrderedDict[str, _SentHistory] = OrderedDict()  # least recently used first
        self._size = 0  # bytes of all of them
        self.usable = True

    @classmethod
    def start(cls, memory: int, seconds: float) -> _WorkerProcess:
        argv = [
            sys.executable,
            "-P",
            "-c",
            f"from {evaluator_messages.WORKER_MODULE} import main; main()",
        ]
        with os_errors("cannot start a rule worker"):
            process = subprocesses.open_process(
                [*argv, str(memory), str(seconds)],
                token=None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for the daemon
            )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has(self, thread: str) -> bool:
        """Returns whether it was sent steps of a thread."""
        return thread in self._sent

    async def answer(self, question: tuple[str, Any], context: DecisionInput) -> Any:
        """Raises Invalid when the expression failed, _WorkerFailed when the worker did."""
        self.usable = False
        try:
            with trio.move_on_after(ANSWER_TIMEOUT_S):
                answer = await self._ask(question, context)
                self.usable = True
                return _parse_answer(answer)
        except trio.BrokenResourceError:
            answer = b""
        raise await self._failure()

    async def _ask(self, question: tuple[str, Any], context: DecisionInput) -> bytes:
        assert self._process.stdin is not None
        for data in self._updates(context):
            await self._process.stdin.send_all(data)
        data = evaluator_messages.encode_message(question[0], context.thread_id, question[1])
        await self._process.stdin.send_all(data)
        return await self._read_line()

    def _updates(self, context: DecisionInput) -> Iterator[bytes]:
        """Yields the messages after which the worker has all steps of the thread, within its
        limit of bytes."""
        sent = self._sent.get(context.thread_id)
        if sent is None or not sent.is_prefix_of(context):
            self._size -= sent.size if sent is not None else 0
            sent = self._sent[context.thread_id] = _SentHistory(context.start)
            yield evaluator_messages.encode_message("begin", context.thread_id, dict(context.start))
        self._sent.move_to_end(context.thread_id)
        while sent.count < len(context.steps):
            steps = list(context.steps[sent.count : sent.count + STEPS_PER_MESSAGE])
            data = evaluator_messages.encode_message("add", context.thread_id, steps)
            sent.count = sent.count + len(steps)
            sent.last = steps[-1]
            sent.size = sent.size + len(data)
            self._size = self._size + len(data)
            yield data
        while self._size > WORKER_HISTORY_BYTES and len(self._sent) > 1:
            thread, evicted = self._sent.popitem(last=False)
            self._size -= evicted.size
            yield evaluator_messages.encode_message("forget", thread)

    async def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            piece = await self._process.stdout.receive_some()
            if not piece or len(line) > evaluator_messages.MAX_ANSWER_BYTES:
                raise trio.BrokenResourceError
            line += piece
        return line

    async def _failure(self) -> _WorkerFailed:
        """Returns why there was no answer."""
        with trio.move_on_after(1):
            await self._process.wait()
        code = self._process.returncode
        if code is None:
            return _WorkerFailed(f"no answer within {ANSWER_TIMEOUT_S:g} s", final=True)
        if code == -signal.SIGPROF:
            return _WorkerFailed(
                f"stopped after {EXPRESSION_CPU_S:g} s: too slow, or without an end", final=True
            )
        if code == evaluator_messages.EXIT_OUT_OF_MEMORY:
            reason = f"stopped: it needs more than {WORKER_MEMORY_BYTES >> 20} MiB of memory"
            return _WorkerFailed(reason, final=len(self._sent) == 1)
        return _WorkerFailed(f"the process that evaluates rules ended ({code})", final=False)

    async def end(self) -> None:
        with trio.CancelScope(shield=True):
            self._process.kill()
            await self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    await pipe.aclose()


class WorkerPool:
    """An Evaluator and async context manager. No worker runs before the first question, or after
    the block."""

    def __init__(self, log: Log = silent) -> None:
        self._log = log
        self._idle: list[_WorkerProcess] = []  # most recently used last
        self._count = 0
        self._stalled_at = 0.0  # when the workers count as stalled, unless one answers before
        self._waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> WorkerPool:
        return self

    async def __aexit__(self, *error: object) -> None:
        for process in self._idle:
            await process.end()
        self._idle.clear()

    @property
    def pids(self) -> list[int]:
        """Ids of the idle workers."""
        return [process.pid for process in self._idle]

    async def holds(self, when: str, context: DecisionInput) -> bool:
        """Raises Invalid when the expression fails, or needs too much time or memory."""
        return bool(await self._answer(("ask", when), context))

    async def value(self, text: str, context: DecisionInput, names: Mapping[str, Any]) -> Any:
        """Returns the value of an expression, which sees further `names`. Raises as `holds`."""
        return (await self._answer(("value", (text, dict(names))), context))["value"]

    async def _answer(self, question: tuple[str, Any], context: DecisionInput) -> Any:
        try:
            process = await self._acquire(context.thread_id)
            return await self._evaluate(process, question, context)
        except _WorkerFailed as failure:
            if failure.final:
                raise Invalid(str(failure)) from None
        try:
            return await self._evaluate(await self._start(), question, context)
        except _WorkerFailed as failure:
            raise Invalid(str(failure)) from None

    async def _evaluate(
        self, process: _WorkerProcess, question: Any, context: DecisionInput
    ) -> Any:
        try:
            return await process.answer(question, context)
        except _WorkerFailed as failure:
            self._log("worker ended", thread=context.thread_id, pid=process.pid, why=str(failure))
            raise
        finally:
            await self._release(process)

    async def _acquire(self, thread: str) -> _WorkerProcess:
        since = trio.current_time()
        while not self._idle:
            start_at = self._next_start(since)
            if trio.current_time() >= start_at:
                return await self._start()
            with trio.move_on_at(start_at):
                await self._waiting.park()
        for index, process in enumerate(self._idle):
            if process.has(thread):
                return self._idle.pop(index)
        return self._idle.pop()

    def _next_start(self, since: float) -> float:
        """Returns when a decision that waits `since` then may start a worker."""
        if self._count < MAX_IDLE_WORKERS:
            return since + SPAWN_DELAY_S if self._count else since
        return self._stalled_at if self._count < MAX_WORKERS else math.inf

    async def _start(self) -> _WorkerProcess:
        self._count += 1
        self._stalled_at = trio.current_time() + STARTUP_ALLOWANCE_S
        try:
            return _WorkerProcess.start(WORKER_MEMORY_BYTES, EXPRESSION_CPU_S)
        except BaseException:
            self._count -= 1
            self._waiting.unpark()
            raise

    async def _release(self, process: _WorkerProcess) -> None:
        self._stalled_at = max(self._stalled_at, trio.current_time() + SPAWN_DELAY_S)
        if process.usable:
            self._idle.append(process)
        else:
            await self._end(process)
        self._waiting.unpark()
        while len(self._idle) > MAX_IDLE_WORKERS and not self._waiting:
            await self._end(self._idle.pop(0))

    async def _end(self, process: _WorkerProcess) -> None:
        await process.end()
        self._count -= 1


def _parse_answer(answer: bytes) -> Any:
    value = json.loads(answer)
    if isinstance(value, str):
        raise Invalid(value)
    return value
