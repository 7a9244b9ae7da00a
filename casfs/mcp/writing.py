"""The tools that act: on threads through the daemon, on directories only below those that the
server was given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from casfs import daemon_socket, revisions
from casfs.agents import notation
from casfs.checkpoints import create
from casfs.digest import TreeHash
from casfs.errors import Conflict, Invalid, Refused
from casfs.mcp.reading import Long, Name, Number, Reading, Revision, Text, Texts
from casfs.mcp.values import Value
from casfs.trees.restore.restore import restore as restore_tree

Directory = Annotated[
    Text, Field(description="relative to the first directory that the server may write")
]
Agents = Annotated[
    dict[str, Text],
    Field(description="by role: NAME, NAME:TEXT or NAME:JSON, as `casfs thread start --agent`"),
]


class Writing(Reading):
    def create_checkpoint(
        self, name: Text, directory: Directory = "", tree: Revision = "", message: Text = ""
    ) -> Value:
        """Records a directory, or a tree of the store, under a name. Left out of a directory are
        .git, derived directories and what .casfsignore names."""
        message = self.secrets.redact(message)
        if bool(directory) == bool(tree):
            raise Invalid("directory: give it, or tree")
        if tree:
            root = revisions.resolve_tree(self.store, tree)
            made = create.create_of_tree(self.store, name, root, message)
        else:
            made = create.create(self.store, name, self._place(directory), message).checkpoint
        return {"revision": f"{made.name}@{made.id}", "tree": made.root}

    def restore(
        self,
        tree: Revision,
        directory: Directory,
        paths: Texts = [],  # noqa: B006
        force: bool = False,
    ) -> Value:
        """Makes a directory hold a tree: a new or empty one, or one that was recorded or restored
        before. Files that are in neither tree stay. `force`: also overwrites local changes, which
        a checkpoint records first (`savedAs`). `paths`: restores these alone."""
        place, saved = self._place(directory), []

        def save(before: TreeHash, _: object) -> None:
            made = create.create_before_restore(self.store, before, place)
            saved.append(f"{made.name}@{made.id}")

        done = restore_tree(
            self.store,
            revisions.resolve_tree(self.store, tree),
            place,
            paths=[os.fsencode(one) for one in paths],
            on_local_changes=save if force else None,
        )
        counts = {"files": done.files, "bytes": done.bytes, "deleted": done.outcome.deleted}
        return {"tree": done.root, **counts, "savedAs": saved}

    def start_thread(
        self,
        workflow: Text,
        task: Long,
        tree: Revision = "",
        agents: Agents = {},  # noqa: B006
        name: Text = "",
        max_steps: Number = 100,
    ) -> Value:
        """Starts a thread of a workflow on a task and returns at once; it works on a copy of the
        tree, by default an empty one (`create_checkpoint` records a directory)."""
        root = revisions.resolve_tree(self.store, tree) if tree else None
        request = {"input": task, "workspace": root, "max_steps": max_steps, "name": name or None}
        return self._ask("start", workflow=workflow, agents=_parsed(agents), **request)

    def resume_thread(
        self,
        thread: Name,
        hint: Long = "",
        agents: Agents = {},  # noqa: B006
    ) -> Value:
        """Resumes a suspended thread. `hint`: a text for the next attempt at a failed step;
        `agents`: play from now on."""
        id = self.find(thread).id
        return self._ask("resume", id=id, hint=hint or None, agents=_parsed(agents))

    def answer(self, thread: Name, answer: Long) -> Value:
        """Answers the question of a suspended thread, which goes on: by a text, or by the JSON of
        the role's meta."""
        found = self.find(thread)
        if found.record.get("question") is None:
            raise Conflict(f"thread {found.id} asks nothing; read_thread shows its state")
        return self._ask("resume", id=found.id, input=answer)

    def fork_thread(
        self,
        thread: Name,
        after: Number | None = None,
        hint: Long = "",
        agents: Agents = {},  # noqa: B006
        workflow: Text = "",
    ) -> Value:
        """Starts a thread that goes on after a step of another (0: from its start; by default the
        last); the other one does not change."""
        request = {"hint": hint or None, "workflow": workflow or None, "at": after}
        return self._ask("fork", id=self.find(thread).id, agents=_parsed(agents), **request)

    def _ask(self, op: str, **arguments: Any) -> Value:
        assert self.store.root is not None
        return {"thread": daemon_socket.request(self.store.root, op, **arguments)["id"]}

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


def _parsed(agents: Agents) -> dict[str, notation.AgentSpec]:
    found = {}
    for role, text in agents.items():
        try:
            found[role] = notation.parse(text)
        except Invalid as error:
            raise Invalid(f"agents.{role}: {error}") from None
    return found


TOOLS = "create_checkpoint restore start_thread resume_thread answer fork_thread".split()
