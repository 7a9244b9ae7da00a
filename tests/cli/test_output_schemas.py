"""What `--json` prints has a schema, and keys and times of one form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from casfs.cli import json_values
from casfs.cli.output_schemas import output_schema
from casfs.system.clock import rfc3339
from tests.support import output_schemas
from tests.support.engine import Cli

CAMEL = re.compile(r"[a-z]+([A-Z][a-z]*)*\d*")


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
    if isinstance(schema, dict | list):
        for one in schema.values() if isinstance(schema, dict) else schema:
            yield from properties(one)


@pytest.mark.parametrize("verb", sorted(output_schemas.printers()))
def test_every_command_that_prints_json_has_a_schema(verb: str) -> None:
    schema = output_schema(verb)
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, value in properties(schema):
        assert CAMEL.fullmatch(name), name
        if name.endswith("At"):
            assert "#/$defs/time" in json.dumps(value), name


def test_a_schema_is_shown_by_the_words_of_the_command(cli: Cli) -> None:
    shown = cli("schema", "show", "--output", "checkpoint", "list").json
    assert shown == cli("schema", "show", "--output", "checkpoint-list").json
    assert "createdAt" in shown["items"]["required"]
    assert set(shown["$defs"]) == {"hash", "time", "count"}
    assert "no command 'checkpoint ls'" in cli.refused(
        "schema", "show", "--output", "checkpoint", "ls", code=3
    )


def test_the_check_finds_a_key_that_is_not_in_the_schema() -> None:
    with pytest.raises(AssertionError, match="size_bytes"):
        output_schemas.check(["put", "f"], b'{"hash": "%s", "size_bytes": 1}' % (b"ab" * 32))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1795361400123, "2026-11-22T15:30:00.123Z"),
        (10**15, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_is_rfc_3339_with_milliseconds(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


def test_what_an_agent_said_is_printed_as_it_is() -> None:
    meta = {"startedAt": 5, "snake_case": 1}
    shown = json_values.times({"startedAt": 1, "meta": meta, "calls": [{"updatedAt": None}]})
    assert shown == {"startedAt": rfc3339(1), "meta": meta, "calls": [{"updatedAt": None}]}
