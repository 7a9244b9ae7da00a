"""The `command` agent: any program. Prompt on stdin, output on stdout, its own process
group, the workspace as its directory; what it wrote and how it ended is a `command-detail`.

A non-zero exit code means that the agent broke, and suspends the thread; a tester whose
tests fail has done its work and exits 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from casfs.batch import Batch
from casfs.digest import Digest
from engine.agents import AgentContext, AgentFailed, AgentFn, AgentResult
from engine.running.processes import TOKEN, Outcome, run

DEFAULT_TIMEOUT = 3600.0  # seconds
TAIL = 300  # characters of stderr in a reason

package_descriptor = {
    "name": "command",
    "capabilities": ["run"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "timeoutS": {"type": "number", "exclusiveMinimum": 0},
            "secrets": {
                "type": "array",
                "items": {"type": "string", "format": "env"},
                "description": "Variables whose values are recorded nowhere.",
            },
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    argv = list(config["argv"])
    timeout = float(config.get("timeoutS", DEFAULT_TIMEOUT))

    async def agent(context: AgentContext) -> AgentResult:
        outcome = await run(
            argv,
            context.prompt.text().encode(),
            cwd=context.workspace,
            env=environment(context),
            timeout=timeout,
            started=context.started,
        )
        return await trio.to_thread.run_sync(_record, context, argv, outcome)

    return agent


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


def _record(context: AgentContext, argv: list[str], outcome: Outcome) -> AgentResult:
    with context.store.batch() as batch:
        detail = _detail(batch, argv, outcome)
        output = outcome.stdout.decode("utf-8", "replace")
        exact = output.encode() == outcome.stdout
        artifacts = () if exact else (batch.put(outcome.stdout).hash,)
    if outcome.exit_code != 0:
        said = outcome.stderr.decode("utf-8", "replace").strip()[-TAIL:]
        last = " ".join(said.split()) or "nothing on stderr"
        raise AgentFailed(f"{argv[0]} exited with {outcome.exit_code}: {last}", detail.hash)
    return AgentResult(output, detail, artifacts)


def _detail(batch: Batch, argv: list[str], outcome: Outcome) -> Digest:
    return batch.put_node(
        "command-detail",
        {
            "argv": argv,
            "exitCode": outcome.exit_code,
            "stdout": batch.put(outcome.stdout).hash,
            "stderr": batch.put(outcome.stderr).hash,
            "durationMs": outcome.duration_ms,
        },
    )
