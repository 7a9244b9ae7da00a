"""Cancels or suspends a thread that no task runs: in a daemon after its task was cancelled, or
on the store of a daemon that does not run.

The processes of the thread's pending step and of its open children are ended first. A cancelled
thread's workspace is freed before anything is written: it may be what fills the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from casfs.backend.capabilities import Leasing
from casfs.errors import Conflict
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.files import closing_fd
from casfs.threads import threads
from casfs.threads.state import says
from casfs.threads.threads import CANCELLED, RUNNING, SUSPENDED, Thread, ThreadId
from casfs.workspaces import desk, ignored_files
from engine.runtime.thread_head import end_orphans
from engine.runtime.workspace import COPYING, Workspaces, thread_workspace
from engine.threads import call_stack, suspension, transitions
from engine.threads.record import UNKNOWN
from engine.threads.suspension import Suspension

Action = Callable[..., None]  # of a store, a thread's id, the workspaces, details of programs


def cancel(
    store: Store,
    id: ThreadId,
    workspaces: Workspaces,
    interrupted: Sequence[str],
    *,
    summary: str = CANCELLED,
) -> None:
    """Ends a thread and its open children with return code 130. `interrupted`: details of its
    programs. Raises NotFound, Conflict."""
    for thread in _end_processes(store, id, (RUNNING, SUSPENDED)):
        thread_workspace(store, thread, workspaces).remove()
    thread = threads.get(store, id)
    ended = transitions.cancel(store, thread, interrupted, summary=summary)
    ignored_files.release(store, ended.record.get("ignored"))


def suspend(store: Store, id: ThreadId, workspaces: Workspaces, interrupted: Sequence[str]) -> None:
    """Suspends a running thread and its running children. Raises NotFound, Conflict."""
    _end_processes(store, id, (RUNNING,))
    why = Suspension("suspended by a person", UNKNOWN, failed=interrupted, by_person=True)
    suspension.suspend(store, threads.get(store, id), why)


def request(root: Path, id: ThreadId, op: str, **options: Any) -> None:
    """Asks the daemon to do one of ACTIONS; where none runs, does it on the store."""
    if daemon_socket.runs(root):
        daemon_socket.request(root, op, id=id, **options)
    else:
        without_daemon(root, id, partial(ACTIONS[op], **options))


def without_daemon(root: Path, id: ThreadId, action: Action) -> None:
    """Does an action where no daemon of the store runs. Raises Refused where one does."""
    lock = daemon_socket.lock(root)
    with closing_fd(lock), Store.open(root) as store:
        desk.unmount_all(root)
        retry_on_conflict(lambda: action(store, id, COPYING, ()))


ACTIONS: Mapping[str, Action] = {"cancel": cancel, "suspend": suspend}


def _end_processes(store: Store, id: ThreadId, status: tuple[str, ...]) -> list[Thread]:
    thread = threads.get(store, id)
    if thread.record["status"] not in status:
        raise Conflict(f"thread {id} {says(thread)} already")
    family = [thread, *call_stack.open_children(store, thread)]
    for member in family:
        if not isinstance(store.backend, Leasing):  # else its daemon ends them, once it notices
            end_orphans(member)
    return family
