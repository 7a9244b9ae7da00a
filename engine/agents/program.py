"""What the agents that are programs share: parts of their configs, the environment that a
program sees, a prompt as an argument, and what is kept of one that failed.

Every program carries the token of its step's intent, so that whatever it starts is found again
(`engine.processes`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed
from casfs.digest import Digest
from casfs.errors import Refused
from casfs.write_batch import Batch
from engine.processes import TOKEN, ProcessResult, TimedOut, run

DEFAULT_TIMEOUT_S = 3600.0  # seconds
MAX_PROMPT_BYTES = 120_000  # bytes of a prompt: the kernel takes 128 KiB for one argument
STDERR_TAIL_CHARS = 300  # characters of stderr in a reason

ARGV: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
TIMEOUT_S: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
SECRETS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "format": "env"},
    "description": "Variables whose values are recorded nowhere.",
}
NO_VARIABLES: Mapping[str, str] = {}


async def run_program(
    context: AgentContext,
    config: Mapping[str, Any],
    argv: Sequence[str],
    stdin: bytes = b"",
    more: Mapping[str, str] = NO_VARIABLES,
) -> ProcessResult:
    """Run a program in the workspace to its end, no longer than the config's `timeoutS`. `more`:
    for its environment. Raises as `processes.run`; AgentFailed for one that took too long, with
    what it had said until then."""
    try:
        return await run(
            argv,
            stdin,
            cwd=context.workspace,
            env={**environment(context), **more},
            timeout=float(config.get("timeoutS", DEFAULT_TIMEOUT_S)),
            started=context.started,
        )
    except TimedOut as error:
        detail = await trio.to_thread.run_sync(_stopped, context, argv, error.outcome)
        raise AgentFailed(str(error), detail.hash) from error


def _stopped(context: AgentContext, argv: Sequence[str], outcome: ProcessResult) -> Digest:
    with context.store.batch() as batch:
        return put_detail(batch, argv, outcome)


def put_detail(batch: Batch, argv: Sequence[str], outcome: ProcessResult) -> Digest:
    """Put a `command-detail`: a program, and what it left behind."""
    return batch.put_node(
        "command-detail",
        {
            "argv": list(argv),
            "exitCode": outcome.exit_code,
            "stdout": batch.put(outcome.stdout).hash,
            "stderr": batch.put(outcome.stderr).hash,
            "durationMs": outcome.duration_ms,
        },
    )


def environment(context: AgentContext) -> dict[str, str]:
    """What the program that plays a role sees."""
    ours = {
        "CASFS_STORE": str(context.store.root or ""),
        "CASFS_THREAD": context.thread,
        "CASFS_ROLE": context.role,
        "CASFS_STEP": str(context.step),
        TOKEN: context.run,
    }
    return {**context.env, **ours, "PATH": _path(context.env)}


def _path(env: Mapping[str, str]) -> str:
    """The agent's PATH, where `casfs` can be found whatever it was started from."""
    return os.pathsep.join([env.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def prompt_argument(context: AgentContext) -> str:
    """The prompt as an argument; in a session that goes on, only what was wrong with the last
    output. Raises Refused for one that no argument can hold."""
    prompt = context.prompt
    goes_on = context.conversation.get("session") is not None and prompt.correction
    text = prompt.correction_text() if goes_on else prompt.text()
    if len(text.encode()) > MAX_PROMPT_BYTES:
        raise Refused(f"the prompt has more than {MAX_PROMPT_BYTES} bytes; compact the thread")
    return text


def last_stderr_line(context: AgentContext, outcome: ProcessResult) -> str:
    """The end of what a program complained about, as one line; it may be empty. Secrets are
    hidden before it is cut: half of one would not be found any more."""
    said = context.secrets.redact(outcome.stderr.decode("utf-8", "replace"))
    return " ".join(said.strip()[-STDERR_TAIL_CHARS:].split())
