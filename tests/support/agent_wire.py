"""The wire formats in which agents ask their models: what is asked, and the answer as events.

Chat completions (opencode, qwen, hermes), responses (codex), messages (claude) and
generateContent (gemini), each as far as these agents use it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Event = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """`turns`: (user or result, text), oldest first; `tools`: the parameters of each tool; `text`:
    the whole request."""

    turns: list[tuple[str, str]]
    tools: dict[str, list[str]]
    text: str


@dataclass(frozen=True)
class Answer:
    """`call`: id, tool and arguments of the one tool call, if any."""

    said: str
    call: tuple[str, str, dict[str, Any]] | None = None


class WireFormat(Protocol):
    def fits(self, path: str) -> bool: ...
    def streams(self, path: str, body: Mapping[str, Any]) -> bool: ...
    def read(self, body: Mapping[str, Any]) -> Asked: ...
    def write(self, answer: Answer, given: int, got: int) -> list[Event]: ...
    def whole(self, events: list[Event]) -> Event: ...


_ids = itertools.count(1)  # agents join what has the same


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _asked(body: Mapping[str, Any], turns: Iterable[tuple[str, str]], tools: Any) -> Asked:
    known = {name: list((schema or {}).get("properties", {})) for name, schema in tools}
    return Asked(list(turns), known, json.dumps(body, ensure_ascii=False).replace("\\n", "\n"))


class Chat:
    def fits(self, path: str) -> bool:
        return path == "/v1/chat/completions"

    def streams(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def read(self, body: Mapping[str, Any]) -> Asked:
        kinds = {"user": "user", "tool": "result"}
        turns = [
            (kinds[one["role"]], _text(one["content"]))
            for one in body["messages"]
            if one["role"] in kinds
        ]
        functions = [one["function"] for one in body.get("tools", ())]
        return _asked(body, turns, [(one["name"], one["parameters"]) for one in functions])

    def write(self, answer: Answer, given: int, got: int) -> list[Event]:
        deltas: list[Event] = [{"role": "assistant", "content": answer.said}]
        if answer.call:
            id, name, arguments = answer.call
            function = {"name": name, "arguments": json.dumps(arguments)}
            head = {"index": 0, "id": id, "type": "function", "function": function}
            deltas.append({"tool_calls": [head]})
        finish = "tool_calls" if answer.call else "stop"
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        figures = {"prompt_tokens": given, "completion_tokens": got, "total_tokens": given + got}
        base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        events: list[Event] = [{**base, "choices": [one]} for one in choices]
        return [*events, {**base, "choices": [], "usage": figures}]

    def whole(self, events: list[Event]) -> Event:
        said = events[0]["choices"][0]["delta"]
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        answer = {"object": "chat.completion", "choices": [choice], "usage": events[-1]["usage"]}
        return {**events[0], **answer}


class Responses:
    def fits(self, path: str) -> bool:
        return path == "/v1/responses"

    def streams(self, path: str, body: Mapping[str, Any]) -> bool:
        return True

    def read(self, body: Mapping[str, Any]) -> Asked:
        turns = []
        for one in body["input"]:
            if one["type"] == "message" and one["role"] == "user":
                turns.append(("user", _text(one["content"])))
            elif one["type"] == "agent_message":
                sealed = [part.get("encrypted_content", "") for part in one["content"]]
                turns.append(("user", _text(one["content"]) + "".join(sealed)))
            elif one["type"].endswith("_call_output"):
                turns.append(("result", json.dumps(one["output"])))
        tools = []
        for one in body.get("tools", ()):
            prefix = f"{one['name']}." if one["type"] == "namespace" else ""
            members = one["tools"] if prefix else [one] if one["type"] == "function" else ()
            tools += [(prefix + member["name"], member["parameters"]) for member in members]
        return _asked(body, turns, tools)

    def write(self, answer: Answer, given: int, got: int) -> list[Event]:
        answer_id = f"r_{next(_ids)}"
        content = [{"type": "output_text", "text": answer.said}]
        items: list[Event] = [
            {"type": "message", "role": "assistant", "id": f"m_{next(_ids)}", "content": content}
        ]
        if answer.call:
            id, name, arguments = answer.call
            call = {"call_id": id, "name": name, "arguments": json.dumps(arguments)}
            if "." in name:
                call["namespace"], _, call["name"] = name.partition(".")
            items.append({"type": "function_call", "id": f"f{id}", **call})
        figures = {
            "input_tokens": given,
            "input_tokens_details": None,
            "output_tokens": got,
            "output_tokens_details": None,
            "total_tokens": given + got,
        }
        done = [
            {"type": "response.output_item.done", "output_index": at, "item": item}
            for at, item in enumerate(items)
        ]
        return [
            {"type": "response.created", "response": {"id": answer_id}},
            *done,
            {"type": "response.completed", "response": {"id": answer_id, "usage": figures}},
        ]

    def whole(self, events: list[Event]) -> Event:
        raise NotImplementedError


class Messages:
    def fits(self, path: str) -> bool:
        return path in ("/v1/messages", "/v1/messages/count_tokens")

    def streams(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def read(self, body: Mapping[str, Any]) -> Asked:
        turns = []
        for one in body["messages"]:
            parts = one["content"]
            parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
            for part in parts if one["role"] == "user" else ():
                kind = "result" if part["type"] == "tool_result" else "user"
                turns.append((kind, str(part.get("text", ""))))
        tools = [(one["name"], one.get("input_schema")) for one in body.get("tools", ())]
        return _asked(body, turns, tools)

    def write(self, answer: Answer, given: int, got: int) -> list[Event]:
        text = {"type": "text_delta", "text": answer.said}
        blocks: list[tuple[Event, Event]] = [({"type": "text", "text": ""}, text)]
        if answer.call:
            id, name, arguments = answer.call
            start = {"type": "tool_use", "id": id, "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            blocks.append((start, delta))
        figures = {"input_tokens": given, "output_tokens": 1}
        base = {
            "id": f"msg_{next(_ids)}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
        }
        message = {**base, "content": [], "stop_reason": None, "stop_sequence": None}
        events: list[Event] = [{"type": "message_start", "message": {**message, "usage": figures}}]
        for index, (start, delta) in enumerate(blocks):
            events += [
                {"type": "content_block_start", "index": index, "content_block": start},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        reason = {"stop_reason": "tool_use" if answer.call else "end_turn", "stop_sequence": None}
        last = {"type": "message_delta", "delta": reason, "usage": {"output_tokens": got}}
        return [*events, last, {"type": "message_stop"}]

    def whole(self, events: list[Event]) -> Event:
        said = [{"type": "text", "text": events[2]["delta"]["text"]}]
        figures = {**events[0]["message"]["usage"], **events[-2]["usage"]}
        message = {**events[0]["message"], **events[-2]["delta"], "content": said}
        return {**message, "usage": figures}


class GenerateContent:
    def fits(self, path: str) -> bool:
        return path.endswith(("enerateContent", "countTokens"))

    def streams(self, path: str, body: Mapping[str, Any]) -> bool:
        return path.endswith(":streamGenerateContent")

    def read(self, body: Mapping[str, Any]) -> Asked:
        turns = []
        for one in body["contents"]:
            for part in one["parts"] if one.get("role") == "user" else ():
                kind = "result" if "functionResponse" in part else "user"
                turns.append((kind, str(part.get("text", ""))))
        groups = [one.get("functionDeclarations", ()) for one in body.get("tools", ())]
        functions = [one for group in groups for one in group]
        schemas = [(one["name"], one.get("parametersJsonSchema")) for one in functions]
        return _asked(body, turns, schemas)

    def write(self, answer: Answer, given: int, got: int) -> list[Event]:
        parts: list[Event] = [{"text": answer.said}]
        if answer.call:
            id, name, arguments = answer.call
            parts.append({"functionCall": {"id": id, "name": name, "args": arguments}})
        figures = {
            "promptTokenCount": given,
            "candidatesTokenCount": got,
            "totalTokenCount": given + got,
        }
        content = {"role": "model", "parts": parts}
        candidate = {"index": 0, "content": content, "finishReason": "STOP"}
        return [{"candidates": [candidate], "usageMetadata": figures, "modelVersion": "scripted"}]

    def whole(self, events: list[Event]) -> Event:
        return events[0]


FORMATS: tuple[WireFormat, ...] = (Chat(), Responses(), Messages(), GenerateContent())
