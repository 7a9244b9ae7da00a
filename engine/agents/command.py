"""The `command` agent: any program, in its own process group, with the workspace as its directory.

The prompt comes on stdin, stdout is the output; both streams and the exit code are recorded as a
`command-detail`. A non-zero exit code fails the attempt; a tester whose tests fail has done its
work and exits 0. Exit code 75 asks a person: stdout is the question, and the program is run again
when it is answered, with the answer in CASFS_ANSWER and at the end of the prompt.

With `check` the exit code is the report, and the files are as before the step: what a build or a
test leaves behind is not the work of the agents.
"""

from __future__ import annotations

import json
import shlex
import textwrap
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
            "check": {
                "type": "object",
                "properties": {"tries": {"type": "integer", "minimum": 1}},
                "additionalProperties": False,
                "description": "The exit code is the report; the files are as before the step.",
            },
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    "schemas": [],
}


EXIT_ASK = 75  # EX_TEMPFAIL of sysexits.h, "try later"
MAX_REASON_CHARS = 300
MAX_CHECK_CHARS = 8000  # of the output of a check, its end
SHELL = ("sh", "-c")


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    argv = list(config["argv"])

    async def check(context: AgentContext) -> AgentResult:
        # One stream, so that errors stand where they were printed.
        one_stream = [*SHELL, 'exec "$@" 2>&1', "sh", *argv]
        outcome = await program.run_program(context, config, argv=one_stream)
        return await trio.to_thread.run_sync(_checked, context, config, outcome)

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

    return check if "check" in config else agent


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


def _checked(
    context: AgentContext, config: Mapping[str, Any], outcome: ProcessResult
) -> AgentResult:
    argv = config["argv"]
    with context.store.batch() as batch:
        detail = program.put_detail(batch, argv, outcome)
    command = argv[-1] if (*argv[:-1],) == SHELL else shlex.join(argv)
    report = {
        "status": "failed" if outcome.exit_code else "passed",
        "command": command,
        "exitCode": outcome.exit_code,
        **config["check"],
    }
    # Redacted before it is cut: half of a secret would not be found any more.
    printed = context.secrets.redact(outcome.stdout.decode("utf-8", "replace"))[-MAX_CHECK_CHARS:]
    # Indented, so that no fence in it swallows the report.
    quoted = textwrap.indent(f"$ {command}\n{printed}", "    ").rstrip()
    block = f"```json\n{json.dumps(report, ensure_ascii=False)}\n```\n"
    return AgentResult(f"{quoted}\n\n{block}", detail, keeps_workspace=False)
