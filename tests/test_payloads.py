"""`casfs.payloads` has a type for every schema, with its fields."""

from __future__ import annotations

import ast

from tests.support import payload_types


def test_the_types_are_those_of_the_schemas() -> None:
    written = ast.dump(ast.parse(payload_types.TARGET.read_text("utf-8")))
    assert written == ast.dump(ast.parse(payload_types.source()))


def test_a_node_of_a_named_type_has_that_payload() -> None:
    store = ast.parse((payload_types.ROOT / "casfs/store/store.py").read_text("utf-8"))
    returned = {
        ast.unparse(node.returns)
        for node in ast.walk(store)
        if isinstance(node, ast.FunctionDef) and node.name == "node" and node.returns
    }
    written = ast.parse(payload_types.TARGET.read_text("utf-8"))
    classes = [node.name for node in written.body if isinstance(node, ast.ClassDef)]
    of_nodes = [name for name in classes if name not in payload_types.RECORDS]
    assert returned == {f"Node[payloads.{name}]" for name in of_nodes} | {"Node[Any]"}
