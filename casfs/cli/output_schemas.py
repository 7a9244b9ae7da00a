"""The schemas of what `--json` prints, one file of data for each noun in `outputs/`.

A program may rely on the keys that a schema requires; a later version may add others.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from casfs.errors import NotFound

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHARED = "defs"


def output_schema(verb: str) -> dict[str, Any]:
    """Returns the JSON Schema of the output of `casfs VERB --json`; of a log, of each line. Raises
    NotFound."""
    noun, _, inner = verb.partition(" ")
    try:
        schema: dict[str, Any] = _load(noun)[inner]
    except (OSError, KeyError, ValueError):
        raise NotFound(f"no command {verb!r} that prints JSON; see `casfs --help`") from None
    shared = _load(SHARED)
    used = {name: shared[name] for name in shared if name in _named(schema, shared)}
    return {"$schema": DIALECT, "title": f"casfs {verb} --json", **schema, "$defs": used}


def _load(noun: str) -> dict[str, Any]:
    file = resources.files("casfs.cli") / "outputs" / f"{noun}.json"
    schemas: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schemas


def _named(schema: Any, shared: dict[str, Any]) -> set[str]:
    """Returns the shared definitions that a schema refers to, in them too."""
    names: set[str] = set()
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).rpartition("/")[2]
            if name in shared and name not in names:
                names.add(name)
                pending.append(shared[name])
        if isinstance(value, dict | list):
            pending += value.values() if isinstance(value, dict) else value
    return names
