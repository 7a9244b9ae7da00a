"""An agent at one step: its process, what it is asked, what it may do, and its record.

After a crash, or a person's answer to a question, the agent goes on with its session where it can
load that; else it begins a new one and is told what it had done. The workspace is then as it was
before the step, or at the last question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import trio

from casfs import live_output
from casfs.agents import AgentContext, AgentFailed, AgentResult, Waiting
from casfs.digest import Digest
from casfs.errors import CasfsError
from casfs.store import Store
from engine import content
from engine.acp import permissions
from engine.acp.client import Client, Launch
from engine.acp.host import Host
from engine.acp.permissions import Permissions, Policy
from engine.acp.recorder import Recorder
from engine.llm.sandbox import Settings
from engine.llm.tools import truncate
from engine.processes import ProcessResult, TimedOut

FAILED = ("refusal", "cancelled")  # reasons to stop
MAX_TOLD_CHARS = 16_000
INTERRUPTED = """# You were interrupted

You began this work before and were interrupted. The workspace may be in an earlier state than you
left it: look before you go on, and do again what is missing."""


class Session:
    """`conversation[KEY]` of a step's context."""

    KEY = "acp"

    def __init__(
        self, context: AgentContext, launch: Launch, policy: Policy, shell: Settings
    ) -> None:
        """Starts the process, to be served by `enter`. Raises Failed."""
        self._program = launch.argv[0]
        place = (context.store.root, context.run, context.secrets)
        live = context.exit_stack.enter_context(live_output.recording(*place))
        self._recorder = Recorder(context, live.write)
        self._permissions = Permissions(context, policy)
        host = Host(context, shell, self._permissions, launch.files)
        self._client = Client(launch, context, self._recorder, host)

    async def enter(self) -> None:
        await self._client.enter()

    async def ask(self, context: AgentContext, timeout: float) -> AgentResult:
        """Sends the prompt, or the correction; returns the agent's report. Raises Waiting,
        AgentFailed with the session so far."""
        answer: Any = None
        try:
            with trio.move_on_after(timeout) as limit:
                if self._client.session:
                    text = context.prompt.correction_text()
                else:
                    text = await self._open(context)
                self._recorder.begin(text)
                answer = await self._client.prompt(text)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                context.interrupted((await self._detail(None)).hash)
            raise
        except Waiting as why:
            await self._detail(None)
            why.tokens = self._recorder.tokens
            raise
        except CasfsError as error:
            raise AgentFailed(str(error), (await self._detail(None)).hash) from error
        detail = await self._detail(answer)
        if limit.cancelled_caught:
            reason = f"{self._program} took longer than {timeout:g} s"
            result = ProcessResult(0, b"", b"", round(timeout * 1000))
            raise AgentFailed(reason, detail.hash) from TimedOut(reason, result)
        if answer.stop_reason in FAILED:
            raise AgentFailed(f"{self._program} stopped: {answer.stop_reason}", detail.hash)
        return AgentResult(self._recorder.report, detail)

    async def _open(self, context: AgentContext) -> str:
        """Begins the session, or goes on with that of an earlier attempt; returns the prompt."""
        kept = await self._permissions.load()
        goes_on = await self._client.open(kept.session)
        kept.session = self._client.session
        await self._permissions.save()
        prompt = replace(context.prompt, answer=None)
        parts = [prompt.after_history().strip() if goes_on else prompt.text().strip()]
        done = await trio.to_thread.run_sync(_transcript, context.store, context.attempts)
        if goes_on or done:
            parts.insert(0 if goes_on else 1, INTERRUPTED)
        if done and not goes_on:
            parts.append(f"# What you had done\n\n{done}")
        if kept.answers:
            parts.append(f"# Answers of a person\n\n{permissions.notes(kept)}")
        return "\n\n".join(parts) + "\n"

    async def _detail(self, answer: Any) -> Digest:
        """Ends the turn, and puts the session so far."""
        spent = self._recorder.spent(answer, self._client.name) if answer else ()
        await self._recorder.end(spent)
        facts = self._client.facts()
        if answer is not None:
            facts["stopReason"] = answer.stop_reason
        streams = self._client.streams()
        return await trio.to_thread.run_sync(self._recorder.detail, facts, streams)


def _transcript(store: Store, attempts: Sequence[str]) -> str:
    """Returns what earlier attempts said and which tools they used."""
    lines: list[str] = []
    for turn in (one for hash in attempts for one in _turns(store, hash)):
        if said := content.text(store, turn["output"]).strip():
            lines.append(said)
        for hash in turn["toolCalls"]:
            call = store.node(hash).payload
            lines.append(f"- {call['name']} ({call.get('status', 'done')})")
    return truncate("\n".join(lines), MAX_TOLD_CHARS)


def _turns(store: Store, hash: str) -> Iterator[dict[str, Any]]:
    """Yields the turns that the detail of an attempt holds: itself, its artifacts, theirs."""
    try:
        node = store.node(hash)
    except CasfsError:  # a blob
        return
    if node.type == "react-turn":
        yield node.payload
    held = {"content": "artifacts", "react-session": "turns"}.get(node.type)
    for below in node.payload[held] if held else ():
        yield from _turns(store, below)
