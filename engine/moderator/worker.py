"""The process in which the expressions of moderator rules are evaluated: its side of the pipe.

An expression can loop for ever or ask for all memory there is, and only a process can be
stopped for that. So this one limits itself by means of the kernel before it evaluates
anything: its address space (RLIMIT_AS), and for each expression the processor time
(ITIMER_PROF, whose signal ends it). That holds even when the daemon was killed meanwhile;
without one, the end of the pipe ends it. Time in which the process did not run, on a busy
machine, is not counted against a rule.

It is sent the steps of a thread once and keeps them (`engine.moderator.conditions`);
which threads it keeps is decided on the other side, in `engine.moderator.workers`. On stdin come
messages: four bytes of length, then a `marshal`ed tuple, since both ends are this program:

    ("begin", thread, start)   ("add", thread, steps)   ("forget", thread)
    ("ask", thread, when)      answered on stdout by a line: true, false, or "why it failed"

Nothing here knows the store.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from casfs.errors import Invalid
from engine.moderator.conditions import ExpressionScope

EXIT_OUT_OF_MEMORY = 3  # exit code
MAX_REASON_CHARS = 1000  # characters of why an expression failed
LENGTH = struct.Struct("<I")


def encode_message(*parts: Any) -> bytes:
    """A message as it goes through the pipe."""
    data = marshal.dumps(parts)
    return LENGTH.pack(len(data)) + data


class Worker:
    """Keeps histories, answers questions about them; each may take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._histories: dict[str, ExpressionScope] = {}

    def take(self, kind: str, thread: str, value: Any = None) -> bool | str | None:
        """Act on a message; the answer, if it was a question."""
        if kind == "begin":
            self._histories[thread] = ExpressionScope(value, thread)
        elif kind == "add":
            self._histories[thread].add(value)
        elif kind == "forget":
            del self._histories[thread]
        else:
            return self._ask(thread, value)
        return None

    def _ask(self, thread: str, when: str) -> bool | str:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        try:
            return self._histories[thread].holds(when)
        except Invalid as error:
            return str(error)[:MAX_REASON_CHARS]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def serve(worker: Worker, messages: BinaryIO, answers: BinaryIO) -> None:
    """Until the end of `messages`."""
    while len(head := messages.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        answer = worker.take(*marshal.loads(messages.read(length)))
        if answer is not None:
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def main() -> None:
    """Arguments: bytes of memory, seconds for an expression."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # an ignored signal is inherited
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what the library prints is no answer
        try:
            serve(Worker(seconds), sys.stdin.buffer, answers)
        except MemoryError:
            os._exit(EXIT_OUT_OF_MEMORY)
