"""Every `--json` that a test prints is checked against the schema that is shipped for it.

The check knows no key that the schema does not name: a new key is entered in
`casfs/cli/outputs/NOUN.json`, in camelCase; a time is RFC 3339.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import click
import jsonschema_rs

from casfs.cli.main import cli
from casfs.cli.output_schemas import output_schema

ON_LINES = ("thread log", "thread race", "daemon logs", "run")  # one JSON value a line


def commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{above}{name} ")
        else:
            yield above + name, found


@cache
def printers() -> frozenset[str]:
    """The commands that have --json."""
    return frozenset(
        name for name, found in commands() if any("--json" in one.opts for one in found.params)
    )


@cache
def _validator(verb: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(_closed(output_schema(verb)))


def check(arguments: Sequence[str], out: bytes) -> None:
    """Checks what `casfs ARGUMENTS` printed. Nothing is checked where it printed something else:
    an error, or a file."""
    verb = " ".join(arguments[: 2 if " ".join(arguments[:2]) in printers() else 1])
    if verb not in printers() or not out.strip() or ("-o", "-") in pairwise(arguments):
        return
    for text in out.splitlines() if verb in ON_LINES else [out]:
        faults = [
            f"casfs {verb} --json: {'.'.join(map(str, fault.instance_path))}: {fault.message};"
            f" see casfs/cli/outputs/{verb.split()[0]}.json"
            for fault in _validator(verb).iter_errors(json.loads(text))
        ]
        assert not faults, "\n".join(faults)


def _closed(schema: Any) -> Any:
    """A schema whose objects have no other keys than it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema else {}
    return {**more, **{key: _closed(one) for key, one in schema.items()}}
