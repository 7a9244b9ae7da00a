"""Workflows in the store: adding, finding, giving back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import engine
from casfs import canonical
from casfs.errors import Invalid, NotFound
from casfs.store.graph import walk
from casfs.store.store import Store
from engine.workflow import registry as workflows
from tests.support.engine import ONE, STATUS, rule, workflow

SHIPPED = sorted((Path(engine.__file__).parent / "workflows").glob("*.json"))


def contents(store: Store) -> tuple[int, list[Any]]:
    return sum(1 for _ in store.blobs.iterate()), list(store.heads.list())


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_workflow_comes_back_as_it_was_read(file: Path, store: Store) -> None:
    definition = json.loads(file.read_text())
    hash, report = workflows.add(store, definition)
    assert (report.errors, report.warnings) == ([], [])
    assert canonical.encode(workflows.definition(store, hash)) == canonical.encode(definition)
    assert workflows.listing(store) == [(file.stem, hash)]


def test_both_workflows_ship() -> None:
    assert [file.stem for file in SHIPPED] == ["develop", "solve-issue"]


def test_adding_again_changes_nothing(store: Store) -> None:
    hash, _ = workflows.add(store, ONE)
    before = contents(store)
    assert workflows.add(store, ONE)[0] == hash
    assert contents(store) == before


def test_a_changed_definition_moves_the_name_and_keeps_the_old_node(store: Store) -> None:
    old, _ = workflows.add(store, ONE)
    new, _ = workflows.add(store, {**ONE, "description": "Better."})
    assert workflows.find(store, "sample") == new != old
    assert workflows.load(store, old).description == "A sample."
    assert workflows.listing(store) == [("sample", new)]


def test_equal_parts_are_stored_once(store: Store) -> None:
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    hash, _ = workflows.add(store, workflow(rules, a=STATUS, b=STATUS))
    reached = [store.node(one).type for one in walk(store, [hash])]
    assert [reached.count(type) for type in ("workflow", "role", "role-schema")] == [1, 2, 1]


def test_a_loaded_workflow_has_what_a_run_needs(store: Store) -> None:
    hash, _ = workflows.add(store, workflow(ONE["moderator"], a=STATUS))
    loaded = workflows.load(store, hash)
    assert (loaded.hash, loaded.name, loaded.rules) == (hash, "sample", ONE["moderator"])
    role = loaded.roles["a"]
    assert (role.name, role.system_prompt, role.schema) == ("a", "You are the a.", STATUS)


def test_found_by_name_hash_and_prefix(store: Store) -> None:
    hash, _ = workflows.add(store, ONE)
    assert {workflows.find(store, text) for text in ("sample", hash, hash[:8])} == {hash}


def test_not_found(store: Store) -> None:
    schema = store.registry.head("content").hash
    for text in ("nothing", "ab" * 32, "abcdef01", schema):
        with pytest.raises(NotFound, match=f"no workflow '{text}'; see `casfs workflow list`"):
            workflows.find(store, text)
    with pytest.raises(NotFound, match="is a schema, not a workflow"):
        workflows.load(store, schema)


@pytest.mark.parametrize(
    "definition",
    [
        None,
        {},
        workflow([rule("__start__", "a"), rule("a", "b")], a=None),
        workflow([rule("__start__", "a"), rule("a", "__end__", "$count(")], a=None),
        workflow(ONE["moderator"], a={"name": "m", "type": "object", "unevaluatedProperties": {}}),
        {**ONE, "description": "\ud800"},
        workflow(ONE["moderator"], a={"name": "m", "maximum": 1e20}),
    ],
)
def test_nothing_is_stored_of_what_is_refused(definition: Any, store: Store) -> None:
    before = contents(store)
    with pytest.raises(Invalid):
        workflows.add(store, definition)
    assert contents(store) == before


def test_every_error_is_named_at_once(store: Store) -> None:
    bad = workflow([rule("__start__", "b"), rule("a", "__end__", "(")], a=None)
    with pytest.raises(Invalid) as raised:
        workflows.add(store, bad)
    assert "unknown role 'b'" in str(raised.value)
    assert "does not parse" in str(raised.value)
