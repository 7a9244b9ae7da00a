"""A small thread with everything that the mount shows, written without the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from casfs.backend.protocols import Head
from casfs.digest import Digest
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Symlink
from casfs.store.store import Store
from casfs.threads import threads
from casfs.trees.recorded_state import RecordedState

RULES = [
    {"from": "__start__", "to": "planner", "when": None},
    {"from": "planner", "to": "__end__", "when": None},
]
TASK = "Fix the parser.\nIt drops the last line.\n"
STARTED = 1_700_000_000_000  # ms


@dataclass
class Example:
    store: Store
    id: str
    head: Head
    start: str
    workflow: str
    agent: str
    tree: str
    steps: list[str]

    @property
    def name(self) -> str:
        return f"threads/{self.id}"

    def _put(self, type: str, payload: dict[str, Any]) -> str:
        return self.store.put_node(type, payload).hash

    def move(self, hash: str, **record: Any) -> None:
        """Move the head as the engine would: nodes first, then the head."""
        updated = self.head.record["updatedAt"] + 1000
        new = Head(hash, {**self.head.record, "updatedAt": updated, **record})
        with self.store.batch() as batch:
            batch.swap(self.name, self.head, new)
        self.head = new

    def step(
        self,
        role: str,
        text: str,
        *,
        detail: str = "",
        artifacts: list[str] | None = None,
        changes: str | None = None,
        attempts: list[str] | None = None,
        children: list[str] | None = None,
        state: RecordedState | None = None,
        **more: Any,
    ) -> str:
        """Record one more step, of a directory with `state`, and return its hash."""
        index = len(self.steps) + 1
        content = self._put("content", {"text": text, "artifacts": artifacts or []})
        hash = self._put(
            "thread-step",
            {
                "index": index,
                "role": role,
                "meta": {"status": "planned", "phases": []},
                "content": content,
                "detail": detail or content,
                "agent": self.agent,
                "start": self.start,
                "previous": self.steps[-1] if self.steps else None,
                "ancestors": self.steps[:-1][::-1][:10],
                "compact": None,
                "childThreads": children or [],
                "attempts": attempts or [],
                "extraction": "block",
                "workspace": self.tree if state is None else state.tree,
                "changes": changes,
                "startedAt": STARTED,
                "completedAt": STARTED + 1000 * index,
                **more,
            },
        )
        if state is not None and state.local is not None:
            with self.store.batch() as batch:
                local_trees.put(batch, hash, LocalTree(state.local, state.local_times))
        self.steps.append(hash)
        self.move(hash)
        return hash

    def steps_at_once(self, count: int, role: str = "planner") -> None:
        """Record many steps in a few transactions."""
        content = self._put("content", {"text": "Said.", "artifacts": []})
        for _ in range(0, count, 1000):
            with self.store.batch() as batch:
                for index in range(len(self.steps) + 1, min(len(self.steps) + 1000, count) + 1):
                    payload = {
                        "index": index,
                        "role": role,
                        "meta": {"status": "planned"},
                        "content": content,
                        "detail": content,
                        "agent": self.agent,
                        "start": self.start,
                        "compact": None,
                        "childThreads": [],
                        "attempts": [],
                        "extraction": "block",
                        "workspace": self.tree,
                        "changes": None,
                        "startedAt": STARTED,
                        "completedAt": STARTED + 1000,
                        **threads.links(self.steps),  # type: ignore[arg-type]
                    }
                    self.steps.append(batch.put_node("thread-step", payload).hash)
        self.move(self.steps[-1])

    def end(self) -> str:
        hash = self._put(
            "thread-end",
            {
                "returnCode": 0,
                "summary": "ended by a rule",
                "start": self.start,
                "lastStep": self.steps[-1] if self.steps else None,
                "completedAt": STARTED + 60_000,
            },
        )
        self.move(hash, status="ended")
        return hash


def put_tree(store: Store) -> Digest:
    """A directory with a file, a program, a link and an empty directory."""
    with store.batch() as batch:
        text, program = batch.put(b"hello\n"), batch.put(b"#!/bin/sh\necho hi\n")
        empty = batch.put_node("directory", directory.encode([]))
        inner = batch.put_node("directory", directory.encode([File(b"same", text)]))
        return batch.put_node(
            "directory",
            directory.encode(
                [
                    File(b"hello.txt", text),
                    File(b"run", program, executable=True),
                    Symlink(b"link", b"hello.txt"),
                    directory.Subdirectory(b"empty", empty),
                    directory.Subdirectory(b"one", inner),
                    directory.Subdirectory(b"two", inner),
                    File(b"\xff\xfe", text),
                ]
            ),
        )


def make_thread(store: Store, id: str = "01JD0000000000000000000000", **record: Any) -> Example:
    """A thread that has started and has no step yet."""
    put = store.put_node
    schema = put("role-schema", {"name": "planner-meta", "type": "object"}).hash
    role = put(
        "role",
        {
            "name": "planner",
            "description": "d",
            "systemPrompt": "Plan.",
            "extractPrompt": "Say the status.",
            "schema": schema,
        },
    ).hash
    workflow = put(
        "workflow",
        {"name": "demo", "description": "", "roles": {"planner": role}, "moderator": RULES},
    ).hash
    agent = put("agent", {"package": "command", "version": "", "config": {"argv": ["true"]}}).hash
    task = put("content", {"text": TASK, "artifacts": []}).hash
    tree = put_tree(store).hash
    start = put(
        "thread-start",
        {
            "workflow": workflow,
            "input": task,
            "depth": 0,
            "parentState": None,
            "agents": {"planner": agent},
            "workspace": tree,
            "maxRounds": 9,
            "budget": None,
        },
    ).hash
    head = Head(
        start,
        {"status": "running", "start": start, "workflow": "demo", "updatedAt": STARTED, **record},
    )
    with store.batch() as batch:
        batch.swap(f"threads/{id}", None, head)
        if store.heads.get("workflows/demo") is None:
            batch.swap("workflows/demo", None, Head(workflow, {}))
    return Example(store, id, head, start, workflow, agent, tree, [])
