"""The rule worker: a process that evaluates the expressions of moderator rules.

An expression can loop endlessly or allocate without limit, and only a process can be stopped
then. So the worker sets kernel limits before it evaluates anything: its address space (RLIMIT_AS),
and for each expression the processor time (ITIMER_PROF, whose signal ends it). They hold even when
the daemon was killed meanwhile; then the end of the pipe ends an idle worker. Time in which the
process did not run, on a busy machine, does not count.

It is sent the steps of a thread once and keeps them (`engine.moderator.conditions`);
the pool decides which threads it keeps (`engine.moderator.evaluator_pool`).
The worker has no access to the store.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal
import sys
from typing import Any, BinaryIO

from casfs.errors import Invalid
from casfs.system import cycles
from engine.moderator.conditions import ExpressionScope
from engine.moderator.evaluator_messages import EXIT_OUT_OF_MEMORY, LENGTH, MAX_ANSWER_BYTES

MAX_REASON_CHARS = 1000


class Worker:
    """Keeps the steps of threads and evaluates expressions, each within `seconds` of CPU time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scopes: dict[str, ExpressionScope] = {}

    def take(self, kind: str, thread: str, value: Any = None) -> Any:
        """Handles a message; returns the answer to a question."""
        if kind == "begin":
            self._scopes[thread] = ExpressionScope(value, thread)
        elif kind == "add":
            self._scopes[thread].add(value)
        elif kind == "forget":
            del self._scopes[thread]
        else:
            return self._answer(self._scopes[thread], kind, value)
        return None

    def _answer(self, scope: ExpressionScope, kind: str, value: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        try:
            return scope.holds(value) if kind == "ask" else {"value": scope.value(*value)}
        except Invalid as error:
            return str(error)[:MAX_REASON_CHARS]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def serve(worker: Worker, messages: BinaryIO, answers: BinaryIO) -> None:
    """Handles messages until the end of the pipe."""
    while len(head := messages.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        answer = worker.take(*marshal.loads(messages.read(length)))
        if answer is not None:
            line = json.dumps(answer).encode() + b"\n"
            if len(line) > MAX_ANSWER_BYTES:
                line = f'"its value has more than {MAX_ANSWER_BYTES >> 20} MiB as JSON"\n'.encode()
            answers.write(line)
            answers.flush()


def main() -> None:
    """Runs the worker. Arguments: bytes of memory, CPU seconds for an expression."""
    cycles.search_rarely()
    memory = int(sys.argv[1])
    seconds = float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # an ignored signal is inherited
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # the library may print to stdout
        try:
            serve(Worker(seconds), sys.stdin.buffer, answers)
        except MemoryError:
            os._exit(EXIT_OUT_OF_MEMORY)
