"""The checks of a request's agents against workflows: of the thread's own, and of those that
`workflow` agents among them call, at any depth of their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs.errors import Invalid
from casfs.store import Store
from engine.agents import loader
from engine.moderator import rules
from engine.workflow import registry as workflows
from engine.workflow.registry import Workflow


def check_roles(workflow: Workflow, bound: Mapping[str, Any]) -> None:
    """Raises Invalid for a role without an agent, or an agent without a role."""
    without = sorted(workflow.roles.keys() - bound.keys())
    if without:
        roles = ", ".join(without)
        raise Invalid(f"workflow {workflow.name}: no agent for {roles}; give --agent ROLE=NAME")
    unknown = sorted(bound.keys() - workflow.roles.keys())
    if unknown:
        roles = ", ".join(workflow.roles)
        raise Invalid(f"workflow {workflow.name}: no role {unknown[0]!r}; it has {roles}")


def check_calls(store: Store, where: str, agent: str, config: Mapping[str, Any]) -> None:
    """Raises NotFound, Invalid for a call that names no workflow, or not the roles of one; for a
    `meta` that reads what the called thread does not have. `where`: of the agent, for messages."""
    if agent == "workflow":
        for call in config.get("calls", [config]):
            flow = workflows.load(store, workflows.find(store, call["workflow"]))
            check_roles(flow, call["agents"])
        if "meta" in config and "calls" not in config:
            schemas = {name: role.schema for name, role in flow.roles.items()}
            for error in rules.result_errors(config["meta"], schemas):
                raise Invalid(f"{where}: config.meta: {error}")
    for name, _, below in loader.load(agent).nested_agents(config):
        check_calls(store, where, name, below)
