"""Blame is equal to the origins of lines that random histories keep."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.history import step_versions
from casfs.history.blame import blame
from casfs.history.versions import find
from casfs.store.store import Store
from tests.history.oracle import Line, World, as_tree, call, check, fork, matched, start
from tests.support.helpers import put_tree
from tests.support.new_store import memory_store

ID = "01JD00000000000000000000{:02}"


def begun(random: Random, store: Store) -> World:
    thread = start(store, ID.format(0), put_tree(store, {}))
    world = World(random, store, thread, {})
    for _ in range(3):
        world.state = world.edited()
    thread = start(store, ID.format(1), put_tree(store, as_tree(world.state)))
    own = frozenset({f"{thread.id}@0"})
    lines = {
        path: tuple(type(line)(line.text, own) for line in text)
        for path, text in world.state.items()
    }
    return World(random, store, thread, lines, fresh=world.fresh)


def grow(world: World, steps: int) -> list[World]:
    """Adds steps, some of which call threads; returns a called thread that can be asked too."""
    asked = []
    for _ in range(steps):
        children: list[World] = []
        for number in range(world.random.choice([0, 0, 0, 0, 1, 2])):
            id = ID.format(10 + len(world.thread.steps) * 5 + number)
            if world.store.heads.get(f"threads/{id}") is not None:  # type: ignore[arg-type]
                break
            children.append(call(world, id, children[-1] if children else None))
            for _ in range(world.random.randint(0, 3)):
                children[-1].step(children[-1].edited())
        asked += children[:1]
        state = children[-1].state if children else world.state
        mixed = World(world.random, world.store, world.thread, state, dict(world.seen), world.fresh)
        is_own = not children or world.random.random() < 0.3
        world.step(mixed.edited() if is_own else dict(state), children)
    return asked


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 64))
def test_every_line_has_the_origin_that_it_has(seed: int) -> None:
    random = Random(seed)
    with memory_store() as store, pytest.MonkeyPatch.context() as patch:
        if random.random() < 0.5:
            patch.setattr(step_versions, "INDEXED_STEPS", 1)
        world = begun(random, store)
        worlds = [world, *grow(world, random.randint(0, 6))]
        if random.random() < 0.3:
            other = fork(world, ID.format(90))
            worlds += [other, *grow(other, 3)]
            worlds += grow(world, 2)
        for one in worlds:
            check(one)


def test_either_of_two_lines_that_changed_places_may_be_the_new_one(store: Store) -> None:
    """Also where the text has others like one of them."""
    thread = start(store, ID.format(0), put_tree(store, {"f": b"a\n\nb\n\nc\n"}))
    thread.tree = put_tree(store, {"f": b"a\n\n\nb\nc\n"})
    thread.step("planner", "")
    old, new = (f"{thread.id}@{index}" for index in (0, 1))
    before = tuple(Line(one + b"\n", frozenset({old})) for one in (b"a", b"", b"b", b"", b"c"))
    after = tuple(Line(one + b"\n") for one in (b"a", b"", b"", b"b", b"c"))
    found = [line.version.revision for line in blame(*find(store, f"{thread.id}:f"))]
    assert found.count(new) == 1
    for one, allowed in zip(found, matched(before, after, new), strict=True):
        assert one in allowed
