"""Shared by the agents that run a program: config schemas, environment, prompt as an argument,
record of the result.

Every program carries the token of its step's intent, so that all processes that it starts are
found again (`engine.processes.subprocesses`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed
from casfs.agents.secrets import SECRETS_VARIABLE
from casfs.digest import Digest
from casfs.errors import Refused
from casfs.store.write_batch import Batch
from casfs.system import rmtree
from engine.processes.subprocesses import (
    RUN_VARIABLE,
    Output,
    ProcessResult,
    TimedOut,
    ignore_output,
    run,
)

DEFAULT_TIMEOUT_S = 3600.0
MAX_PROMPT_BYTES = 120_000  # the kernel takes 128 KiB for one argument
MAX_REASON_CHARS = 300  # in a reason
MAX_REASON_BYTES = 400  # of these, as JSON

ARGV: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
TIMEOUT_S: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
SECRETS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "format": "env"},
    "description": "Variables whose values are redacted in all records.",
}
NO_VARIABLES: Mapping[str, str] = {}
# the program of each package, where its config has no `argv`
PROGRAMS = {"acp": None, "command": None, "hermes": "hermes", "cursor": "cursor-agent"}


async def run_program(
    context: AgentContext,
    config: Mapping[str, Any],
    argv: Sequence[str],
    stdin: bytes = b"",
    extra_env: Mapping[str, str] = NO_VARIABLES,
    output: Output = ignore_output,
) -> ProcessResult:
    """Runs a program in the workspace, without one in an empty directory that is removed after;
    within the config's `timeoutS`; `extra_env`: variables for its environment; `output` gets its
    stdout as it comes. Raises as `processes.run`; AgentFailed on timeout, with the output until
    then as its detail; where the task is cancelled, reports that to `context.interrupted`."""

    async def interrupted(outcome: ProcessResult) -> None:
        detail = await trio.to_thread.run_sync(_commit_detail, context, argv, outcome)
        context.interrupted(detail.hash)

    scratch = (
        None if context.workspace else await trio.to_thread.run_sync(scratch_directory, context)
    )
    try:
        return await run(
            argv,
            stdin,
            cwd=scratch or context.workspace,
            env={**environment(context), **extra_env},
            timeout=float(config.get("timeoutS", DEFAULT_TIMEOUT_S)),
            started=context.started,
            interrupted=interrupted,
            output=output,
        )
    except TimedOut as error:
        detail = await trio.to_thread.run_sync(_commit_detail, context, argv, error.result)
        raise AgentFailed(str(error), detail.hash) from error
    finally:
        if scratch is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(rmtree.delete, scratch)


def scratch_directory(context: AgentContext) -> Path:
    """Makes an empty directory. It has the name of a staging directory of workspaces,
    so the next daemon deletes what a killed one left."""
    directory: Path = context.store.root / "workspaces" / f".casfs.{secrets.token_hex(8)}"
    directory.mkdir(0o700)
    return directory


def _commit_detail(context: AgentContext, argv: Sequence[str], outcome: ProcessResult) -> Digest:
    with context.store.batch() as batch:
        return put_detail(batch, argv, outcome)


def put_detail(batch: Batch, argv: Sequence[str], outcome: ProcessResult) -> Digest:
    """Puts a `command-detail`: argv, exit code and output of a program."""
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


def sum_tokens(counts: object, names: Sequence[str]) -> int:
    """Returns the sum of the named counts that a program reports; 0 for those that are none."""
    named_counts = [counts.get(name) for name in names] if isinstance(counts, Mapping) else []
    return sum(count for count in named_counts if type(count) is int and count > 0)


def environment(context: AgentContext) -> dict[str, str]:
    """Returns the environment of a program that plays a role."""
    ours = {
        "CASFS_STORE": str(context.store.root or ""),
        "CASFS_THREAD": context.thread,
        "CASFS_ROLE": context.role,
        "CASFS_STEP": str(context.step),
        RUN_VARIABLE: context.run,
        SECRETS_VARIABLE: ",".join(context.secrets.names),
    }
    return {**context.env, **ours, "PATH": _path(context.env)}


def _path(env: Mapping[str, str]) -> str:
    """Returns the agent's PATH, extended so that `casfs` is found."""
    return os.pathsep.join([env.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def first_word(package: str, config: Mapping[str, Any]) -> str | None:
    """Returns the program that an agent of this package runs; None where it runs none. The config
    may be invalid."""
    argv = config.get("argv")
    has_argv = package in PROGRAMS and isinstance(argv, list) and argv
    return str(argv[0]) if argv and has_argv else PROGRAMS.get(package)


def exists(argv0: str, env: Mapping[str, str]) -> bool:
    """Whether a program's name is found on an agent's PATH, or its absolute path can be run."""
    return shutil.which(argv0, path=_path(env)) is not None


def prompt_argument(context: AgentContext) -> str:
    """Returns the prompt as an argument; in a resumed session, only the correction. Raises Refused
    for one that is too long for an argument."""
    prompt = context.prompt
    resumed = context.conversation.get("session") is not None and prompt.correction
    text = prompt.correction_text() if resumed else prompt.text()
    if len(text.encode()) > MAX_PROMPT_BYTES:
        raise Refused(f"the prompt has more than {MAX_PROMPT_BYTES} bytes; compact the thread")
    return text


def last_line(context: AgentContext, *outputs: bytes) -> str:
    """Returns the last line of the first output that has any; it may be empty. Redacted before it
    is cut: half of a secret would not be found any more."""
    for output in outputs:
        said = context.secrets.redact(output.decode("utf-8", "replace")).strip()
        if said:
            line = " ".join(said.splitlines()[-1][-MAX_REASON_CHARS:].split())
            while len(json.dumps(line, ensure_ascii=False).encode()) > MAX_REASON_BYTES:
                line = line[max(1, len(line) // 16) :]  # a record would cut its end
            return line
    return ""
