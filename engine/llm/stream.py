"""Assembles the reply of a chat model from its stream.

Text comes in deltas, a tool call in pieces under its index, the token counts with the last of
them or alone. The counts are the server's own, 0 from one that sends none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs.errors import Failed

MAX_ANSWER_CHARS = 32 << 20


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a model; `arguments` is text, which may not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """`finish`: the server's reason why the model stopped: `stop`, `length`, `tool_calls`."""

    text: str
    calls: tuple[ToolCall, ...]
    input_tokens: int
    output_tokens: int
    latency_ms: int
    finish: str | None

    @property
    def cut(self) -> bool:
        return self.finish == "length"


class ReplyBuilder:
    """Builds a Reply from the events of a stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._usage: Mapping[str, Any] = {}
        self._size = 0
        self.finish: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> None:
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            self._take(choice.get("delta") or {})
            self.finish = choice.get("finish_reason") or self.finish

    def whole(self, answer: Mapping[str, Any]) -> None:
        """Takes the whole answer of a server that does not stream."""
        self._usage = answer.get("usage") or {}
        for choice in answer.get("choices") or ():
            self._take(choice.get("message") or {})
            self.finish = choice.get("finish_reason")

    def _take(self, delta: Mapping[str, Any]) -> None:
        text = delta.get("content")
        if isinstance(text, str):
            self._grow(text)
            self._text.append(text)
        for index, piece in enumerate(delta.get("tool_calls") or ()):
            self._piece(piece.get("index", index), piece)

    def _piece(self, index: int, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        old = self._calls.get(index, ToolCall("", "", ""))
        arguments = function.get("arguments") or ""
        self._grow(arguments)
        self._calls[index] = ToolCall(
            piece.get("id") or old.id,
            old.name + (function.get("name") or ""),
            old.arguments + arguments,
        )

    def _grow(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_ANSWER_CHARS:
            raise Failed(f"an answer of more than {MAX_ANSWER_CHARS >> 20} MiB")

    def reply(self, latency_ms: int) -> Reply:
        calls = [
            ToolCall(call.id or f"call_{index}", call.name, call.arguments)
            for index, call in sorted(self._calls.items())
        ]
        return Reply(
            "".join(self._text),
            tuple(calls),
            input_tokens=_count(self._usage.get("prompt_tokens")),
            output_tokens=_count(self._usage.get("completion_tokens")),
            latency_ms=latency_ms,
            finish=self.finish,
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
