"""The session of a reactor: its conversation, and the record of every call (seed 002).

One model call is a `react-turn`, one tool call a `react-tool-call`; each is put as soon as it is
over and reported to the engine, so it can be watched. A turn holds only the messages that were
*new* in it: the earlier conversation is in the earlier turns, so a session costs its length, not
its square. The totals are sums of the server's counts.

The conversation is kept in `context.conversation`: a correction is its next turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentResult
from casfs.digest import Digest
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.trees import recorded_state
from engine import content
from engine.llm.client import Message
from engine.llm.stream import Reply, ToolCall

NO_TREES: Mapping[str, str] = {}
PROMPT_MESSAGES = 2  # with which a conversation begins


class ReactSession:
    """The record of one attempt, and the conversation that all attempts of a step share."""

    def __init__(
        self, context: AgentContext, output_format: bool = True, instructions: Sequence[str] = ()
    ) -> None:
        """`output_format`: tell the model how to write the meta; `instructions`: for the system
        prompt."""
        self._context = context
        self._turns: list[str] = []
        self._trees: dict[str, str] = {}  # members of the current turn
        self._tokens = 0
        self._begin = time.monotonic()
        self._saved = 0  # messages in this session's turns, the first of which has all before it
        self.messages: list[Message] = context.conversation.setdefault("messages", [])
        self._recorded = len(self.messages)  # in earlier turns
        prompt = context.prompt
        if self.messages and prompt.correction:
            self.append("user", prompt.correction_text())
        else:
            self.messages.clear()
            self._recorded = 0
            self.append("system", "\n\n".join([prompt.system.strip(), *instructions]))
            self.append("user", prompt.user_message(output_format))
            if context.kept:  # of a fork within the step
                self._turns += context.store.node(context.kept, content.TYPE).payload["artifacts"]
                self.messages += recorded_messages(context.store, self._turns)[PROMPT_MESSAGES:]
                self._recorded = self._saved = len(self.messages)

    def append(self, role: str, text: str, **fields: Any) -> None:
        self.messages.append({"role": role, "content": text, **fields})

    async def record_turn(
        self, reply: Reply, calls: Sequence[str] = (), results: Sequence[Message] = ()
    ) -> None:
        """Puts a turn: the new messages before it, the reply, its tool calls and their `results`,
        which follow in the conversation; reports it."""
        new = "\n\n".join(map(_message_text, self.messages[self._recorded :]))
        requested = [_tool_call_message(call) for call in reply.calls]
        fields = {"tool_calls": requested} if requested else {}
        self.append("assistant", reply.text, **fields)
        self._recorded = len(self.messages)
        self.messages += results
        if not calls:
            await self._context.record_tree(self._trees)
        trees = self._trees
        self._trees = {}
        if trees:  # and of turns before that have none, since they could not be recorded
            said = self.messages[self._saved :]
            self._saved = len(self.messages)
            trees["messages"] = json.dumps(self._context.secrets.redact_json(said))
        store = self._context.store
        hash = await trio.to_thread.run_sync(put_turn, store, new, reply, calls, trees)
        self._turns.append(hash)
        self._tokens += reply.input_tokens + reply.output_tokens
        await self._context.turn(hash)

    async def record_tool_call(self, name: str, arguments: str, result: str, begin: float) -> str:
        duration = round((time.monotonic() - begin) * 1000)
        tree = await self._context.record_tree(self._trees)

        def put() -> str:
            with self._context.store.batch() as batch:
                arguments_hash = content.put(batch, arguments)
                got = content.put(batch, result)
                payload = {"name": name or "?", "arguments": arguments_hash, "result": got, **tree}
                return batch.put_node("react-tool-call", {**payload, "durationMs": duration}).hash

        return await trio.to_thread.run_sync(put)

    def detail(self) -> Digest:
        """Puts the session so far."""
        payload = {
            "agent": self._context.agent,
            "role": self._context.role,
            "turns": list(self._turns),
            "totalTokens": self._tokens,
            "durationMs": round((time.monotonic() - self._begin) * 1000),
        }
        return self._context.store.put_node("react-session", payload)

    async def result(self, output: str, artifacts: Sequence[str] = ()) -> AgentResult:
        detail = await trio.to_thread.run_sync(self.detail)
        return AgentResult(output, detail, tuple(dict.fromkeys(artifacts)))

    async def failure(self, error: CasfsError) -> AgentFailed:
        """Returns the error with the session so far as its detail."""
        detail = await trio.to_thread.run_sync(self.detail)
        return AgentFailed(str(error), detail.hash)


def put_turn(
    store: Store, new: str, reply: Reply, calls: Sequence[str], trees: Mapping[str, str] = NO_TREES
) -> str:
    """Puts a `react-turn`; `new`: the messages since the turn before; `trees`: members of it."""
    with store.batch() as batch:
        messages_member = {"messages": content.put(batch, trees["messages"])} if trees else {}
        payload = {
            "input": content.put(batch, new),
            "output": content.put(batch, _reply_text(reply)),
            "toolCalls": list(calls),
            "tokens": {"input": reply.input_tokens, "output": reply.output_tokens},
            "latencyMs": reply.latency_ms,
            **trees,
            **messages_member,
        }
        return recorded_state.put_turn(batch, payload).hash


def recorded_messages(store: Store, turns: Sequence[str]) -> list[Message]:
    """Returns the conversation of turns that recorded it."""
    kept = (store.node(hash, "react-turn").payload.get("messages") for hash in turns)
    return [message for hash in kept if hash for message in json.loads(content.text(store, hash))]


def _tool_call_message(call: ToolCall) -> dict[str, Any]:
    """Returns a tool call in the form of the conversation."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _message_text(message: Message) -> str:
    return f"[{message['role']}]\n{message['content']}"


def _reply_text(reply: Reply) -> str:
    """Returns a reply as text; its tool calls, recorded in the turn, only by name."""
    names = [f"[calls {call.name}]" for call in reply.calls]
    return "\n".join([reply.text, *names] if reply.text else names)
