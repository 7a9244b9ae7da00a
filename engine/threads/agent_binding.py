"""Binds agents to roles: an agent as a person names it, and its node.

The version is resolved, and the config checked against the package's schema, before anything is
stored: a thread that cannot run is not created.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from casfs.agents import notation
from casfs.agents.notation import AgentSpec
from casfs.digest import NodeHash
from casfs.errors import CasfsError, Invalid
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads.threads import Thread
from engine.agents import loader
from engine.agents.loader import Package
from engine.secrets import redaction
from engine.workflow.registry import default_agents, put_agent


@dataclass(frozen=True)
class Binding:
    """An agent for a role, as the user gave it: `version` is a PEP 440 specifier."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


NO_BINDINGS: Mapping[str, Binding] = {}


def of_call(store: Store, workflow: str, agents: Mapping[str, object]) -> dict[str, Binding]:
    """Returns the agents of a called workflow: those that the call names, below them the defaults
    of the workflow's own file. Raises Invalid."""
    named = {role: notation.package(value) for role, value in agents.items()}
    return {
        role: Binding(agent["name"], agent["config"], agent["version"])
        for role, agent in {**default_agents(store, workflow), **named}.items()
    }


def resolve(bound: Mapping[str, Binding]) -> dict[str, Package]:
    """Returns the package of each role. Raises as `loader.resolve`, naming the role."""
    packages = {}
    for role, binding in bound.items():
        try:
            packages[role] = loader.resolve(binding.name, binding.version, binding.config)
        except CasfsError as error:
            raise type(error)(f"{option(role)}: {error}") from error
    return packages


def option(role: str) -> str:
    """Returns how a fault names the agent of a role; the summariser has no role."""
    return f"--agent {role}" if role else "--compact-by"


def redacting_store(
    store: Store,
    bound: Mapping[str, Binding],
    env: Mapping[str, str],
    allows_secrets: bool = False,
) -> Store:
    """Returns the store in which to create a thread with these agents: their secrets are
    redacted from its first node on, and unless they are allowed, what the scanner finds. Faults of
    packages are left to `resolve`."""
    names = secret_names(bound)
    marks = redaction.new_marks(store, env, allows_all=allows_secrets)
    return redaction.redacting_store(store, redaction.from_env(names, env, marks))


def secret_names(bound: Mapping[str, Binding]) -> set[str]:
    """Returns the variables that the configs of these agents name as secrets."""
    return _names(bound, Package.secret_names)


def variable_names(bound: Mapping[str, Binding]) -> set[str]:
    """Returns all variables that the configs of these agents name."""
    return _names(bound, Package.variable_names)


def _names(bound: Mapping[str, Binding], names_of: Callable[[Package, Any], set[str]]) -> set[str]:
    names: set[str] = set()
    for binding in bound.values():
        with suppress(CasfsError):
            names |= names_of(loader.load(binding.name), binding.config)
    return names


def check_replacements(thread: Thread, roles: Collection[str], new: Mapping[str, Binding]) -> None:
    """Raises Invalid for a new agent of a role that is not one of the thread's."""
    if unknown := sorted(new.keys() - set(roles)):
        raise Invalid(f"thread {thread.id}: no role {unknown[0]!r}; it has {', '.join(roles)}")


def put_replaced(
    batch: Batch, kept: Mapping[str, NodeHash], new: Mapping[str, Binding]
) -> NodeHash:
    """Puts a thread-agents node: the agents that are kept, and new ones. Raises as `resolve`."""
    agents = {**kept, **put_agents(batch, resolve(new), new)}
    return batch.put_node("thread-agents", {"agents": agents}).hash


def put_agents(
    batch: Batch, packages: Mapping[str, Package], bound: Mapping[str, Binding]
) -> dict[str, NodeHash]:
    """Puts agents and the schemas of their details; returns role name to agent node."""
    _put_schemas(batch, packages.values())
    return {
        role: put_agent(
            batch, AgentSpec(name=binding.name, version=binding.version, config={**binding.config})
        )
        for role, binding in bound.items()
    }


def _put_schemas(batch: Batch, packages: Iterable[Package]) -> None:
    """Registers the schemas of the agents' details, each once, however many roles share it."""
    seen: list[Any] = []
    for package in packages:
        for document in package.descriptor.get("schemas", ()):
            if document not in seen:
                seen.append(document)
                batch.put_schema(document)
