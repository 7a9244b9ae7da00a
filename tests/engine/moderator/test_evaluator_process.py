"""The process that evaluates expressions: what it answers, and what ends it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from typing import Any

from engine.moderator import evaluator_process
from engine.moderator.evaluator_messages import EXIT_OUT_OF_MEMORY, encode_message
from engine.moderator.evaluator_process import Worker, serve

LAST = "$last('a').meta.n"


def step(role: str, n: int) -> dict[str, Any]:
    return {"role": role, "meta": {"n": n}}


def answers(*messages: bytes) -> list[Any]:
    out = io.BytesIO()
    serve(Worker(60), io.BytesIO(b"".join(messages)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def run(
    *messages: bytes, memory: int = 512 << 20, seconds: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """A real process that gets `messages` and then the end of its pipe."""
    start = f"from {evaluator_process.__name__} import main; main()"
    argv = [sys.executable, "-c", start, str(memory), str(seconds)]
    return subprocess.run(argv, input=b"".join(messages), capture_output=True, timeout=100)


def asked(when: str, **limits: Any) -> subprocess.CompletedProcess[bytes]:
    return run(encode_message("begin", "t", {}), encode_message("ask", "t", when), **limits)


def test_answers() -> None:
    assert answers(
        encode_message("begin", "t", {"depth": 1}),
        encode_message("ask", "t", "$count(steps) = 0 and start.depth = 1 and threadId = 't'"),
        encode_message("add", "t", [step("a", 1), step("b", 2)]),
        encode_message("add", "t", [step("a", 3)]),
        encode_message("ask", "t", f"$count(steps) = 3 and {LAST} = 3"),
        encode_message("ask", "t", "false"),
        encode_message("ask", "t", "1 + 'x'"),
        encode_message("ask", "t", "1 +"),
    ) == [
        True,
        True,
        False,
        "evaluation failed: The right side of the + operator must evaluate to a number",
        "does not parse at position 3: Unexpected end of expression",
    ]


def test_threads_are_kept_apart() -> None:
    assert answers(
        encode_message("begin", "t", {}),
        encode_message("begin", "u", {}),
        encode_message("add", "t", [step("a", 1)]),
        encode_message("add", "u", [step("a", 2)]),
        encode_message("ask", "t", f"{LAST} = 1"),
        encode_message("ask", "u", f"{LAST} = 2"),
        encode_message("forget", "u"),
        encode_message("ask", "t", f"{LAST} = 1"),
        encode_message("begin", "t", {}),
        encode_message("ask", "t", "$count(steps) = 0"),
    ) == [True, True, True, True]


def test_a_torn_message_is_the_end() -> None:
    assert answers(encode_message("begin", "t", {}), encode_message("ask", "t", "true")[:3]) == []


def test_a_long_reason_is_cut() -> None:
    (reason,) = answers(
        encode_message("begin", "t", {}), encode_message("ask", "t", f"$error('{'x' * 9999}')")
    )
    assert len(reason) == evaluator_process.MAX_REASON_CHARS


def test_the_end_of_the_pipe_ends_it() -> None:
    ended = asked("true")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"true\n", b"")


def test_time_is_limited() -> None:
    for when in (
        "($f := function($n) { $f($n + 1) }; $f(1))",
        "$contains('" + "a" * 60 + "!', /^(a+)+$/)",
    ):
        ended = asked(when, seconds=0.2)
        assert (ended.returncode, ended.stdout) == (-signal.SIGPROF, b"")


def test_the_limit_is_for_one_expression() -> None:
    busy = encode_message("ask", "t", "$count($map([1..2000], function($x) { $x + 1 })) > 0")
    ended = run(encode_message("begin", "t", {}), *[busy] * 40, seconds=1)
    assert (ended.returncode, ended.stdout) == (0, b"true\n" * 40)


def test_memory_is_limited() -> None:
    ended = asked("$length($pad('x', 900000000)) > 1", memory=128 << 20)
    assert (ended.returncode, ended.stdout) == (EXIT_OUT_OF_MEMORY, b"")


def test_a_history_may_be_too_much() -> None:
    steps = [{"role": "a", "meta": {"text": "x" * 1_000_000 + str(n)}} for n in range(100)]
    many = [encode_message("add", "t", [one]) for one in steps]
    ended = run(
        encode_message("begin", "t", {}), *many, encode_message("ask", "t", "true"), memory=96 << 20
    )
    assert (ended.returncode, ended.stdout) == (EXIT_OUT_OF_MEMORY, b"")
