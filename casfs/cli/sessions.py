"""`sessions`: what outside agents have done, as threads."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.cli.common import open_store
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_lines, json_option, say_incomplete
from casfs.cli.table import Age, Cell, echo_table
from casfs.directories import projects
from casfs.errors import CasfsError, NotFound
from casfs.system.clock import moment
from casfs.threads import sessions as session_threads
from casfs.threads import threads
from casfs.threads.state import state
from casfs.threads.summary import task_line, title


@click.group(cls=LazyGroup)
def sessions() -> None:
    """Sessions of agents that run outside casfs, as threads.

    \b
    casfs sessions list
    casfs sessions import claude
    """


@sessions.command("list")
@click.option("--archived", is_flag=True, help="Only archived ones, which others leave out.")
@json_option
def list_(archived: bool) -> None:
    """List the sessions that this store has recorded, pinned ones first, then the newest. One
    without a name is called by the beginning of its first prompt.

    \b
    casfs sessions list
    """
    values = []
    shown: list[tuple[str, str]] = []  # project and title
    with open_store() as store:
        listed = session_threads.readable(store)
        matching = (each for each in listed if each[0].is_archived == archived)
        for thread, about in sorted(matching, key=lambda each: not each[0].is_pinned):
            project = projects.of_thread(store, thread)
            project_name = "" if project is None else project.name
            shown.append((project_name, title(store, thread)))
            values.append(
                {
                    "thread": thread.id,
                    "agent": about["agent"],
                    "id": about["id"],
                    "directory": about["directory"],
                    **projects.json_fields(project),
                    "status": state(thread),
                    "prompts": threads.length(store, thread),
                    "updatedAt": thread.record["updatedAt"],
                    "name": thread.fields.get("name"),
                    "archived": thread.is_archived,
                    "pinned": thread.is_pinned,
                    "first": task_line(store, thread.record["start"]),
                }
            )
    rows: list[tuple[Cell, ...]] = [
        (
            value["thread"],
            value["agent"],
            project_name,
            value["status"],
            value["prompts"],
            Age(value["updatedAt"]),
            title_text,
        )
        for value, (project_name, title_text) in zip(values, shown, strict=True)
    ]
    for value in values:
        value["updatedAt"] = moment(value["updatedAt"])
    echo_table(values, "THREAD AGENT PROJECT STATUS PROMPTS ACTIVE TITLE", rows, whole="THREAD")


@sessions.command("import")
@click.argument("agent", type=click.Choice(["claude", "codex", "gemini"]))
@click.argument("files", nargs=-1, metavar="[TRANSCRIPT]...")
@json_option
def import_(agent: str, files: tuple[str, ...]) -> None:
    """Record sessions from the transcripts that AGENT has left, all by default.

    What was asked, said and done is there, and the raw lines, but not what the directory held. A
    session that is recorded already stays as it is.

    \b
    casfs sessions import claude
    casfs sessions import codex ~/.codex/sessions/2026/11/27/rollout-2026-11-27T20-01-46-0b6c.jsonl
    """
    from casfs.attach.agents import AGENTS
    from casfs.transcripts import transcript_files
    from engine.sessions import session_import

    home = AGENTS[agent].home(os.environ)
    paths = [Path(file) for file in files] or transcript_files.find(agent, home)
    if not paths:
        raise NotFound(f"{agent} has left no transcript in {home}")
    value: dict[str, list[str]] = {"imported": [], "known": [], "failed": []}
    with open_store() as store:
        for path in paths:
            try:
                thread = session_import.import_session(store, os.environ, agent, path)
            except CasfsError as error:
                say_incomplete(str(error))
                value["failed"].append(str(path))
                continue
            kind = "known" if thread is None else "imported"
            value[kind].append(str(path) if thread is None else thread.id)
    counts = f"{len(value['imported'])} sessions imported, {len(value['known'])} known already"
    echo_lines(value, [counts])
