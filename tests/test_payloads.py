"""`casfs.payloads` has a type for every schema, with its fields."""

from __future__ import annotations

import ast

from tests.support import payload_types


def test_the_types_are_those_of_the_schemas() -> None:
    written = ast.dump(ast.parse(payload_types.TARGET.read_text("utf-8")))
    assert written == ast.dump(ast.parse(payload_types.source()))
