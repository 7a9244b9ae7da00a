"""The watched directories of a store: `watches.json`, which the daemon alone writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from casfs.checkpoints import checkpoint
from casfs.errors import NotFound
from casfs.store import Store
from casfs.system.files import replacing, writing

FILE = "watches.json"


@dataclass(slots=True)
class WatchSpec:
    """`directory`: an absolute path without symlinks; `keep`: a policy of
    `casfs.checkpoints.forget`; `message`: of the next checkpoint; `error`: why the last look
    failed."""

    directory: str
    name: str
    settle: float
    keep: dict[str, int] = field(default_factory=dict)
    message: str = ""
    error: str | None = None
    method: str | None = None


def load(store: Store) -> dict[str, WatchSpec]:
    """Returns the watches by directory; none where the file is missing or damaged."""
    assert store.root is not None
    try:
        found = json.loads((store.root / FILE).read_bytes())
        return {one["directory"]: WatchSpec(**one) for one in found}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def listing(store: Store) -> list[dict[str, Any]]:
    """Returns the watches as JSON, each with the latest checkpoint of its name."""
    found = []
    for one in load(store).values() if store.root else ():
        last = checkpoint.latest(store, one.name)
        name, at = (f"{last.name}@{last.id}", last.created_at) if last else (None, None)
        found.append({**asdict(one), "checkpoint": name, "recordedAt": at})
    return found


def save(store: Store, specs: dict[str, WatchSpec]) -> None:
    """Raises Failed."""
    assert store.root is not None
    with writing(store.root / FILE), replacing(store.root / FILE, durable=True) as file:
        file.write(json.dumps([asdict(one) for one in specs.values()], indent=1).encode("ascii"))


def holding(specs: dict[str, WatchSpec], path: Path) -> WatchSpec:
    """Returns the watch of the innermost directory that holds `path`. Raises NotFound."""
    for place in (path, *path.parents):
        if (found := specs.get(str(place))) is not None:
            return found
    raise NotFound(f"{path} is in no watched directory; see `casfs watch --list`")
