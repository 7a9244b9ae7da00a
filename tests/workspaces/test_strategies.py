"""The names of the strategies, which are there without them."""

from __future__ import annotations

from casfs.workspaces import strategies, strategy_names


def test_the_names_are_those_of_the_strategies() -> None:
    assert [*strategies.STRATEGIES] == [*strategy_names.PREFERRED_FIRST]
