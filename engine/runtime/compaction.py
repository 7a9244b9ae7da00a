"""Summaries that stand for the past of a thread, made by an agent.

A summariser is an agent like any other, asked with a prompt of our own; what it reports, or if
it reports nothing, what it said, is the summary. Its own record is kept beside the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs.agents import AgentContext, AgentFailed
from casfs.agents.prompt import Prompt
from casfs.errors import CasfsError, Invalid
from casfs.store import Store
from engine import content
from engine.agents.loader import AGENT_ERRORS
from engine.blocking import blocking
from engine.output_parser import extract, role_schema
from engine.runtime.attempt import AttemptFailed
from engine.runtime.thread_config import load_agent
from engine.secrets import redaction
from engine.threads.history import PromptHistory

ROLE = "__compact__"
SCHEMA: dict[str, Any] = {
    "name": "summary",
    "type": "object",
    "properties": {"summary": {"type": "string", "minLength": 1}},
    "required": ["summary"],
}
SYSTEM = (
    "You summarise the work of a team for those who go on with it. They will not see the steps "
    "that you see. Keep what was decided and why, what was tried and failed, names, paths and "
    "digests that are needed again, and what is still open. Leave out how it was said."
)
ASK = "summary: the text that will stand for everything that happened so far."


@dataclass(frozen=True)
class CompactionInput:
    """What is to be summarised. `run`: the token for processes; `step`: the one to come."""

    thread: str
    step: int
    run: str
    task: str
    past: PromptHistory


@dataclass(frozen=True)
class Summary:
    """A summary: the text, and the content node that holds it."""

    text: str
    content: str


async def summarise(
    store: Store, agent: str, subject: CompactionInput, env: Mapping[str, str]
) -> Summary:
    """Ask the agent of an agent node. What `store` hides it is not told. Raises TryFailed."""
    past = subject.past
    hidden = redaction.secrets_of(store)
    prompt = Prompt(SYSTEM, subject.task, past.turns, ASK, SCHEMA, summary=past.summary)
    context = AgentContext(
        thread=subject.thread,
        role=ROLE,
        step=subject.step,
        prompt=prompt.redacted(hidden),
        workspace=None,
        store=store,
        run=subject.run,
        env=env,
        agent=agent,
        secrets=hidden,
    )
    try:
        function = await blocking(lambda: load_agent(store, agent))
        result = await function(context)
    except AGENT_ERRORS as error:
        what = str(error) if isinstance(error, CasfsError) else repr(error)
        detail = error.detail if isinstance(error, AgentFailed) else None
        raise AttemptFailed(f"{ROLE}: {what}", detail) from error
    return await blocking(lambda: _kept(store, result.output, result.detail.hash))


def put_summary(store: Store, text: str) -> Summary:
    """A summary that a person wrote. Raises Invalid for one that says nothing."""
    if not text.strip():
        raise Invalid("a summary must not be empty")
    return Summary(text, content.put(store, text))


def _kept(store: Store, output: str, detail: str) -> Summary:
    try:
        text = extract(output, role_schema(SCHEMA), store).meta["summary"]
    except Invalid:
        text = output.strip()
    if not text:
        raise AttemptFailed(f"{ROLE}: it said nothing", detail)
    return Summary(text, content.put(store, text, [detail]))
