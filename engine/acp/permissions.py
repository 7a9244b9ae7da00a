"""Whether an agent may do what it asks permission for: by the config, else by a person.

A question to a person suspends the thread. The process waits for a while, and goes on where the
answer comes (`AgentContext.ask`); else it is ended. So what is needed to go on is kept in the
thread (`AgentContext.keep`): the session, the open question, and the answers. Each holds for the
same request, once for each process that works at the step; "allow always" for all of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import trio

from casfs.agents import HUMAN, AgentContext, Waiting
from casfs.digest import Digest
from casfs.threads.permission import DENIAL
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
Ask = Callable[[Waiting], Awaitable[str | None]]


@dataclass
class Kept:
    """What outlasts an attempt. `answers`: (title, answer) by request; `always`: kinds;
    `open_question`: (request, title, kind, hash) of the open question; `agent`: hash of the agent's
    node; `turn`: of the session, where the files are those after it."""

    agent: str = ""
    session: str = ""
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    always: list[str] = field(default_factory=list)
    open_question: tuple[str, str, str, str] | None = None
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
        self._used: set[str] = set()  # requests whose answers this process has had: once each
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
        question = kept.open_question
        # Only where the answer is to this question: a crash may come between two of them.
        if question and len(question) == 4 and context.answer and context.question == question[3]:
            self._take(context.answer)
        kept.open_question = None
        return kept

    def _take(self, answer: str) -> None:
        """Keeps an answer to the open question."""
        kept = self._kept
        assert kept.open_question is not None
        request, title, kind, _ = kept.open_question
        kept.answers[request] = title, answer
        if wanted(answer) == ALWAYS:
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
            if key in kept.answers and key not in self._used:
                self._used.add(key)
                choice = wanted(kept.answers[key][1])
            elif rule != ASK or kind in kept.always:
                choice = REJECT if rule == DENY else ONCE
            # It was not answered in time: the next answer is for that question.
            elif kept.open_question is not None:
                return None
            else:
                answer = await self._answer(key, title, kind, about)
                if answer is None:
                    return None
                choice = wanted(answer)
        options = {option.kind: option.option_id for option in reversed(request.options)}
        return next(
            (options[option_kind] for option_kind in choice if option_kind in options), None
        )

    async def _answer(
        self, key: str, title: str, kind: str, about: Mapping[str, Any]
    ) -> str | None:
        """Returns what a person answers; None where the agent did not wait for it. Raises
        Waiting."""
        kept = self._kept
        title = self._context.secrets.redact(title)[:MAX_TITLE_CHARS]
        why = await trio.to_thread.run_sync(self._question, title, kind, about)
        kept.open_question = key, title, kind, str(why.question)
        await self.save()
        try:
            answer = await self._ask(why)
        except Waiting:
            raise
        except BaseException:
            kept.open_question = None  # it was never shown
            raise
        if answer is not None:
            self._take(answer)
            self._used.add(key)
            if ANSWERS.get(_plain(answer)) is None:
                self._untold.append((title, answer.removeprefix(DENIAL)))
        kept.open_question = None
        await self.save()
        return answer

    def _question(self, title: str, kind: str, about: Mapping[str, Any]) -> Waiting:
        # Not at the top: `casfs agent list` imports all agents, and this reads trees.
        from engine.acp import permission_request

        context = self._context
        context.secrets.look_again()
        request = permission_request.read(
            about, title, kind, workspace=context.workspace, redact=context.secrets.redact
        )
        stored = content.put(context.store, json.dumps(asdict(request), ensure_ascii=False))
        hash = content.put(context.store, request.text, [stored])
        line = f"{context.role}: may it do this? {request.title}"
        return Waiting(HUMAN, line, hash, keeps_workspace=True)


def wanted(answer: str) -> Sequence[str]:
    """Returns the kinds of options that an answer chooses, the first that an agent has."""
    if answer.startswith(DENIAL):
        return REJECT
    return ANSWERS.get(_plain(answer), REJECT)


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
