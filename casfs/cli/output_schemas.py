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
        found: dict[str, Any] = _load(noun)[inner]
    except (OSError, KeyError, ValueError):
        raise NotFound(f"no command {verb!r} that prints JSON; see `casfs --help`") from None
    shared = _load(SHARED)
    used = {name: shared[name] for name in shared if name in _named(found, shared)}
    return {"$schema": DIALECT, "title": f"casfs {verb} --json", **found, "$defs": used}


def _load(noun: str) -> dict[str, Any]:
    file = resources.files("casfs.cli") / "outputs" / f"{noun}.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def _named(schema: Any, shared: dict[str, Any]) -> set[str]:
    """Returns the shared definitions that a schema refers to, in them too."""
    found: set[str] = set()
    rest = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).rpartition("/")[2]
            if name in shared and name not in found:
                found.add(name)
                rest.append(shared[name])
        if isinstance(value, dict | list):
            rest += value.values() if isinstance(value, dict) else value
    return found
