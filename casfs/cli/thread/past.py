"""A thread's history: context, prompt, replay, graph, rm. Needs no daemon."""

from __future__ import annotations

import click

from casfs.cli.common import open_store
from casfs.cli.output import echo, echo_json, echo_line, echo_result, json_option, wants_json
from casfs.threads import lookup, threads


@click.command()
@click.argument("id")
@json_option
def context(id: str) -> None:
    """Print the prompt context: the task, the newest summary, and every step since.

    \b
    casfs thread context 01K2
    """
    from casfs.threads import prompts
    from engine import content
    from engine.threads import history

    with open_store() as store:
        thread = lookup.find(store, id)
        if not wants_json():
            echo(prompts.context(store, thread.hash, thread.record.get("compact")))
            return
        past = history.prompt_history(store, thread)
        task = content.text(store, threads.start(store, thread).payload["input"])
    steps = [vars(step) for step in past.steps]
    echo_json({"task": task, "summary": past.summary, "steps": steps, "tokens": past.tokens()})


@click.command()
@click.argument("id", metavar="ID[@STEP]")
@json_option
def prompt(id: str) -> None:
    """Print the prompt that the agent of a step got, byte for byte.

    Without @STEP that of the pending step, or of the last attempt at it; of an ended thread, that
    of its last step.

    \b
    casfs thread prompt 01K2@3
    """
    from casfs.threads import prompts

    name, _, step = id.rpartition("@")
    by_index = bool(name) and step.isascii() and step.isdigit()
    with open_store() as store:
        thread = lookup.find(store, name if by_index else id)
        index, step_prompt = prompts.of_thread(store, thread, int(step) if by_index else None)
    value = {"id": thread.id, "step": index, "prompt": step_prompt.text, "fault": step_prompt.fault}
    echo_result(value, step_prompt.marked().removesuffix("\n"))


@click.command()
@click.argument("id")
@click.option("--workflow", metavar="NAME|HASH", help="Workflow to use instead of its own.")
@json_option
def replay(id: str, workflow: str | None) -> None:
    """Re-run routing decisions on recorded outputs, without agents; print the differences.

    \b
    casfs thread replay 01K2 --workflow develop
    """
    import trio

    from engine.moderator import evaluator_pool
    from engine.threads.reroute import RouteComparison, compare_routes
    from engine.workflow import registry as workflows

    with open_store() as store:
        thread = lookup.find(store, id)
        hash = None if workflow is None else workflows.find(store, workflow)

        async def compare() -> list[RouteComparison]:
            async with evaluator_pool.WorkerPool() as pool:
                return await compare_routes(store, thread, workflow=hash, evaluator=pool)

        rows = trio.run(compare)
    if wants_json():
        keys = ("index", "role", "recorded", "now", "fault", "differs")
        echo_json([{key: getattr(comparison, key) for key in keys} for comparison in rows])
        return
    for row in rows:
        mark = "*" if row.differs else " "
        fault = f"  {row.fault}" if row.fault else ""
        echo_line(
            f"{mark} {row.index:6} {row.role:14} {row.recorded or '-':14} {row.now or '-'}{fault}"
        )
    count = sum(comparison.differs for comparison in rows)
    echo(f"{count} of {len(rows)} decisions differ")


@click.command()
@click.argument("id")
@click.option("--outline", is_flag=True, help="Lines for a terminal instead.")
@json_option
def graph(id: str, outline: bool) -> None:
    """Print the workflow of a thread and the path it took, as Mermaid text.

    \b
    casfs thread graph 01K2 --outline
    casfs thread graph 01K2 > path.mmd
    """
    from engine.threads import graph as graphs
    from engine.workflow import registry as workflows

    with open_store() as store:
        thread = lookup.find(store, id)
        flow = workflows.load(store, threads.workflow(store, thread))
        path = [node.payload["role"] for node in threads.last_steps(store, thread, count=None)]
        ended = thread.fields.get("returnCode") == 0
    running = (thread.fields.get("intent") or {}).get("role")
    text = graphs.mermaid(flow, path, ended=ended, running=running)
    shown = graphs.outline(flow, path, ended=ended, running=running) if outline else text
    echo_result({"id": thread.id, "path": path, "mermaid": text}, shown.rstrip())


@click.command()
@click.argument("id")
@json_option
def rm(id: str) -> None:
    """Remove an ended thread; `casfs undo --store` restores it until gc deletes it.

    \b
    casfs thread rm 01K2
    """
    from engine.threads import lifecycle

    with open_store() as store:
        thread = lookup.find(store, id)
        is_damaged = thread.fault is not None or not store.blobs.info([thread.hash])
        lifecycle.remove(store, thread)
    way_back = "`casfs undo --store` restores it until gc deletes it"
    if is_damaged:
        way_back = "it was damaged, so nothing restores it"
    line = f"{thread.id} removed; {way_back}"
    echo_result({"id": thread.id}, line)
