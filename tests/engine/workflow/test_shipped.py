"""The shipped workflows: registered once in a store; what the user changed or removed stays so."""

from __future__ import annotations

from casfs.store.store import Store
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.support.engine import ONE

NAMES = ["checked", "develop", "hello", "single", "solve-issue"]


def listed(store: Store) -> list[str]:
    return [name for name, _ in workflows.listing(store)]


def remove(store: Store, name: str) -> None:
    head = store.heads.get(workflows.head_name(name))
    with store.batch() as batch:
        batch.swap(workflows.head_name(name), head, None)


def test_they_are_registered_once(disk_store: Store) -> None:
    shipped.install(disk_store)
    before = list(disk_store.heads.list())
    assert listed(disk_store) == NAMES
    shipped.install(disk_store)
    assert list(disk_store.heads.list()) == before


def test_what_the_user_has_is_kept(disk_store: Store) -> None:
    own, _ = workflows.add(disk_store, {**ONE, "name": "hello"})
    shipped.install(disk_store)
    assert workflows.find(disk_store, "hello") == own
    shipped.install(disk_store, again=True)
    assert workflows.find(disk_store, "hello") != own


def test_what_was_removed_does_not_come_back_unless_asked(disk_store: Store) -> None:
    shipped.install(disk_store)
    remove(disk_store, "hello")
    shipped.install(disk_store)
    assert listed(disk_store) == ["checked", "develop", "single", "solve-issue"]
    shipped.install(disk_store, again=True)
    assert listed(disk_store) == NAMES


def test_an_older_one_of_ours_is_brought_up_to_date(disk_store: Store) -> None:
    shipped.install(disk_store)
    new = workflows.find(disk_store, "hello")
    workflows.add(disk_store, {**ONE, "name": "hello"}, builtin=True)
    shipped.install(disk_store)
    assert workflows.find(disk_store, "hello") == new


def test_default_agents_are_kept_beside_the_workflow(disk_store: Store) -> None:
    shipped.install(disk_store)
    found = workflows.default_agents(disk_store, "hello")
    assert {role: spec["name"] for role, spec in found.items()} == {
        "greeter": "command",
        "critic": "command",
    }
    hash = workflows.find(disk_store, "hello")
    assert workflows.default_agents(disk_store, hash) == {}
    assert workflows.default_agents(disk_store, "develop") == {}
