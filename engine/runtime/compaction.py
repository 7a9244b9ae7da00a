"""Compaction: a summary, written by an agent, that stands for all earlier steps of a thread.

A summariser is an agent like any other, asked with a prompt of ours; the `summary` of its meta,
or without one its whole output, is the summary. Its detail is an artifact of the content node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs.agents import AgentContext, AgentFailed, AgentResult
from casfs.agents.cancellation import reraise_cancellation
from casfs.agents.messages import describe
from casfs.agents.prompt import Prompt
from casfs.digest import NodeHash
from casfs.errors import CasfsError, Invalid
from casfs.store.store import Store
from casfs.threads.threads import ThreadId
from engine import content
from engine.blocking import blocking
from engine.output.parser import extract, role_schema
from engine.runtime.attempt import AttemptFailed, detail_tokens, result_tokens
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
FACTS = "summary: the text that will stand for everything that happened so far."


@dataclass(frozen=True)
class CompactionInput:
    """The history to summarise. `step`: index of the next one; `run`: token for processes."""

    thread: ThreadId
    step: int
    run: str
    task: str
    history: PromptHistory


@dataclass(frozen=True)
class Summary:
    """A summary: the text, the content node that holds it, and the tokens that it took."""

    text: str
    content: NodeHash
    tokens: int = 0


async def summarise(
    store: Store, agent: NodeHash, compaction_input: CompactionInput, env: Mapping[str, str]
) -> Summary:
    """Asks the agent of an agent node; `store` and its secrets redact what it sees. Raises
    AttemptFailed."""
    history = compaction_input.history
    secrets = redaction.secrets_of(store)
    prompt = Prompt(
        SYSTEM,
        compaction_input.task,
        history=history.steps,
        ask=FACTS,
        schema=SCHEMA,
        summary=history.summary,
    )
    context = AgentContext(
        thread=compaction_input.thread,
        role=ROLE,
        step=compaction_input.step,
        prompt=prompt.redacted(secrets),
        workspace=None,
        store=store,
        run=compaction_input.run,
        env=env,
        agent=agent,
        secrets=secrets,
    )
    try:
        function, _ = await blocking(lambda: load_agent(store, agent))
        async with context.exit_stack:
            result = await function(context)
        if not isinstance(result, AgentResult) or not isinstance(result.output, str):
            raise TypeError(f"{type(result).__name__} is not an AgentResult with a text")
    except BaseException as error:  # third-party code may raise anything
        reraise_cancellation(error)
        ours = isinstance(error, CasfsError)
        reason = str(error) if ours else describe(error)
        detail = error.detail if isinstance(error, AgentFailed) else None
        tokens = await blocking(lambda: detail_tokens(store, detail))
        raise AttemptFailed(f"{ROLE}: {reason}", detail, tokens=tokens) from error
    return await blocking(lambda: _put_output(store, result))


def put_summary(store: Store, text: str) -> Summary:
    """Puts a summary that a person wrote. Raises Invalid for an empty one."""
    if not text.strip():
        raise Invalid("a summary must not be empty")
    return Summary(text, content.put(store, text))


def _put_output(store: Store, result: AgentResult) -> Summary:
    tokens = result_tokens(store, result)
    try:
        text = extract(result.output, role_schema(SCHEMA), store).meta["summary"]
    except Invalid:
        text = result.output.strip()
    if not text:
        raise AttemptFailed(f"{ROLE}: the output is empty", result.detail.hash, tokens=tokens)
    return Summary(text, content.put(store, text, [result.detail.hash]), tokens)
