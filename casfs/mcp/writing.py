"""The tools that act: on threads through the daemon, on directories only below those that the
server was given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from casfs import daemon_socket, revisions
from casfs.agents import notation
from casfs.checkpoints import create
from casfs.errors import Invalid, Refused
from casfs.mcp.reading import Long, Name, Number, Reading, Revision, Text, Value
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import restore as restore_tree

Directory = Annotated[Text, Field(description="may be relative to the server's first directory")]
Agents = Annotated[
    Mapping[str, Text],
    Field(description="by role: NAME, NAME:TEXT or NAME:JSON, as `casfs thread start --agent`"),
]
NO_AGENTS: Mapping[str, str] = {}


class Writing(Reading):
    def create_checkpoint(self, name: Text, directory: Directory, message: Text = "") -> Value:
        """Records a directory under a name, without .git, derived directories and what
        .casfsignore names."""
        place, about = self._place(directory), self.secrets.redact(message)
        made = create.create(self.store, name, place, about).checkpoint
        return {"revision": f"{made.name}@{made.id}", "tree": made.root}

    def restore(self, tree: Revision, directory: Directory, force: bool = False) -> Value:
        """Makes a directory hold a tree: a new or empty one, or one that was recorded or restored
        before. Files that are in neither tree stay. `force`: also overwrites local changes, which
        a checkpoint records first (`savedAs`)."""
        place, saved = self._place(directory), []

        def save(before: RecordedState, _: object) -> None:
            made = create.create_before_restore(self.store, before, place)
            saved.append(f"{made.name}@{made.id}")

        state = revisions.resolve(self.store, tree).state
        done = restore_tree(
            self.store,
            state.full,
            place,
            work=state.tree,
            on_local_changes=save if force else None,
        )
        counts = {"files": done.files, "bytes": done.bytes, "deleted": done.outcome.deleted}
        return {"tree": state.tree, **counts, "savedAs": saved}

    def start_thread(
        self, workflow: Text, task: Long, tree: Revision = "", agents: Agents = NO_AGENTS
    ) -> Value:
        """Starts a thread of a workflow on a task and returns at once; it works on a copy of the
        tree, by default an empty one (`create_checkpoint` records a directory)."""
        given: dict[str, Any] = {"workflow": workflow, "input": task, "workspace": None}
        if tree:
            state = revisions.resolve(self.store, tree).state
            given |= {"workspace": state.tree, "local": state.local}
        return self._ask("start", agents, **given)

    def resume_thread(self, thread: Name, hint: Long = "", agents: Agents = NO_AGENTS) -> Value:
        """Resumes a suspended thread. `hint`: a text for the next attempt at a failed step;
        `agents`: play from now on."""
        return self._ask("resume", agents, id=self.find(thread).id, hint=hint or None)

    def answer(self, thread: Name, answer: Long) -> Value:
        """Answers the question of a suspended thread, or of one that it called; it goes on. By a
        text, or by the JSON of the role's meta."""
        return self._ask("resume", NO_AGENTS, id=self.find(thread).id, input=answer)

    def fork_thread(
        self, thread: Name, after: Number, hint: Long = "", agents: Agents = NO_AGENTS
    ) -> Value:
        """Starts a thread that goes on after a step of another (0: from its start), which does not
        change. `hint`: a text for the first step."""
        given = {"id": self.find(thread).id, "at": after, "hint": hint or None}
        return self._ask("fork", agents, **given)

    def _ask(self, op: str, agents: Agents, **arguments: Any) -> Value:
        assert self.store.root is not None
        specs = {}
        for role, text in agents.items():
            try:
                specs[role] = notation.parse(text)
            except Invalid as error:
                raise Invalid(f"agents.{role}: {error}") from None
        made = daemon_socket.request(self.store.root, op, agents=specs, **arguments)
        return {"thread": made["id"]}

    def _place(self, text: str) -> Path:
        """Returns the real path of a directory. Raises Refused where that is outside of those that
        may be written, or in the store but they are not."""
        path = Path(os.path.realpath(self.directories[0] / text))
        store = Path(os.path.realpath(self.store.root or os.devnull))
        for allowed in self.directories:
            in_store = path.is_relative_to(store) and store.is_relative_to(allowed)
            if path.is_relative_to(allowed) and not in_store:
                return path
        known = ", ".join(map(str, self.directories))
        raise Refused(f"directory: {text} is outside of {known}; `casfs mcp --dir DIR` allows more")


TOOLS = "create_checkpoint restore start_thread resume_thread answer fork_thread".split()
