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
from casfs.trees.recorded_state import RecordedState
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
    store = services.store
    request = await blocking(partial(_asked_command, store, thread))
    config = await blocking(
        partial(ThreadConfig, store, thread, env=env, extractor=services.extractor)
    )
    before = await blocking(partial(_state, store, thread))
    copy = thread_workspace(store, thread, services.workspaces, threads.new_id())
    agent = config.bound_agent(thread.intent["role"])
    settings = replace(
        sandbox_settings(agent["config"]),
        network=False,
        allow_shell=False,
        shown_at=thread_workspace(store, thread, services.workspaces).path,
    )
    limit = f"ulimit -f {MAX_FILE_BLOCKS} || exit 126"
    line = f"{limit}\ncd -- {shlex.quote(request.directory)} || exit 126\n{request.command}"
    try:
        await blocking(partial(copy.reset, before))
        # Values of ignored files, too: a command may print these, or write them elsewhere.
        config.follow_private_files(copy.path, before.tree)
        argv, clean = await sandbox.sandboxed_command(
            line, copy.path, run=secrets.token_hex(16), env=env, settings=settings
        )
        result, is_ended = await _result(argv, clean)
        after = await blocking(copy.record)
    finally:
        with trio.CancelScope(shield=True):
            await blocking(copy.remove)
    notes = [CONFINED, *([IGNORED] if copy.ignored.paths else ()), *(() if is_ended else [UNENDED])]
    printed = b"\n".join(filter(None, (result.stdout, result.stderr))).decode(errors="replace")
    changes = await blocking(partial(_changes, store, before, after))
    return Preview(
        result.exit_code if is_ended else None,
        result.duration_ms,
        output=truncate(config.secrets.redact(printed), MAX_OUTPUT_CHARS),
        patch=config.secrets.redact(changes.patch),
        local=changes.local,
        repositories=changes.repositories,
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


def _state(store: Store, thread: Thread) -> RecordedState:
    """Returns the files as they are where the agent asks. Raises NotFound."""
    known = pending_state(thread.intent)
    return known or revisions.step_state(store, thread, None)


async def _result(argv: Sequence[str], env: Mapping[str, str]) -> tuple[ProcessResult, bool]:
    """Returns what a command has printed, and whether it has ended by itself."""

    async def ignore(pid: int) -> None:
        """Its process is in nobody's record: it ends with the sandbox."""

    try:
        result = await subprocesses.run(
            argv, b"", cwd=None, env=env, timeout=TIMEOUT_S, started=ignore
        )
    except TimedOut as error:
        return error.result, False
    except OutputTooLarge as error:
        return ProcessResult(0, b"", stderr=str(error).encode(), duration_ms=0), False
    return result, True


@dataclass(frozen=True)
class _Changes:
    patch: str
    local: Sequence[str]
    repositories: Sequence[str]


def _changes(store: Store, before: RecordedState, after: RecordedState) -> _Changes:
    patch = unified_diff.patch(store, before.tree, after.tree, MAX_PATCH_BYTES)
    of_work = {change.path for change in tree.changes(store, before.tree, after.tree)}
    paths, words = points.changed(
        store, before.full, after.full, foreign={printable(path) for path in of_work}
    )
    return _Changes(patch.decode(errors="backslashreplace"), paths, words)
