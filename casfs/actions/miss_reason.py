"""Explains cache misses: the differences to the nearest cached action.

Nearest is the entry with the same argv or role, else of the same program or role name, that
differs in the fewest parts. Variables are named; their values are never shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from casfs.actions import cache as actions
from casfs.actions.cache import HEADS
from casfs.actions.key import Action
from casfs.digest import TreeHash
from casfs.errors import Corrupt, NotFound
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import tree

MAX_COMPARED_ENTRIES = 50
MAX_NAMED_PATHS = 3
MAX_COUNTED_PATHS = 1000


def explain_miss(store: Store, action: Action) -> str:
    """Returns the differences to the nearest entry in one line."""
    near = _nearest(store, action)
    if near is None:
        subject = "command" if action.payload["step"] is None else "role"
        return f"no earlier run of this {subject} is cached"
    return "; ".join(_differences(store, near, action.payload)) or "its result cannot be read"


def _nearest(store: Store, action: Action) -> Mapping[str, Any] | None:
    """Returns the stored action with the same argv or role that differs in the fewest parts,
    else one of the same program; the newest of equals."""
    same = []
    similar = []
    fingerprint = actions.fingerprint(action.payload)
    argv0 = actions.argv0(action.payload)
    for _, head in head_kinds.sound(store.heads, HEADS):
        if head.record.get("command") == fingerprint:
            same.append(head)
        elif head.record.get("argv0") == argv0:
            similar.append(head)
    newest = sorted(same or similar, key=lambda head: int(head.record["createdAt"]), reverse=True)
    best: Mapping[str, Any] | None = None
    for head in newest[:MAX_COMPARED_ENTRIES]:
        try:
            candidate = store.node(actions.load(store, head.hash).action, "action").payload
        except (NotFound, Corrupt):
            continue
        if (candidate["step"] is None) != (action.payload["step"] is None):
            continue
        if best is None or _distance(candidate, action.payload) < _distance(best, action.payload):
            best = candidate
    return best


def _distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    old = _flat(old)
    new = _flat(new)
    return sum(old[part] != new[part] for part in new)


def _flat(action: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an action with the parts of its step merged into its own."""
    return {**action, **(action["step"] or {}), "step": None}


def _differences(store: Store, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["argv"] != new["argv"]:
        yield f"argv differs: was {shlex.join(old['argv'])}"
    if old["inputRoot"] != new["inputRoot"]:
        yield f"input tree differs{_changed_paths(store, old['inputRoot'], new['inputRoot'])}"
    if old.get("local") != new.get("local"):
        yield "private or derived files differ"
    for part in ("env", "platform"):
        for key in sorted(old[part].keys() | new[part].keys()):
            if old[part].get(key) != new[part].get(key):
                yield f"{part} {key} differs"
    if old["cwd"] != new["cwd"]:
        yield f"working directory differs: was {old['cwd']}"
    if old["outputs"] != new["outputs"]:
        yield f"outputs differ: were {', '.join(old['outputs']) or 'none'}"
    if old["timeoutMs"] != new["timeoutMs"]:
        yield "timeout differs"
    for part, value in (new["step"] or {}).items():
        if part != "parts" and old["step"][part] != value:
            yield f"{part} differs"


def _changed_paths(store: Store, old: TreeHash | None, new: TreeHash | None) -> str:
    """Returns ': ' and the first paths that differ between two inputs, or nothing."""
    try:
        changes = list(islice(tree.changes(store, old, new), MAX_COUNTED_PATHS))
    except (NotFound, Corrupt):
        return ""
    paths = ", ".join(printable(change.path) for change in changes[:MAX_NAMED_PATHS])
    excess = len(changes) - MAX_NAMED_PATHS
    return f": {paths}" + (f" and {excess} more" if excess > 0 else "")


def changed_input(store: Store, before: Action, after: Action) -> str:
    """Returns the paths of the input that a run has changed; empty for none."""
    if before.payload.get("local") != after.payload.get("local"):
        return "private files"
    if before.payload["inputRoot"] == after.payload["inputRoot"]:
        return ""
    changed_paths = _changed_paths(store, before.payload["inputRoot"], after.payload["inputRoot"])
    return changed_paths.removeprefix(": ") or "a directory"
