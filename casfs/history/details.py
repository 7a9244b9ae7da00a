"""What is known of the author of a line or change, as JSON: step, role, agent, tool call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from casfs.errors import CasfsError
from casfs.history.blame import Line
from casfs.history.version import PERSON, Version
from casfs.store.store import Store
from casfs.threads.summary import content_text, first_line

# (turn, tool), paths, and the lines of the texts that it was given
_Call = tuple[tuple[int, str], list[str], set[str]]


def version(store: Store, version: Version) -> dict[str, Any]:
    """Returns a version; what its nodes do not tell, or not any more, is null."""
    package = None
    config: dict[str, Any] = {}
    with suppress(CasfsError):
        agent = store.node(version.agent or "", "agent").payload
        package = agent["package"]
        config = agent["config"]
    return {
        "revision": version.revision,
        "hash": version.hash,
        "step": version.index,
        "role": version.role,
        "agent": package,
        "model": config.get("model"),
        "message": version.message,
        "recordedAt": version.recorded_at,
        "prompt": _prompt(store, version),
    }


def _prompt(store: Store, version: Version) -> str | None:
    """Returns the first line of what a person has asked an outside agent for; None of others, and
    of what the person has changed."""
    if version.prompt is None or version.role == PERSON:
        return None
    with suppress(CasfsError):
        turn = store.node(version.prompt, "react-turn").payload
        return first_line(content_text(store, turn["input"]))
    return None


def lines(store: Store, lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """Yields lines with their versions, and the last tool call of a `react-session` that has the
    path of the file and the text of the line."""
    known: dict[tuple[str, str], tuple[dict[str, Any], list[Any]]] = {}
    for line in lines:
        # In a session the state before a call, a person's, has the name of the call.
        name = (line.version.revision, line.version.role)
        path = os.fsdecode(line.path)
        if name not in known:
            known[name] = version(store, line.version), list(_calls(store, line.version.detail))
        text = None if line.text is None else os.fsdecode(line.text).rstrip("\r\n")
        same = (
            turn_tool
            for turn_tool, paths, texts in known[name][1]
            if path in paths and text in texts
        )
        call = line.version.call or next(same, (None, None))
        if line.version.role == PERSON:
            call = (None, None)
        value = {"line": line.number, "text": text, "path": path, "version": known[name][0]}
        yield {**value, "turn": call[0], "tool": call[1]}


def _calls(store: Store, detail: str | None) -> Iterator[_Call]:
    """Yields the calls of a step, the last first."""
    with suppress(CasfsError):
        session = store.node(detail or "", "react-session").payload
        for number, turn in reversed([*enumerate(session["turns"], 1)]):
            for hash in reversed(store.node(turn).payload["toolCalls"]):
                # What a model says may be anything: such a call wrote no line, but others did.
                with suppress(CasfsError, ValueError, AttributeError):
                    yield _call(store, number, store.node(hash).payload)


def _call(store: Store, turn: int, call: Any) -> _Call:
    arguments = json.loads(content_text(store, call["arguments"]))
    diffs = call.get("diffs") or ()
    texts = [store.get(diff["new"]).decode() for diff in diffs]
    texts += [argument for argument in arguments.values() if isinstance(argument, str)]
    paths = [arguments.get("path"), *(diff["path"] for diff in diffs)]
    lines: set[str] = set()
    for text in filter(None, texts):  # an empty one has no line, not one that is empty
        lines.update(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))
    return (turn, call["name"]), paths, lines
