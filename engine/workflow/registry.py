"""The workflow registry of a store: heads `workflows/<name>` that point to workflow nodes.

`add` stores a definition bottom-up (role-schemas, roles, workflow) in one batch; adding it
again is idempotent, and adding a changed one moves the head while threads that run the older one
keep theirs. `definition` returns exactly the form that `add` reads. The head's record may hold
`agents`, a thread-agents node with the default agents, and `builtin`, for a workflow that casfs
itself has put there (`engine.workflow.shipped`); one from elsewhere is marked as
`casfs.exchange.arrivals` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from casfs import canonical
from casfs.agents.notation import AgentSpec
from casfs.backend.protocols import Head, HeadName
from casfs.digest import NodeHash, is_hash
from casfs.errors import Invalid, NotFound, Refused
from casfs.exchange import arrivals
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.safe_text import escape
from engine.moderator.decision import Rule
from engine.workflow.definition import CheckReport, check

HEADS = "workflows/"
MAX_RUNS_CHARS = 400
NO_AGENTS: Mapping[str, AgentSpec] = {}


@dataclass(frozen=True)
class Role:
    """A role. `hash`: of its node; `schema`: the document of its role-schema. Its policy:
    `retries` after a failed attempt, `timeout` of one in seconds, and whether an attempt with
    an unknown outcome suspends the thread, and the `limits` of one."""

    hash: NodeHash
    name: str
    description: str
    system_prompt: str
    extract_prompt: str
    schema: Mapping[str, Any]
    cacheable: bool
    retries: int = 0
    timeout: float | None = None
    suspends_unknown: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workflow:
    hash: NodeHash
    name: str
    description: str
    roles: Mapping[str, Role]
    rules: list[Rule]


def head_name(name: str) -> HeadName:
    return HeadName(HEADS + name)


def add(
    store: Store,
    definition: Any,
    agents: Mapping[str, AgentSpec] = NO_AGENTS,
    *,
    builtin: bool = False,
) -> tuple[NodeHash, CheckReport]:
    """Stores a definition under its name, with the default agents of its roles; returns the
    workflow's hash and the report. Raises Invalid with every error, Refused for a secret; nothing
    is stored then."""
    report = check(definition)
    if report.errors:
        raise Invalid("; ".join(report.errors))
    if not builtin:
        from engine.secrets import definitions  # 15 ms, which listings need not take

        configs = {f"the agent of {role}": spec["config"] for role, spec in agents.items()}
        definitions.refuse_secrets(store, {f"workflow {definition['name']}": definition, **configs})
    return retry_on_conflict(
        lambda: _put(store, definition, agents=agents, builtin=builtin)
    ), report


def _put(
    store: Store, definition: Mapping[str, Any], agents: Mapping[str, AgentSpec], builtin: bool
) -> NodeHash:
    name = definition["name"]
    old = store.heads.get(head_name(name))
    with store.batch() as batch:
        roles = {}
        for key, role in definition["roles"].items():
            schema = batch.put_node("role-schema", role["schema"])
            roles[key] = batch.put_node("role", {**role, "schema": schema.hash}).hash
        try:
            node = batch.put_node("workflow", {**definition, "roles": roles})
        except Invalid as error:  # `check` found no fault
            raise Invalid(f"{error}; in a store of an older casfs run `casfs init`") from None
        record: dict[str, Any] = {"builtin": True} if builtin else {}
        if agents:
            bound = {role: put_agent(batch, spec) for role, spec in agents.items()}
            record["agents"] = batch.put_node("thread-agents", {"agents": bound}).hash
        new = Head(node.hash, record)
        if old != new:
            batch.swap(head_name(name), old, new)
    return node.hash


def put_agent(batch: Batch, spec: AgentSpec) -> NodeHash:
    """Puts an agent node, which `agent_spec` reads."""
    payload = {"package": spec["name"], "version": spec["version"], "config": spec["config"]}
    return batch.put_node("agent", payload).hash


def default_agents(store: Store, name: str) -> dict[str, AgentSpec]:
    """Returns the default agents of a registered workflow, by role; none for a hash."""
    head = None if is_hash(name) else head_kinds.get(store.heads, head_name(name))
    if head is None or not head.record.get("agents"):
        return {}
    bound = store.node(head.record["agents"], "thread-agents").payload["agents"]
    return {role: agent_spec(store, hash) for role, hash in bound.items()}


def agent_spec(store: Store, hash: str) -> AgentSpec:
    """Returns what an agent node holds. Raises NotFound where `hash` is not an agent node."""
    agent = store.node(hash, "agent").payload
    return AgentSpec(name=agent["package"], version=agent["version"], config=agent["config"])


def listing(store: Store) -> list[tuple[str, NodeHash]]:
    """Returns (name, hash) of every registered workflow, sorted by name."""
    return [(name[len(HEADS) :], head.hash) for name, head in head_kinds.sound(store.heads, HEADS)]


def find(store: Store, name: str) -> NodeHash:
    """Returns the hash of a workflow, given its name, its hash or a prefix of it. Raises
    NotFound."""
    head = None if is_hash(name) else head_kinds.get(store.heads, head_name(name))
    if head is not None:
        return head.hash
    try:
        return store.node(store.expand(name), "workflow").hash
    except (Invalid, NotFound):
        raise NotFound(f"no workflow {name!r}; see `casfs workflow list`") from None


def foreign(store: Store, name: str) -> tuple[str, bool] | None:
    """Returns where a registered workflow came from, and whether a person lets it run; None for
    one of this store."""
    head = head_kinds.get(store.heads, head_name(name))
    if head is None or "origin" not in head.record:
        return None
    return str(head.record["origin"]), arrivals.is_trusted(head)


def origin_text(store: Store, name: str) -> str | None:
    """Returns what a list says of where a workflow came from; None of one of this store."""
    origin, is_trusted = foreign(store, name) or (None, True)
    return origin if origin is None or is_trusted else f"{origin}, not trusted"


def is_trusted(store: Store, name: str) -> bool:
    """Returns whether a registered workflow is of this store, or a person lets it run."""
    arrival = foreign(store, name)
    return arrival is None or arrival[1]


def find_trusted(store: Store, name: str) -> NodeHash:
    """As `find`, for a workflow that is to run. Raises Refused for one that came from elsewhere
    and that no person has looked at."""
    head = None if is_hash(name) else head_kinds.get(store.heads, head_name(name))
    if head is not None and not arrivals.is_trusted(head):
        raise Refused(
            f"the workflow {name} is from {head.record['origin']}, and {runs(store, name)};"
            f" `casfs workflow trust {name}` lets it run"
        )
    return find(store, name)


def runs(store: Store, name: str) -> str:
    """Returns in one line which agents a registered workflow names for its roles."""
    return in_one_line(all_runs(store, name))


def all_runs(store: Store, name: str) -> list[str]:
    """Returns which agents a registered workflow names for its roles: all that it may run."""
    return describe(default_agents(store, name))


def describe(agents: Mapping[str, AgentSpec]) -> list[str]:
    """Returns the agent of each role with its whole config, a line each, safe for a terminal."""
    lines = [
        f"{role} runs {spec['name']} {canonical.encode(spec['config']).decode()}"
        for role, spec in agents.items()
    ]
    return [escape(line, one_line=True) for line in lines] or ["its roles name no agent"]


def in_one_line(lines: Sequence[str]) -> str:
    """Returns the beginning of what `describe` returned, for a message; it says where it is cut."""
    line = "; ".join(lines)
    if len(line) <= MAX_RUNS_CHARS:
        return line
    return f"{line[:MAX_RUNS_CHARS]}… ({len(lines)} roles, not all is shown here)"


def trust(store: Store, name: str) -> None:
    """Lets a workflow from elsewhere run, until a pull replaces it. Raises NotFound, Conflict."""
    head = head_kinds.get(store.heads, head_name(name))
    if head is None:
        raise NotFound(f"no workflow {name!r}; see `casfs workflow list`")
    if not arrivals.is_trusted(head):
        with store.batch() as batch:
            batch.swap(head_name(name), head, arrivals.trusted(head))


def load(store: Store, hash: NodeHash) -> Workflow:
    """Loads a workflow. Raises NotFound where `hash` is not a workflow node."""
    flow = store.node(hash, "workflow").payload
    roles = {key: _loaded(store, ref) for key, ref in flow["roles"].items()}
    rules = cast(list[Rule], flow["moderator"])
    return Workflow(hash, flow["name"], description=flow["description"], roles=roles, rules=rules)


def _loaded(store: Store, hash: NodeHash) -> Role:
    role = _role(store, hash)
    policy = role.get("policy", {})
    return Role(
        hash,
        role["name"],
        description=role["description"],
        system_prompt=role["systemPrompt"],
        extract_prompt=role["extractPrompt"],
        schema=role["schema"],
        cacheable=role.get("cacheable", False),
        retries=policy.get("retries", 0),
        timeout=policy.get("timeoutS"),
        suspends_unknown=policy.get("unknown") == "suspend",
        limits=policy.get("limits", {}),
    )


def definition(store: Store, hash: NodeHash) -> dict[str, Any]:
    """Returns the whole definition with its roles and role-schemas inline."""
    flow = store.node(hash, "workflow").payload
    return {**flow, "roles": {key: _role(store, ref) for key, ref in flow["roles"].items()}}


def _role(store: Store, hash: NodeHash) -> dict[str, Any]:
    role = store.node(hash, "role").payload
    return {**role, "schema": store.node(role["schema"], "role-schema").payload}
