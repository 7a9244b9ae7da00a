"""The `command` agent: any program, in its own process group, with the workspace as its directory.

The prompt comes on stdin, stdout is the output; both streams and the exit code are recorded as a
`command-detail`. A non-zero exit code fails the attempt; a tester whose tests fail has done its
work and exits 0. Exit code 75 asks a person: stdout is the question, and the program is run again
when it is answered, with the answer in CASFS_ANSWER and at the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import trio

from casfs.agents import HUMAN, AgentContext, AgentFailed, AgentFn, AgentResult, Waiting
from casfs.threads import live_output
from engine import content
from engine.agents import program
from engine.blocking import blocking
from engine.processes.subprocesses import ProcessResult

package_descriptor = {
    "name": "command",
    "capabilities": ["run"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": program.ARGV,
            "timeoutS": program.TIMEOUT_S,
            "secrets": program.SECRETS,
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    "schemas": [],
}


EXIT_ASK = 75  # EX_TEMPFAIL of sysexits.h, "try later"
MAX_REASON_CHARS = 300


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    argv = list(config["argv"])

    async def agent(context: AgentContext) -> AgentResult:
        extra_env = {} if context.answer is None else {"CASFS_ANSWER": context.answer}
        prompt = replace(context.prompt, answer=context.answer).text().encode()
        with live_output.recording(context.store.root, context.run, context.secrets) as live:

            async def show(piece: bytes) -> None:
                await blocking(context.secrets.look_again)
                live.write(piece)

            outcome = await program.run_program(
                context, config, argv=argv, stdin=prompt, extra_env=extra_env, output=show
            )
        if outcome.exit_code == EXIT_ASK and outcome.stdout.strip():
            raise await trio.to_thread.run_sync(_question, context, outcome)
        return await trio.to_thread.run_sync(_record, context, argv, outcome)

    return agent


def _question(context: AgentContext, outcome: ProcessResult) -> Waiting:
    text = context.secrets.redact(outcome.stdout.decode("utf-8", "replace")).strip()
    reason = f"{context.role}: {text.splitlines()[0][:MAX_REASON_CHARS]}"
    return Waiting(HUMAN, reason, content.put(context.store, text))


def _record(context: AgentContext, argv: list[str], outcome: ProcessResult) -> AgentResult:
    with context.store.batch() as batch:
        detail = program.put_detail(batch, argv, outcome)
        output = outcome.stdout.decode("utf-8", "replace")
        exact = output.encode() == outcome.stdout
        artifacts = () if exact else (batch.put(outcome.stdout).hash,)
    if outcome.exit_code != 0:
        last = program.last_line(context, outcome.stderr, outcome.stdout) or "no output"
        raise AgentFailed(f"{argv[0]} exited with {outcome.exit_code}: {last}", detail.hash)
    return AgentResult(output, detail, artifacts)
