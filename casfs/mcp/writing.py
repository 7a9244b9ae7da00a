"""The tools that act: on threads through the daemon, on directories only below those that the
server was given."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from casfs.agents import notation
from casfs.checkpoints import create, revisions
from casfs.directories.operations import Intent, Verb
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.mcp.reading import Long, Name, Number, Reading, Revision, Text, Value
from casfs.system import daemon_socket
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, OpenedDirectory, open_beneath
from casfs.trees import recorded_state
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore as restore_tree
from casfs.trees.restore.target import Target

Directory = Annotated[Text, Field(description="may be relative to the server's first directory")]
Agents = Annotated[
    Mapping[str, Text],
    Field(description="by role: NAME, NAME:TEXT or NAME:JSON, as `casfs thread start --agent`"),
]
ACTOR = "an MCP client"  # in the logs of directories
NO_AGENTS: Mapping[str, str] = {}


class Writing(Reading):
    def create_checkpoint(self, name: Text, directory: Directory, message: Text = "") -> Value:
        """Records a directory under a name, without .git, derived directories and what
        .casfsignore names."""
        about = self.secrets.redact(message)
        with self._opened(directory) as opened:
            checkpoint = create.create(
                self.store.whole, name, directory=opened.here, message=about
            ).checkpoint
        return {"revision": f"{checkpoint.name}@{checkpoint.id}", "tree": checkpoint.root}

    def restore(self, tree: Revision, directory: Directory, force: bool = False) -> Value:
        """Makes a directory hold a tree: a new or empty one, or one that was recorded or restored
        before. Files that are in neither tree stay, and so do private ones. `force`: also
        overwrites local changes; a person can take it back by the number of the `operation`."""
        revision = revisions.resolve(self.store, tree)
        shown = revision.state
        store = self.store.whole
        step = revisions.step_of(store, revision)
        with self._opened(directory, make=True) as opened:
            known = Target(store, opened.path, opened.fd).known_state()
            is_whole = shown.local is not None
            state = shown if is_whole else recorded_state.with_local_of(store, shown, known)
            intent = Intent(Verb.RESTORE, tree, ACTOR)
            options = RestoreOptions(force=force, opened=opened.fd, operation=intent, step=step)
            done = restore_tree(store, state, opened.path, options)
        counts = {"files": done.files, "bytes": done.bytes, "deleted": done.outcome.deleted}
        moved = {os.fsdecode(old): os.fsdecode(new) for old, new in done.outcome.aside.items()}
        operation = None if done.operation is None else done.operation.number
        return {"tree": state.tree, **counts, "operation": operation, "movedAside": moved}

    def start_thread(
        self, workflow: Text, task: Long, tree: Revision = "", agents: Agents = NO_AGENTS
    ) -> Value:
        """Starts a thread of a workflow on a task and returns at once; it works on a copy of the
        tree, by default an empty one (`create_checkpoint` records a directory)."""
        arguments: dict[str, Any] = {"workflow": workflow, "input": task, "workspace": None}
        if tree:
            revisions.resolve(self.store, tree)  # what is hidden is not found
            state = revisions.resolve(self.store.whole, tree).state
            arguments |= {"workspace": state.tree, "recorded": state.fields}
        return self._ask("start", agents, **arguments)

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
        arguments = {"id": self.find(thread).id, "at": after, "hint": hint or None}
        return self._ask("fork", agents, **arguments)

    def _ask(self, op: str, agents: Agents, **arguments: Any) -> Value:
        specs = {}
        for role, text in agents.items():
            try:
                specs[role] = notation.parse(text)
            except Invalid as error:
                raise Invalid(f"agents.{role}: {error}") from None
        answer = daemon_socket.request(self.store.root, op, agents=specs, **arguments)
        return {"thread": answer["id"]}

    @contextmanager
    def _opened(self, text: str, *, make: bool = False) -> Iterator[OpenedDirectory]:
        """Opens a directory below one of those that may be written; `make`: creates it where it is
        missing. Raises Refused for one outside of them, or in the store but they are not;
        NotFound, Failed."""
        try:
            wanted = Path(os.path.realpath(self.directories[0] / text))
        except OSError:  # a link was there, and is not any more
            raise Failed(f"directory: {text} was replaced meanwhile; try again") from None
        for allowed, root in zip(self.directories, self.roots, strict=True):
            if not wanted.is_relative_to(allowed):
                continue
            try:
                fd = self._open(allowed, root, below=wanted.relative_to(allowed), make=make)
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.ELOOP):  # a link was put there meanwhile
                    continue
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    raise NotFound(f"directory: no directory {text}") from None
                raise Failed(f"directory: cannot open {text}: {error.strerror}") from None
            with closing_fd(fd):
                yield OpenedDirectory(fd)
                return
        raise self._outside(text)

    def _open(self, allowed: Path, root: int, below: Path, make: bool) -> int:
        try:
            fd = open_beneath(root, os.fsencode(below), DIR_FLAGS)
        except FileNotFoundError:
            if not make:
                raise
            parent = self._open(allowed, root, below.parent, make=False)
            with closing_fd(parent):
                with suppress(FileExistsError):
                    os.mkdir(below.name, dir_fd=parent)
                return open_beneath(parent, os.fsencode(below.name), DIR_FLAGS)
        store = Path(os.path.realpath(self.store.root or os.devnull))
        if OpenedDirectory(fd).path.is_relative_to(store) and store.is_relative_to(allowed):
            os.close(fd)
            raise self._outside(str(below))
        return fd

    def _outside(self, text: str) -> Refused:
        known = ", ".join(map(str, self.directories))
        return Refused(
            f"directory: {text} is outside of {known}; `casfs mcp --dir DIR` allows more"
        )


TOOLS = "create_checkpoint restore start_thread resume_thread answer fork_thread".split()
