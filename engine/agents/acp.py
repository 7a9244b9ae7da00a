"""The `acp` agent: any program that speaks the Agent Client Protocol (`engine.acp`).

The prompt is one prompt of a session, a correction the next one of the same session. After a crash,
or a person's answer to its question, the agent goes on with its session where it can load that,
else begins a new one, with a list of what it had done. The workspace is then as it was before the
step, or at the last question.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Waiting
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.threads import attempt_details, live_output
from engine import content
from engine.acp import protocol
from engine.acp.client import Client, Launch
from engine.acp.host import Host
from engine.acp.permissions import ALLOW, ASK, DENY, REASON, Permissions, notes
from engine.acp.recorder import Recorder
from engine.agents import program
from engine.agents.react import SANDBOX_PROPERTIES, sandbox_settings
from engine.deadlines import standing_still
from engine.llm.tools import truncate
from engine.processes.subprocesses import ProcessResult, TimedOut

RULE = {"enum": [ALLOW, ASK, DENY]}
KEY_NAMES = "(?i)(key|token|secret|passw(or)?d|credentials?)$"
KEY_VALUES = "^(sk-|pk-|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ|Bearer )"
NAME = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": {"pattern": KEY_NAMES}}
CONVERSATION = "acp"  # key of the session in `context.conversation`
FAILED = ("refusal", "cancelled")  # reasons to stop
MAX_TOLD_CHARS = 16_000
INTERRUPTED = """# You were interrupted

You began this work before and were interrupted. The workspace may be in an earlier state than you
left it: look before you go on, and do again what is missing."""
REWOUND = """# Go on from an earlier point: the files are as they were after turn {} of this session

What you did later is undone."""

package_descriptor = {
    "name": "acp",
    "capabilities": ["answer", "edit", "run", "continue"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": program.ARGV,
            "env": {
                "type": "object",
                "propertyNames": NAME,
                "additionalProperties": {"type": "string", "not": {"pattern": KEY_VALUES}},
                "description": "Variables; no keys, which are variables of the daemon (`secrets`).",
            },
            "mode": {"type": "string", "description": "Of the session, as the agent names it."},
            "model": {"type": "string", "description": "Of the session, as the agent names it."},
            "login": {"type": "string", "description": "Method to authenticate by, if asked for."},
            "permissions": {
                "anyOf": [RULE, {"type": "object", "additionalProperties": RULE}],
                "description": "For all tools, or by a tool's kind or name; `*`: the others.",
            },
            "mcp": {"type": "boolean", "description": "Give it the store as tools (`casfs mcp`)."},
            "files": {"type": "boolean", "description": "Offer it to read and write files (true)."},
            **SANDBOX_PROPERTIES,
            "timeoutS": program.TIMEOUT_S,
            "secrets": program.SECRETS,
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        session: Session | None = context.conversation.get(CONVERSATION)
        if session is None or not context.prompt.correction:
            await protocol.load()
            session = Session(context, config, await _launch(context, config))
            context.conversation[CONVERSATION] = session
            await session.client.enter()
        return await session.ask(context)

    return agent


async def _launch(context: AgentContext, config: Mapping[str, Any]) -> Launch:
    env = program.environment(context)
    cwd = context.workspace
    if cwd is None:
        cwd = await trio.to_thread.run_sync(program.scratch_directory, context)
        context.exit_stack.push_async_callback(_delete, cwd)
    servers = [store_server(context, env)] if config.get("mcp") else []
    env |= config.get("env", {})
    return Launch(
        config["argv"],
        env,
        cwd=cwd,
        config=config,
        servers=servers,
        last_line=partial(program.last_line, context),
    )


async def _delete(directory: Path) -> None:
    with trio.CancelScope(shield=True), suppress(Failed):
        await trio.to_thread.run_sync(rmtree.delete, directory)


def store_server(context: AgentContext, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the MCP server by which the agent reads the store: `casfs mcp`."""
    variables = (
        {"name": name, "value": env_value}
        for name, env_value in env.items()
        if name[:6] == "CASFS_"
    )
    argv = ["-m", "casfs", "--store", str(context.store.root), "mcp"]
    return {"name": "casfs", "command": sys.executable, "args": argv, "env": [*variables]}


