"""A thread as it goes on, in lines; on a terminal the last is the running step, with its time."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from casfs.cli.terminal import columns, paint
from casfs.cli.thread.follow import (
    Event,
    Finished,
    FollowedAttempt,
    Output,
    Started,
    Suspended,
    Turn,
)
from casfs.cli.thread.log import print_event
from casfs.cli.thread.show import attempt_note, step_fields, step_line
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.system.safe_text import escape
from casfs.threads import live_output, threads
from casfs.threads.state import state
from casfs.threads.summary import content_text
from casfs.threads.threads import RUNNING, StepNode, Thread

MAX_OVERLAP_CHARS = 4096


class Screen:
    """Prints events on stdout; or on stderr, without turns and with the program's name."""

    def __init__(self, store: Store, thread: Thread, *, err: bool = False) -> None:
        self._store = store
        self._err = err
        self._tree = threads.start(store, thread).payload["workspace"]
        self._moves = not err and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._status = ""
        self._live = False
        self._at_start = True
        self._shown: set[str] = set()  # turns of the attempt, and their outputs
        self.attempt = FollowedAttempt()  # a person may answer in the middle of it

    def show(self, event: Event) -> None:
        match event:
            case Finished(node, shown):
                self._finished(node, shown)
            case Started(step):
                self._shown = set()
                self._live = False
                self._line(f"{step['index']} {step['role']}: started{attempt_note(step)}", "cyan")
            case Output(_, text):
                self._live = True
                self._write(text, dim=True)
            case Turn(turn) if not self._err and turn["hash"] not in self._shown:
                self._turn(turn, self._store.node(turn["hash"]))
            case Suspended() if not self._err:
                self.clear()
                print_event(self._store, event)

    def tick(self, thread: Thread) -> None:
        """Brings the last line up to date."""
        step = thread.pending
        if self._moves and self._at_start and step and thread.status == RUNNING:
            past = time.time() - step.get("since", 0) / 1000
            text = f"step {step['index']} {step['role']}: {state(thread)}, {past:.0f} s"
            for call in live_output.tools(self._store.root, step.get("run")).calls[-1:]:
                text += f" {live_output.tool_line(call)}"
            if text != self._status:
                shown = escape(text, one_line=True)[: columns() - 1]
                self._put(f"\r{paint(shown, colour=None, dim=True)}\x1b[K")
                self._status = text

    def clear(self) -> None:
        """Takes the last line away, and ends one that an agent has left open."""
        self._write("" if self._at_start else "\n")

    def _turn(self, turn: Mapping[str, Any], node: Node[Any]) -> None:
        if node.type == "react-turn":
            self._shown.add(node.hash)
            output = node.payload["output"]
            if not self._live and (text := content_text(self._store, output).strip()):
                self._shown.add(output)
                self._write(text + "\n", dim=True)
            if tools := [
                self._store.node(call_hash).payload["name"]
                for call_hash in node.payload["toolCalls"]
            ]:
                self._line(f"{turn['index']} {turn['role']}: {', '.join(tools)}", "cyan")

    def _finished(self, node: StepNode, shown: str) -> None:
        step = step_fields(self._store, node, self._tree)
        text = content_text(self._store, node.payload["content"])
        if (shown or not self._err) and node.payload["content"] not in self._shown:
            self._write(_without_shown(text, shown), dim=bool(shown))
        self._tree = step["workspace"]
        name, *facts = re.split(" {2,}", step_line(step).strip())
        self._line(f"{name}: {', '.join(facts)}", "red" if step["status"] == "failed" else "green")

    def _line(self, text: str, colour: str) -> None:
        self.clear()
        line = escape(f"step {text}", one_line=True)
        self._put(f"casfs: {line}\n" if self._err else f"{paint(line, colour)}\n")

    def _write(self, text: str, dim: bool = False) -> None:
        self._put("\r\x1b[K" * bool(self._status))
        self._status = ""
        self._at_start = text.endswith("\n") if text else self._at_start
        self._put(escape(text) if self._err else paint(escape(text), colour=None, dim=dim))

    def _put(self, text: str) -> None:
        click.echo(text.encode("utf-8", "replace"), nl=False, err=self._err)


def _without_shown(text: str, shown: str) -> str:
    """Returns a text without what ends what was shown: a program may have printed more before it,
    and the rest of it after it was looked at last."""
    if text.startswith(shown):
        return text[len(shown) :]
    end = shown[-MAX_OVERLAP_CHARS:]
    lengths = range(min(len(text), len(end)), 0, -1)
    return text[next((length for length in lengths if end.endswith(text[:length])), 0) :]
