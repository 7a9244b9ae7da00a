"""What a command would change, that an agent asks permission for: it is run in a copy of the
workspace that is thrown away, and the changes are shown.

It runs in the sandbox of a model's commands, without a network, at the path of the workspace. So
it reaches no home, no socket and no other process; what it would do there stays unknown.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import trio

from casfs.agents import HUMAN
from casfs.checkpoints import revisions
from casfs.errors import Conflict
from casfs.sessions import points
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.threads import threads
from casfs.threads.permission import PermissionRequest
from casfs.threads.threads import SUSPENDED, Thread
from casfs.trees import tree
from casfs.trees.diff import unified_diff
from engine.agents.react import sandbox_settings
from engine.blocking import blocking
from engine.llm import sandbox
from engine.llm.tools import truncate
from engine.processes import subprocesses
from engine.processes.subprocesses import OutputTooLarge, ProcessResult, TimedOut
from engine.runtime.run_services import RunServices
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.workspace import thread_workspace
from engine.threads.record import pending_state

TIMEOUT_S = 60.0
MAX_FILE_BLOCKS = 1 << 21  # of 512 bytes: 1 GiB
MAX_COMMAND_BYTES = 100_000  # of an argument that the kernel takes
MAX_OUTPUT_CHARS = 16_000
MAX_PATCH_BYTES = 256 << 10
CONFINED = "It ran without network, home and other programs: what it does there is not known."
IGNORED = "What is ignored was there as a copy; what it changed of that is not shown."
UNENDED = f"It was ended: it took longer than {TIMEOUT_S:g} s, or printed too much."


@dataclass(frozen=True)
class Preview:
    """`exit_code`: None where it was ended; `output`: what it printed; `patch`: of the files;
    `local`: printable paths of other files that it changed, which stay in this store;
    `repositories`: what became of git repositories, in words; `notes`: what is not known."""

    exit_code: int | None
    duration_ms: int
    output: str
    patch: str
    local: Sequence[str]
    repositories: Sequence[str]
    notes: Sequence[str]


async def run(services: RunServices, thread: Thread, env: Mapping[str, str]) -> Preview:
    """Runs the command that a thread asks permission for. `env`: of its agents. Raises Conflict
    where it asks none, or not for a command, Refused without a sandbox, Failed."""
    trial = await blocking(partial(_Trial, services, thread, env))
    try:
        await blocking(trial.prepare)
        argv, clean = await sandbox.sandboxed_command(
            trial.line, trial.copy.path, secrets.token_hex(16), env=env, settings=trial.settings
        )
        result, is_ended = await _result(argv, clean)
        return await blocking(partial(trial.preview, result, is_ended=is_ended))
    finally:
        with trio.CancelScope(shield=True):
            await blocking(trial.copy.remove)


class _Trial:
    """A command with the copy in which it runs. In a worker thread: all of it reads the store."""

    def __init__(self, services: RunServices, thread: Thread, env: Mapping[str, str]) -> None:
        store = services.store
        request = _asked_command(store, thread)
        self._store = store
        self._config = ThreadConfig(store, thread, env=env, extractor=services.extractor)
        # As it was recorded when the agent asked.
        known = pending_state(thread.intent)
        self._before = known or revisions.step_state(store, thread, None)
        self.copy = thread_workspace(store, thread, services.workspaces, threads.new_id())
        agent = self._config.bound_agent(thread.intent["role"])
        self.settings = replace(
            sandbox_settings(agent["config"]),
            network=False,
            allow_shell=False,
            shown_at=thread_workspace(store, thread, services.workspaces).path,
        )
        limit = f"ulimit -f {MAX_FILE_BLOCKS} || exit 126"
        directory = shlex.quote(request.directory)
        self.line = f"{limit}\ncd -- {directory} || exit 126\n{request.command}"

    def prepare(self) -> None:
        self.copy.reset(self._before)
        # Values of ignored files, too: a command may print these, or write them elsewhere.
        self._config.follow_private_files(self.copy.path, self._before.tree)

    def preview(self, result: ProcessResult, *, is_ended: bool) -> Preview:
        store = self._store
        before = self._before
        after = self.copy.record()
        redact = self._config.secrets.redact
        streams = filter(None, (result.stdout, result.stderr))
        printed = b"\n".join(streams).decode(errors="replace")
        patch = unified_diff.patch(store, before.tree, after.tree, MAX_PATCH_BYTES)
        of_work = {
            printable(change.path) for change in tree.changes(store, before.tree, after.tree)
        }
        local, repositories = points.changed(store, before.full, after.full, foreign=of_work)
        notes = [CONFINED]
        if self.copy.ignored.paths:
            notes.append(IGNORED)
        if not is_ended:
            notes.append(UNENDED)
        return Preview(
            result.exit_code if is_ended else None,
            result.duration_ms,
            output=truncate(redact(printed), MAX_OUTPUT_CHARS),
            patch=redact(patch.decode(errors="backslashreplace")),
            local=local,
            repositories=repositories,
            notes=notes,
        )


def _asked_command(store: Store, thread: Thread) -> PermissionRequest:
    asks = thread.status == SUSPENDED and thread.record["cause"] == HUMAN
    request = PermissionRequest.of_question(store, thread.record["question"]) if asks else None
    if request is None:
        raise Conflict(f"thread {thread.id} asks for no permission now")
    if request.command is None:
        raise Conflict(
            "only a command can be tried: what an edit changes is shown, and another tool is the"
            " agent's own"
        )
    if "\0" in request.command or len(request.command.encode()) > MAX_COMMAND_BYTES:
        raise Conflict("the command is too long to be tried, or holds a NUL")
    return request


async def _result(argv: Sequence[str], env: Mapping[str, str]) -> tuple[ProcessResult, bool]:
    """Returns what a command has printed, and whether it has ended by itself."""

    async def ignore(pid: int) -> None:
        """Its process id is not recorded: it ends with the sandbox."""

    try:
        result = await subprocesses.run(
            argv, b"", cwd=None, env=env, timeout=TIMEOUT_S, started=ignore
        )
    except TimedOut as error:
        return error.result, False
    except OutputTooLarge as error:
        return ProcessResult(0, b"", stderr=str(error).encode(), duration_ms=0), False
    return result, True
