"""A thread on the terminal. Reads the store; needs no daemon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import click

from casfs.agents.acp_profiles import PROFILES
from casfs.cli.common import open_store
from casfs.cli.json_values import times
from casfs.cli.output import echo_lines, json_option, wants_json, warn
from casfs.cli.table import date
from casfs.cli.thread.queue import INTERRUPTED, NO_DAEMON, Queue
from casfs.cli.thread.status_colours import coloured
from casfs.digest import BlobHash, NodeHash, TreeHash
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.threads import attempt_details as attempts
from casfs.threads import live_output, lookup, threads
from casfs.threads.state import FAILED
from casfs.threads.summary import content_text, detail_payload, detail_tokens, head_fields
from casfs.threads.threads import SUSPENDED, StepNode, Thread
from casfs.trees import tree

PAGE_STEPS = 50
STEP_FIELDS = (
    "index", "role", "agent", "meta", "workspace", "startedAt", "completedAt", "attempts",
    "childThreads", "compact",
)  # fmt: skip
MAX_NAMED_FILES = 3  # changed files that a line names


@click.command()
@click.argument("id")
@click.option(
    "--all", "everything", is_flag=True, help=f"All steps (default: the last {PAGE_STEPS})."
)
@json_option
def show(id: str, everything: bool) -> None:
    """Show a thread: workflow, status, steps, and the threads that it called.

    \b
    casfs thread show 01K2
    """
    with open_store() as store:
        thread = lookup.find(store, id)
        count = None if everything or wants_json() else PAGE_STEPS
        queue = Queue(store)
        value = {**head_fields(thread), **_details(store, thread, count), **queue.fields(thread)}
    echo_lines(times(value), _page(value, queue.place_text(thread)))
    if not wants_json() and value["status"] == INTERRUPTED:
        warn(NO_DAEMON)


def cache_hit(cached: Mapping[str, Any]) -> str:
    """Returns the note on a step that was taken from the cache."""
    return f"hit {cached['action'][:12]}: {cached['savedMs'] / 1000:.2f} s saved"


def attempt_note(fields: Mapping[str, Any]) -> str:
    return f" (attempt {fields['attempt']})" if fields.get("attempt", 1) > 1 else ""


def seconds(step: Mapping[str, Any]) -> str:
    """Returns how long a step took."""
    return f"{(step['completedAt'] - step['startedAt']) / 1000:.1f} s"


# -- show -------------------------------------------------------------------------------------


def _details(store: Store, thread: Thread, count: int | None) -> dict[str, Any]:
    if thread.fault is not None:
        unknown = dict.fromkeys(("input", "summary", "question", "budget", "parentStep"))
        empty: dict[str, Any] = {"agents": {}, "attempts": [], "steps": [], "tools": []}
        return {**unknown, **empty, "calls": _calls(store, thread)}
    end = threads.end(store, thread)
    start = threads.start(store, thread).payload
    question = thread.fields.get("question") if thread.status == SUSPENDED else None
    return {
        "parentStep": step_name(store, thread.fields.get("parent"), start["parentState"]),
        "input": content_text(store, start["input"]),
        "summary": end.payload["summary"] if end else None,
        "question": question and content_text(store, question),
        "attempts": [attempts.read(store, hash) for hash in thread.fields.get("attempts") or ()],
        "budget": start["budget"],
        "agents": {
            role: _agent(store, hash, _played(store, thread, role=role, agent=hash))
            for role, hash in threads.agents(store, thread).items()
        },
        "steps": list(_steps(store, thread, first=start["workspace"], count=count)),
        "tools": live_output.tools(
            store.root, (thread.fields.get("intent") or {}).get("run")
        ).calls,
        "calls": _calls(store, thread),
    }


def _steps(
    store: Store, thread: Thread, first: TreeHash | None, count: int | None
) -> Iterator[dict[str, Any]]:
    nodes = threads.last_steps(store, thread, None if count is None else count + 1)
    before = first
    if count is not None and len(nodes) > count:
        before = nodes[0].payload["workspace"]
        nodes = nodes[1:]
    for node in nodes:
        yield step_fields(store, node, before)
        before = node.payload["workspace"]


def step_fields(store: Store, node: StepNode, before: TreeHash | None) -> dict[str, Any]:
    payload: Mapping[str, Any] = node.payload
    changed = [printable(change.path) for change in _changes(store, before, node)]
    return {
        "hash": node.hash,
        **{key: payload[key] for key in STEP_FIELDS},
        "status": node.payload["meta"].get("status"),
        "tokens": detail_tokens(store, node.payload["detail"]),
        "changedFiles": changed,
        "cached": node.payload.get("cached"),
    }


def _changes(store: Store, before: TreeHash | None, node: StepNode) -> Iterable[tree.Change]:
    after = node.payload["workspace"]
    return () if after is None or after == before else tree.diff(store, before, after)


def _agent(store: Store, hash: str, details: Iterable[str]) -> dict[str, str | None]:
    """Returns who an agent is: its package and version, None where its node is lost; the program
    and model behind it, as the newest of its `details` that says so or its config has them."""
    try:
        agent: Mapping[str, Any] = store.node(hash, "agent").payload
    except CasfsError:
        agent = {}
    config = agent.get("config", {})
    argv = tuple(config.get("argv", ()))
    profiles = [name for name, profile in PROFILES.items() if profile.argv == argv]
    said = [{"agentName": name} for name in profiles] + [config]
    said[:0] = [detail_payload(store, detail) for detail in details]
    return {
        "hash": hash,
        "package": agent.get("package"),
        "version": agent.get("version"),
        "name": _first_text(said, "agentName"),
        "model": _first_text(said, "model"),
    }


def _first_text(payloads: Iterable[Mapping[str, Any]], member: str) -> str | None:
    texts = (payload.get(member) for payload in payloads)
    return next((text for text in texts if isinstance(text, str) and text), None)


def _played(store: Store, thread: Thread, role: str, agent: NodeHash) -> Iterator[str]:
    """Yields the records of what an agent did in a role, the newest first: failed attempts at the
    pending step, recent steps."""
    if (thread.fields.get("intent") or {}).get("role") == role:
        tried = reversed(thread.fields.get("attempts") or ())
        yield from filter(None, (attempts.detail(store, hash) for hash in tried))
    for step in islice(threads.backwards(store, thread), PAGE_STEPS):
        if step.payload["role"] == role:
            if _config(store, step.payload["agent"]) == _config(store, agent):
                yield step.payload["detail"]
            return


def _config(store: Store, agent: NodeHash) -> dict[str, Any]:
    """Returns an agent without its version, which a step pins."""
    with suppress(CasfsError):
        return {**store.node(agent, "agent").payload, "version": ""}
    return {}


def step_name(store: Store, caller: str | None, state: BlobHash | None) -> str | None:
    """Returns the step after which a caller called: THREAD@STEP, where its node is here."""
    if caller is None or state is None:
        return None
    with suppress(CasfsError):
        node = store.node(state)
        return f"{caller}@{node.payload['index'] if node.type == 'thread-step' else 0}"
    return None


def _calls(store: Store, thread: Thread) -> list[dict[str, Any]]:
    """Returns the tree of callees, oldest first."""
    below: dict[str, list[Thread]] = {}
    for callee in [*threads.with_caller(store)][::-1]:
        below.setdefault(callee.fields["parent"], []).append(callee)

    def tree_of(id: str) -> list[dict[str, Any]]:
        return [{**head_fields(child), "calls": tree_of(child.id)} for child in below.get(id, ())]

    return tree_of(thread.id)


def _page(value: Mapping[str, Any], queued: str | None) -> Iterator[str]:
    status = coloured(value["status"], value["status"]) + (f", place {queued}" if queued else "")
    yield f"{value['id']}  {value['workflow']}  {status}"
    for name in ("reason", "returnCode", "summary", "parent", "parentStep"):
        if value.get(name) is not None:
            yield from f"{name}: {value[name]}".split("\n")
    if agents := [f"{role}={_agent_text(agent)}" for role, agent in value["agents"].items()]:
        yield f"agents: {' '.join(agents)}"
    yield f"last activity: {date(value['updatedAt'])}"
    if value["spent"] and value["budget"]:
        yield f"spent: {value['spent']['tokens']} tokens, {value['spent']['wallMs'] / 1000:.1f} s"
    steps = value["steps"]
    if steps and steps[0]["index"] > 1:
        yield f"       … {steps[0]['index'] - 1} earlier steps; see --all"
    yield from map(step_line, steps)
    if intent := value["intent"]:
        failed = value["status"] == SUSPENDED and value["cause"] in ("failure", "timeout")
        how = FAILED if failed else value["status"]
        turns = f", {intent['turnCount']} turns" if intent.get("turnCount") else ""
        yield f"{intent['index']:6} {intent['role']:14} {how}{attempt_note(intent)}{turns}"
    yield from (f"       {live_output.tool_line(call)}" for call in value["tools"])
    for number, attempt in enumerate(value["attempts"], start=1):
        yield f"       failed attempt {number}: {attempts.line(attempt)}"
    yield from _tree(value["calls"], "calls ")
    if value["question"]:
        yield from ("", *value["question"].rstrip().splitlines())


def _agent_text(agent: Mapping[str, str | None]) -> str:
    known = ", ".join(filter(None, (agent["name"], agent["model"])))
    return (agent["package"] or "?") + (f" ({known})" if known else "")


def step_line(step: Mapping[str, Any]) -> str:
    how = str(step["status"] or "finished")
    parts = [f"{step['index']:6} {step['role']:14} {how:12} {seconds(step):>10}"]
    if step["tokens"] is not None:
        parts.append(f"{step['tokens']} tokens")
    if files := [path for path in step["changedFiles"] if not path.startswith(".git/")]:
        unnamed = (
            f" and {len(files) - MAX_NAMED_FILES} more" if len(files) > MAX_NAMED_FILES else ""
        )
        parts.append(", ".join(files[:MAX_NAMED_FILES]) + unnamed)
    if step["attempts"]:
        parts.append(f"failed attempts: {len(step['attempts'])}")
    if step["cached"]:
        parts.append(cache_hit(step["cached"]))
    return "  ".join(parts)


def _tree(calls: Iterable[Mapping[str, Any]], lead: str) -> Iterator[str]:
    for call in calls:
        yield f"{lead}{call['id']}  {call['workflow']}  {coloured(call['status'], call['status'])}"
        yield from _tree(call["calls"], "  " + lead)
