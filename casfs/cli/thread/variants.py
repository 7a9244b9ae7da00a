"""Agents of the forks of `thread fork --count`, which take them in turn.

They are given by `--agent`, several times for one role, or by `--vary ROLE=FILE.toml`: each table
[[variants]] there is an agent as in an [agents.NAME] table. One that has no `package` is the agent
that the thread has for that role, with this `config` over its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casfs import config, threads
from casfs.cli.common import input_name, read_input
from casfs.cli.thread.arguments import agent_binding
from casfs.errors import Invalid, Usage
from casfs.store import Store
from casfs.threads import Thread

if TYPE_CHECKING:
    from casfs.agents.notation import AgentSpec


def variants(
    store: Store, thread: Thread, agents: Sequence[str], files: Sequence[str], count: int
) -> list[dict[str, Any]]:
    """Returns {agents, every} of the first forks, up to the one from which on they repeat. Raises
    Usage, Invalid, NotFound (a file)."""
    found: dict[str | None, list[AgentSpec]] = {}
    for text in agents:
        role, spec = agent_binding(text)
        found.setdefault(role, []).append(spec)
    for text in files:
        role, _, file = text.partition("=")
        if not role or not file:
            raise Usage(f"--vary {text}: give ROLE=FILE.toml")
        if role in found:
            raise Usage(f"--vary {role}: the role has an agent already")
        found[role] = _read(store, thread, role, file)
    for role, specs in found.items():
        if len(specs) > count:
            whose = "all roles" if role is None else f"the role {role}"
            many = f"{len(specs)} agents for {whose}, and one was given already"
            raise Usage(f"{many}; the forks take them in turn with --count {len(specs)} or more")
    period = min(count, math.lcm(*map(len, found.values())))
    turns = [{role: them[at % len(them)] for role, them in found.items()} for at in range(period)]
    return [{"every": one.pop(None, None), "agents": one} for one in turns]


def _read(store: Store, thread: Thread, role: str, file: str) -> list[AgentSpec]:
    from engine.workflow import registry

    kept = threads.agents(store, thread).get(role)
    base = None if kept is None else registry.agent_spec(store, kept)
    specs = []
    tables = config.variants_file(read_input(file), Path(input_name(file)))
    for number, table in enumerate(tables, start=1):
        try:
            specs.append(_spec(base, table))
        except Invalid as error:
            raise Invalid(f"{input_name(file)}: variants, number {number}: {error}") from None
    return specs


def _spec(base: AgentSpec | None, table: object) -> AgentSpec:
    from casfs.agents import notation

    if base is None or not isinstance(table, Mapping) or "package" in table:
        return notation.from_value(table)
    spec = notation.from_value({**table, "package": base["name"]})
    version, more = spec["version"] or base["version"], {**base["config"], **spec["config"]}
    return {"name": base["name"], "version": version, "config": more}
