"""Workflows of a store: register, load, list; the moderator's decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from casfs.api.trees import HostPath, Warn, pass_on
from casfs.api.values import Agent, Workflow
from casfs.errors import Failed, Invalid
from casfs.store.store import Store
from casfs.system.files import os_errors
from casfs.threads.workflow_path import END


class Workflows:
    """The workflows of a store: roles and the rules that choose among them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def register(
        self, definition: Mapping[str, Any] | HostPath, *, warn: Warn | None = None
    ) -> Workflow:
        """Stores a definition, or that of a JSON or YAML file, under its name, with all that it is
        made of; again, it changes nothing. Raises Invalid with every fault, NotFound, Failed."""
        from engine.workflow import file, registry

        if isinstance(definition, Mapping):
            workflow_file = file.complete(definition)
        else:
            path = Path(definition)
            with os_errors(f"cannot read {path}"):
                workflow_file = file.read(path.read_bytes(), path.name)
        if errors := workflow_file.check().errors:  # also those of its agents
            raise Invalid("; ".join(errors))
        _, report = registry.add(self._store, workflow_file.definition, workflow_file.agents)
        pass_on(report.warnings, warn)
        return self.load(workflow_file.definition["name"])

    def load(self, name: str) -> Workflow:
        """Returns a workflow by its name, its hash or the beginning of that. Raises NotFound."""
        from engine.workflow import registry

        hash = registry.find(self._store, name)
        definition = registry.definition(self._store, hash)
        specs = registry.default_agents(self._store, name)
        agents = {
            role: Agent(spec["name"], spec["config"], spec["version"])
            for role, spec in specs.items()
        }
        return Workflow(definition["name"], hash, definition=definition, agents=agents)

    def list(self) -> list[Workflow]:
        """Returns the registered workflows, sorted by name."""
        from engine.workflow import registry

        return [self.load(name) for name, _ in registry.listing(self._store)]

    def next(self, workflow: str, steps: Sequence[Mapping[str, Any]]) -> str:
        """Returns the role that comes after `steps` ({role, meta, …}, oldest first), "__end__"
        where the thread ends. Raises Failed for a rule that fails, NotFound."""
        import trio

        from engine.moderator import decision
        from engine.moderator.evaluator_pool import WorkerPool

        rules = self.load(workflow).definition["moderator"]
        context = decision.DecisionInput(steps, {}, "")

        async def decide() -> decision.Decision:
            async with WorkerPool() as evaluator:
                return await decision.decide(rules, context, evaluator)

        decided = trio.run(decide)
        if isinstance(decided, decision.RuleFailed):
            raise Failed(decided.reason)
        return decided.role if isinstance(decided, decision.Next) else END
