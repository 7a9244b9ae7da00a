"""Which agent plays a role. The first of these that there is:

1. the role's own agent in the request (`--agent ROLE=NAME`)
2. the request's agent for all roles (`--agent NAME`)
3. the profile in the request that has the role's name (`--agents FILE`)
4. the workflow's default agent
5. the profile `default`

A name is that of a profile (of the request, else of `config.toml`), else of an installed package,
else the hash of an agent node, or a prefix of it. Faults name the role, as `--agent ROLE`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from casfs import config
from casfs.agents import notation
from casfs.agents.acp_profiles import install_hint
from casfs.agents.notation import AgentSpec
from casfs.canonical import member
from casfs.digest import TreeHash
from casfs.errors import CasfsError, Invalid, NotFound, Refused
from casfs.store.store import MIN_PREFIX_CHARS, Store
from casfs.threads.workflow_path import START
from casfs.trees import tree
from engine.agents import loader, program
from engine.threads.agent_binding import Binding, option
from engine.workflow import registry as workflows
from engine.workflow.definition import CheckReport
from engine.workflow.registry import Workflow

DEFAULT = "default"
NO_PROFILES: Mapping[str, AgentSpec] = {}
Specs = Mapping[str, Mapping[str, Any]]  # as a request has them: version and config may be missing


@dataclass(frozen=True)
class AgentNames:
    """Resolves the names of agents in a request; `own`: the profiles that it brought."""

    store: Store
    profiles: Mapping[str, AgentSpec]
    own: Mapping[str, AgentSpec]

    def bindings(self, specs: Specs, **extra_config: Any) -> dict[str, Binding]:
        """Resolves the agents of roles; `extra_config`: added to their config. Raises NotFound,
        Invalid, Conflict naming the role."""
        bound = {}
        for role, spec in specs.items():
            try:
                binding = self.resolved(spec)
                bound[role] = replace(binding, config={**binding.config, **extra_config})
            except CasfsError as error:
                raise type(error)(f"{option(role)}: {error}") from None
        return bound

    def for_roles(self, roles: Collection[str], specs: Specs, every: Any, defaults: Specs) -> Specs:
        """Returns the agents of `roles`, and those `specs` for others; roles that have none are
        left out."""
        chosen = dict(specs)
        fallback = {"name": DEFAULT} if DEFAULT in self.profiles else None
        for role in roles:
            spec = specs.get(role) or every or self.own.get(role) or defaults.get(role) or fallback
            if spec is not None:
                chosen[role] = spec
        return chosen

    def resolved(self, spec: Mapping[str, Any]) -> Binding:
        """Resolves one agent. Raises NotFound, Invalid, Conflict."""
        known = self._of_hash(cast(AgentSpec, {"version": "", "config": {}, **spec}))
        if known["name"] not in self.profiles and known["name"] not in loader.names():
            raise loader.unknown(known["name"], self.profiles)
        known = notation.resolved(known, self.profiles)
        return Binding(known["name"], known["config"], known["version"])

    def _of_hash(self, spec: AgentSpec) -> AgentSpec:
        """Returns what the agent node holds where the name is the hash of one."""
        name = spec["name"]
        is_hex = len(name) >= MIN_PREFIX_CHARS and set(name) <= set("0123456789abcdef")
        if name in self.profiles or not is_hex or name in loader.names():
            return spec
        if spec["version"] or spec["config"] or "text" in spec:
            raise Invalid("an agent's hash takes no version and no config")
        return workflows.agent_spec(self.store, self.store.expand(name))


def names(
    store: Store, env: Mapping[str, str], own: Mapping[str, AgentSpec] = NO_PROFILES
) -> AgentNames:
    """Returns the profiles of `config.toml`, below those that a request brings. Raises Invalid."""
    known = read_profiles(config.agents(store.root, env))
    return AgentNames(store, {**known, **own}, own)


def read_profiles(tables: Mapping[str, tuple[object, str]]) -> dict[str, AgentSpec]:
    """Reads (table, file) by name. Raises Invalid naming file and table."""
    profiles = {}
    for name, (table, file) in tables.items():
        try:
            profiles[name] = notation.from_value(table)
        except Invalid as error:
            raise Invalid(f"{file}: agents.{name}: {error}") from None
    return profiles


def check(agents: Mapping[str, AgentSpec], profiles: Collection[str]) -> CheckReport:
    """Returns the faults of a workflow file's default agents: a config that does not fit; a name
    that is neither an installed agent nor a profile here."""
    report = CheckReport([], [])
    for role, spec in agents.items():
        path = f"{member('$.roles', role)}.agent"
        try:
            if spec["name"] not in profiles:
                loader.resolve(spec["name"], spec["version"], spec["config"])
        except NotFound as error:
            report.warnings.append(f"{path}: {error}")
        except CasfsError as error:
            report.errors.append(f"{path}: {error}")
    return report


def check_programs(
    store: Store,
    flow: Workflow,
    bound: Mapping[str, Binding],
    root: TreeHash | None,
    env: Mapping[str, str],
) -> None:
    """Raises Refused for a role whose program does not exist. A relative path is one in the
    workspace (`root`; None: an empty one), which an earlier step may bring; so only that of the
    first role is looked up."""
    first = {rule["to"] for rule in flow.rules if rule["from"] == START}
    for role, binding in bound.items():
        argv0 = program.first_word(binding.name, binding.config)
        if argv0 is None:
            continue
        if "/" in argv0 and not argv0.startswith("/"):
            if first == {role} and (root is None or not _is_in(store, root, argv0)):
                reason = "a relative path is one in the workspace; give an absolute path"
                raise Refused(f"{option(role)}: no program {argv0} there: {reason}")
        elif not program.exists(argv0, env):
            where = "" if argv0.startswith("/") else " on the daemon's PATH"
            raise Refused(f"{option(role)}: no program {argv0}{where}{install_hint(argv0)}")


def _is_in(store: Store, root: TreeHash, path: str) -> bool:
    try:
        return tree.resolve(store, root, path.encode()) is not None
    except NotFound:
        return False
    except Invalid:  # a path that leaves the workspace: what it finds there is its own affair
        return True
