"""The watched directories of a store: `watches.json`, which the daemon alone writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from casfs.checkpoints import checkpoint
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.system.files import os_errors, replacing

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
    try:
        records = json.loads((store.root / FILE).read_bytes())
        return {record["directory"]: WatchSpec(**record) for record in records}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def listing(store: Store) -> list[dict[str, Any]]:
    """Returns the watches as JSON, each with the latest checkpoint of its name."""
    watches = []
    for spec in load(store).values() if store.root else ():
        last = checkpoint.latest(store, spec.name)
        name, recorded_at = (f"{last.name}@{last.id}", last.created_at) if last else (None, None)
        watches.append({**asdict(spec), "checkpoint": name, "recordedAt": recorded_at})
    return watches


def save(store: Store, specs: dict[str, WatchSpec]) -> None:
    """Raises Failed."""
    with (
        os_errors(f"cannot write {store.root / FILE}"),
        replacing(store.root / FILE, durable=True) as file,
    ):
        file.write(json.dumps([asdict(spec) for spec in specs.values()], indent=1).encode("ascii"))


def holding(specs: dict[str, WatchSpec], path: Path) -> WatchSpec:
    """Returns the watch of the innermost directory that holds `path`. Raises NotFound."""
    for directory in (path, *path.parents):
        if (spec := specs.get(str(directory))) is not None:
            return spec
    raise NotFound(f"{path} is in no watched directory; see `casfs watch --list`")
