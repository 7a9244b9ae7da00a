"""A terminal of an agent: a command that runs, what it printed, and how it ended.

What it prints is kept up to MAX_OUTPUT_BYTES, the newest of it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from casfs.system import processes
from casfs.system.processes import DRAIN_TIMEOUT_S
from engine.processes.subprocesses import Process

MAX_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Command:
    """What the agent asked for. `cwd`: relative to the workspace; `request`: as it came; `limit`:
    bytes of the output that the agent wants."""

    argv: Sequence[str]
    cwd: str
    request: Mapping[str, Any]
    limit: int


class Terminal:
    """`is_killed`: by the agent; `is_released`: the agent cannot ask for it any more."""

    def __init__(self, process: Process, command: Command) -> None:
        self.process = process
        self.command = command
        self.ended = trio.Event()
        self.is_killed = False
        self.is_released = False
        self._output = bytearray()
        self._printed = 0  # bytes
        self._begin = time.monotonic()
        self._end: float | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self.process.wait()
            processes.send(self.process.pid, signal.SIGKILL)  # a child may keep its output open
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN_TIMEOUT_S
        self._end = time.monotonic()
        self.ended.set()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async with self.process.stdout as pipe:
            async for piece in pipe:
                self._printed += len(piece)
                self._output += piece
                del self._output[: -2 * MAX_OUTPUT_BYTES]

    def exit_status(self) -> dict[str, Any]:
        code = self.process.returncode
        return {"signal": str(-code)} if code is not None and code < 0 else {"exitCode": code}

    def output(self) -> dict[str, Any]:
        """Returns the output, of a truncated one from the first whole character on."""
        limit = min(self.command.limit, MAX_OUTPUT_BYTES)
        is_truncated = self._printed > limit
        shown = bytes(self._output[max(0, len(self._output) - limit) :])
        if is_truncated:
            shown = shown.lstrip(bytes(range(0x80, 0xC0)))
        state = {"exitStatus": self.exit_status()} if self.ended.is_set() else {}
        return {"output": shown.decode("utf-8", "replace"), "truncated": is_truncated, **state}

    def recorded_output(self, redact: Callable[[bytes], bytes]) -> bytes:
        """Returns the output as it is recorded. It is redacted before it is cut: half of a secret
        would not be found any more."""
        return redact(bytes(self._output))[-MAX_OUTPUT_BYTES:]

    def facts(self) -> dict[str, Any]:
        """Returns how it went, as members of its record."""
        end = time.monotonic() if self._end is None else self._end
        status = self.exit_status() if self.process.returncode is not None else {}
        return {
            "printedBytes": self._printed,
            "durationMs": round((end - self._begin) * 1000),
            "isKilled": self.is_killed,
            **status,
        }
