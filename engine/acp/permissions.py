"""Whether an agent may do what it asks permission for: by the config, else by a person.

A question to a person suspends the thread. The process waits for a while, and goes on where the
answer comes (`AgentContext.ask`); else it is ended. So what is needed to go on is kept in the
thread (`AgentContext.keep`): the session, the open question, and the answers. They hold for the
same request, as long as the step is pending; "allow always" for all requests of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import trio

from casfs.agents import HUMAN, AgentContext, Waiting
from casfs.digest import Digest
from engine import content
from engine.acp import protocol

ALLOW = "allow"
ASK = "ask"
DENY = "deny"
ONCE = ("allow_once", "allow_always")
ALWAYS = ("allow_always", "allow_once")
REJECT = ("reject_once", "reject_always")
ANSWERS = {
    **dict.fromkeys(("allow", "allow once", "yes", "y", "ok"), ONCE),
    **dict.fromkeys(("allow always", "always", "a"), ALWAYS),
    **dict.fromkeys(("deny", "no", "n"), REJECT),
}
DECISIVE = ("title", "kind", "rawInput", "content", "locations")  # what a request is about
MAX_TITLE_CHARS = 300
REASON = "You asked: "  # begins what a person has said in place of a permission
Policy = str | Mapping[str, str]
Ask = Callable[[Waiting], Awaitable[str]]


@dataclass
class Kept:
    """What outlasts an attempt. `answers`: (title, answer) by request; `always`: kinds;
    `open_question`: (request, title, kind) of the open question; `agent`: hash of the agent's node;
    `turn`: of the session, where the files are those after it."""

    agent: str = ""
    session: str = ""
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    always: list[str] = field(default_factory=list)
    open_question: tuple[str, str, str] | None = None
    turn: int = 0


class Permissions:
    """The permissions of one attempt."""

    def __init__(self, context: AgentContext, policy: Policy, ask: Ask) -> None:
        """`ask`: as that of the context."""
        self._context = context
        self._policy = policy
        self._ask = ask
        self._asking = trio.Lock()  # a person gets one question at a time
        self._kept = Kept(context.agent)
        self._untold: list[tuple[str, str]] = []

    async def load(self) -> Kept:
        """Returns what earlier attempts of this agent at the step kept, with the new answer."""
        context = self._context
        kept = self._kept
        if context.kept is not None:
            text = await trio.to_thread.run_sync(content.text, context.store, context.kept)
            with suppress(ValueError, TypeError, KeyError):  # another agent's
                kept_fields = json.loads(text)
                kept = Kept(**kept_fields) if kept_fields["agent"] == context.agent else kept
        self._kept = kept
        if kept.open_question is not None and context.answer is not None:
            self._take(context.answer)
        kept.open_question = None
        return kept

    def _take(self, answer: str) -> None:
        """Keeps an answer to the open question."""
        kept = self._kept
        assert kept.open_question is not None
        request, title, kind = kept.open_question
        kept.answers[request] = title, answer
        if ANSWERS.get(_plain(answer)) == ALWAYS:
            kept.always.append(kind)

    def take_reasons(self) -> str:
        """Returns what a person has said in place of a permission since the last call, for the
        agent: the protocol has no room for it."""
        reasons = _notes(self._untold)
        self._untold = []
        return reasons

    async def save(self) -> None:
        text = json.dumps(asdict(self._kept), ensure_ascii=False)
        store = self._context.store
        await self._context.keep(await trio.to_thread.run_sync(content.put, store, text))

    async def choose(self, params: Any) -> str | None:
        """Returns the id of the option to choose for a request, None to cancel it. Raises Waiting,
        Invalid."""
        request = protocol.read("RequestPermissionRequest", params)
        kept = self._kept
        call = request.tool_call
        title = call.title or call.kind or "a tool"
        kind = call.kind or "other"
        about = {name: params["toolCall"].get(name) for name in DECISIVE}
        if not any(about.values()):
            about["toolCallId"] = call.tool_call_id
        about = self._context.secrets.redact_json(about)
        key = Digest.of(json.dumps(about, sort_keys=True).encode()).hash
        rule = find_rule(self._policy, title, kind)
        async with self._asking:
            if rule == ASK and key not in kept.answers and kind not in kept.always:
                # It was not answered in time: the next answer is for that question.
                if kept.open_question is not None:
                    return None
                title = self._context.secrets.redact(title)[:MAX_TITLE_CHARS]
                kept.open_question = key, title, kind
                await self.save()
                await self._ask_person(title, kind, about)
        if key in kept.answers:
            wanted = ANSWERS.get(_plain(kept.answers[key][1]), REJECT)
        else:
            wanted = REJECT if rule == DENY else ONCE
        options = {option.kind: option.option_id for option in reversed(request.options)}
        return next(
            (options[option_kind] for option_kind in wanted if option_kind in options), None
        )

    async def _ask_person(self, title: str, kind: str, about: Mapping[str, Any]) -> None:
        """Raises Waiting."""
        why = await trio.to_thread.run_sync(self._question, title, kind, about)
        answer = await self._ask(why)
        self._take(answer)
        if _plain(answer) not in ANSWERS:
            self._untold.append((title, answer))
        self._kept.open_question = None
        await self.save()

    def _question(self, title: str, kind: str, about: Mapping[str, Any]) -> Waiting:
        # Not at the top: `casfs agent list` imports all agents, and this reads trees.
        from engine.acp import permission_request

        context = self._context
        request = permission_request.read(about, title, kind, context.workspace)
        # The files around a change may hold what the agent has not sent.
        request = replace(request, patch=context.secrets.redact(request.patch))
        stored = content.put(context.store, request.encode())
        hash = content.put(context.store, request.text, [stored])
        line = f"{context.role}: may it do this? {title}"
        return Waiting(HUMAN, line, hash, keeps_workspace=True)


def find_rule(policy: Policy, title: str, kind: str) -> str:
    """Returns the rule for a tool: the strictest of those for its kind, its title and the first
    word of that; else that for `*`; else `ask`."""
    if isinstance(policy, str):
        return policy
    words = title.split()
    names = {kind, title, *(word.rstrip(":") for word in words[:1])}
    rules = [policy[name] for name in names if name in policy] or [policy.get("*", ASK)]
    return max(rules, key=(ALLOW, ASK, DENY).index)


def notes(kept: Kept) -> str:
    """Returns what a person answered, for the agent."""
    return _notes(kept.answers.values())


def _notes(answers: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{REASON}{title}\nAnswer: {said}" for title, said in answers)


def _plain(answer: str) -> str:
    return " ".join(answer.lower().replace(".", " ").replace("_", " ").split())