class Session:
    """An agent at one step: its process, what it is asked, what it may do, and its record."""

    def __init__(self, context: AgentContext, config: Mapping[str, Any], launch: Launch) -> None:
        """Starts the process. Raises Failed."""
        recording_args = (context.store.root, context.run, context.secrets)
        live = context.exit_stack.enter_context(live_output.recording(*recording_args))
        self._timeout = float(config.get("timeoutS", program.DEFAULT_TIMEOUT_S))
        self._recorder = Recorder(context, live)
        self._limit = trio.CancelScope()
        policy = config.get("permissions", ASK)
        self._permissions = Permissions(context, policy, self._ask_person)
        self._ask_without_time = context.ask
        self._next_message = context.message
        shell = sandbox_settings(config)
        files = config.get("files", True)
        host = Host(
            context, shell, permissions=self._permissions, recorder=self._recorder, files=files
        )
        self.client = Client(launch, context, recorder=self._recorder, host=host)
        self._program = launch.argv[0]

    async def ask(self, context: AgentContext) -> AgentResult:
        """Sends the prompt, or the correction; returns the agent's report. Raises Waiting,
        AgentFailed with the session so far."""
        answer: Any = None
        try:
            self._limit = trio.CancelScope(deadline=trio.current_time() + self._timeout)
            with self._limit:
                goes_on = bool(self.client.session)
                text = context.prompt.correction_text() if goes_on else await self._open(context)
                answer = await self._prompt(text)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                context.interrupted((await self._detail(None)).hash)
            raise
        except Waiting as why:
            await self._detail(None)
            why.tokens = self._recorder.total_tokens
            raise
        except CasfsError as error:
            raise AgentFailed(str(error), (await self._detail(None)).hash) from error
        detail = await self._detail(answer)
        if self._limit.cancelled_caught:
            reason = f"{self._program} took longer than {self._timeout:g} s"
            raise AgentFailed(reason, detail.hash) from TimedOut(reason, NO_RESULT)
        if answer.stop_reason in FAILED:
            raise AgentFailed(f"{self._program} stopped: {answer.stop_reason}", detail.hash)
        return AgentResult(self._recorder.report, detail)

    async def _prompt(self, text: str) -> Any:
        """Returns the agent's answer to a prompt, and to what a person has said meanwhile."""
        self._recorder.begin(text)
        answer = await self.client.prompt(text)
        while message := self._permissions.take_reasons() or await self._next_message():
            await self._recorder.end(answer, self.client.name)
            self._recorder.follow(message)
            answer = await self.client.prompt(message)
        return answer

    async def _ask_person(self, why: Waiting) -> str | None:
        await self._recorder.checkpoint()  # what leads to the question can be seen beside it
        with standing_still(self._limit):
            answer = await self._ask_without_time(why)
        if answer is not None:
            self._recorder.answered(str(why.question), answer)
        return answer

    async def _open(self, context: AgentContext) -> str:
        """Begins the session, or goes on with that of an earlier attempt; returns the prompt."""
        kept = await self._permissions.load()
        goes_on = await self.client.open(kept.session)
        kept.session = self.client.session
        await self._permissions.save()
        prompt = replace(context.prompt, answer=None)
        done = await trio.to_thread.run_sync(_transcript, context.store, context.attempts)
        why = REWOUND.format(kept.turn) if kept.turn else INTERRUPTED
        parts = [why, prompt.after_history()] if goes_on else [prompt.text()]
        if done and not goes_on:
            parts += [INTERRUPTED, f"# What you had done\n\n{done}"]
        if kept.answers:
            parts.append(f"# Answers of a person\n\n{notes(kept)}")
        return "\n\n".join(part.strip() for part in parts) + "\n"

    async def _detail(self, answer: Any) -> Digest:
        """Ends the turn, and puts the session so far."""
        await self._recorder.end(answer, self.client.name)
        facts, streams = self.client.facts()
        facts["stopReason"] = answer and answer.stop_reason
        return await trio.to_thread.run_sync(self._recorder.detail, facts, streams)


NO_RESULT = ProcessResult(
    0, b"", stderr=b"", duration_ms=0
)  # of a time limit: the record is the session


def _transcript(store: Store, attempts: Sequence[str]) -> str:
    """Returns what earlier attempts said and were told, and which tools they used."""
    from casfs.review import message  # `casfs agent list` imports all agents, and not this

    by_person = (REASON, message.MARK)  # begin prompts of a person
    lines: list[str] = []
    turn_hashes = dict.fromkeys(
        hash for attempt in attempts for hash in attempt_details.turns(store, attempt)
    )
    for node in map(store.node, turn_hashes):
        if node.type != "react-turn":
            continue
        prompt = content.text(store, node.payload["input"]).strip()
        if prompt.startswith(by_person):  # the prompt of the step is there anew
            lines.append(prompt)
        lines.append(content.text(store, node.payload["output"]).strip())
        for call in (store.node(hash).payload for hash in node.payload["toolCalls"]):
            lines.append(f"- {call['name']} ({call.get('status', 'done')})")
    return truncate("\n".join(filter(None, lines)), MAX_TOLD_CHARS)
