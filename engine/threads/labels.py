"""What a person notes of a thread in its record: its name, and whether it is archived or pinned."""

from __future__ import annotations

from typing import Any

from casfs.backend.capabilities import Leasing
from casfs.errors import Conflict
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ARCHIVED, NAME, PINNED, RUNNING, Thread, ThreadId
from engine.secrets import definitions
from engine.threads import naming, record


def set_labels(
    store: Store,
    thread: Thread,
    *,
    name: str | None = None,
    archived: bool | None = None,
    pinned: bool | None = None,
) -> Thread:
    """Sets what is not None, in one swap; an empty name takes it away. The thread's last activity
    stays when it was. Raises Invalid, Conflict (the name is taken, the head has moved), Refused (it
    holds a secret)."""
    if name and not thread.record.get(record.ALLOWS_SECRETS):
        definitions.refuse_secrets(store, {"--name": name})
    labels: dict[str, Any] = {NAME: name, ARCHIVED: archived, PINNED: pinned}
    with naming.one_at_a_time(name or None):
        if name and name != thread.record.get(NAME):
            labels |= naming.fields(store, name)
        changes = {field: value for field, value in labels.items() if value is not None}
        merged = {**thread.record, **changes}
        changed = {key: value for key, value in merged.items() if value or key not in labels}
        with store.batch() as batch:
            head = batch.move(thread.name, thread.head, thread.hash, changed)
    return Thread(thread.id, head, fault=None)


def set_idle(store: Store, id: ThreadId, **labels: Any) -> Thread:
    """As `set_labels`, of a thread that no task of this process runs. Raises Conflict for one that
    runs on another machine."""

    def set_now() -> Thread:
        thread = threads.get(store, id)
        if thread.status == RUNNING and isinstance(store.backend, Leasing):
            raise Conflict(f"thread {id} runs on another machine; suspend it first")
        return set_labels(store, thread, **labels)

    return retry_on_conflict(set_now)
