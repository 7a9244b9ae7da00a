"""Commands that let a thread run, by the daemon: start, resume, trust, compact, fork."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from casfs.checkpoints.revisions import STEP
from casfs.cli.common import Count, open_store, options_as, store_root
from casfs.cli.output import echo_lines, echo_result, json_option, wants_json
from casfs.cli.snapshot_options import allow_secret_option
from casfs.cli.thread.arguments import (
    StartOptions,
    agent_fields,
    agent_option,
    name_option,
    parse_agent,
    record_workspace,
    start_fields,
    text_or_file,
    trust_option,
    variants,
    wait_option,
)
from casfs.cli.thread.wait import wait_until_over
from casfs.cli.trust import ask_for_trust, echo_trusted, trust_workflow
from casfs.errors import Usage
from casfs.threads import lookup, threads


class Files(NamedTuple):
    workspace: str | None
    no_workspace: bool
    patterns: tuple[str, ...]


class Players(NamedTuple):
    agents: tuple[str, ...]
    file: str | None


@dataclass(frozen=True, slots=True)
class ForkOptions:  # not a tuple, which has a `count` itself
    at: str | None
    count: int
    max_steps: int | None
    workflow: str | None
    hint: str | None
    name: str | None


@click.command()
@click.argument("workflow")
@click.option("--input", "text", required=True, metavar="TEXT|@FILE", help="The task.")
@click.option("--workspace", metavar="DIR|TREE", help="Tree that agents work on (default: empty).")
@click.option("--no-workspace", is_flag=True, help="Record no files; each run gets an empty dir.")
@agent_option
@click.option(
    "--agents", "file", metavar="FILE", help="TOML with [agents.ROLE] and [agents.NAME] tables."
)
@click.option(
    "--max-steps",
    "max_steps",
    type=Count(1),
    default=100,
    show_default=True,
    help="Step limit.",
)
@click.option(
    "--on-limit",
    type=click.Choice(["suspend", "end"]),
    default="suspend",
    show_default=True,
    help="At the step limit: suspend, or end with return code 2.",
)
@click.option("--max-tokens", type=Count(1), help="Token budget; suspended when it is spent.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(0, min_open=True),
    help="Time budget; suspended when it is spent.",
)
@click.option(
    "--compact-above",
    type=Count(1),
    metavar="TOKENS",
    help="Context size that starts --compact-by.",
)
@click.option("--compact-by", metavar="NAME[:JSON]", help="Agent that summarises earlier steps.")
@click.option("--turn-trees", is_flag=True, help="Record the files after each tool call.")
@click.option(
    "--exclude",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Record nowhere what matches, as .casfsignore; agents get a copy.",
)
@allow_secret_option
@name_option
@click.option("--yes", is_flag=True, help="Trust WORKFLOW, if it came from elsewhere.")
@click.option("--idempotency-key", metavar="KEY", help="Return the existing thread for this key.")
@wait_option
@json_option
@options_as(StartOptions)
@options_as(Files, "files")
@options_as(Players, "players")
def start(
    workflow: str,
    text: str,
    files: Files,
    players: Players,
    options: StartOptions,
    wait: bool,
    yes: bool,
) -> int:
    """Start a thread of WORKFLOW and print its id; the daemon, too, where none runs.

    \b
    casfs thread start hello --input World --wait
    casfs thread start hello --input World --agent critic=llm:small --agent greeter=command:./greet
    """
    from engine.workflow import registry

    if files.no_workspace and files.workspace is not None:
        raise Usage("--no-workspace and --workspace exclude each other")
    fields = {
        **start_fields(options),
        **agent_fields(players.agents, players.file),
        "input": text_or_file(text),
        "workspace": False if files.no_workspace else None,
    }
    # Before a large directory is read, or the daemon started.
    with open_store() as store:
        if yes:
            trust_workflow(store, workflow)
        registry.find_trusted(store, workflow)
    if files.workspace is not None:
        fields |= record_workspace(
            files.workspace, files.patterns, allow_secret=options.allow_secret
        )
    answer = _request("start", workflow=workflow, **fields)
    if not (wait and wants_json()):
        echo_result(answer, answer["id"])
    return wait_until_over(answer["id"]) if wait else 0


@click.command()
@click.argument("id")
@click.option("--input", "text", metavar="TEXT|@FILE", help="Answer to its question.")
@click.option("--hint", metavar="TEXT|@FILE", help="Text for the next attempt at a failed step.")
@agent_option
@trust_option
@wait_option
@json_option
def resume(
    id: str, text: str | None, hint: str | None, agents: tuple[str, ...], yes: bool, wait: bool
) -> int:
    """Resume a suspended thread, with its callers and callees; starts the daemon where none runs.

    Agents given by --agent play their roles from now on.

    \b
    casfs thread resume 01K2 --wait
    casfs thread resume 01K2 --agent coder='command:{"argv": ["./other"]}'
    casfs thread resume 01K2 --input '{"approved": true}'
    """
    sources = {"input": text, "hint": hint}
    texts = {
        name: None if source is None else text_or_file(source) for name, source in sources.items()
    }
    if yes:
        trust_thread(id)
    return _ask("resume", id=id, wait=wait, **agent_fields(agents), **texts)


@click.command()
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@json_option
def trust(id: str, yes: bool) -> None:
    """Let a thread run that a pull or an import brought: prints which agents it has, and asks.

    \b
    casfs thread trust 01K2
    """
    from engine.threads import trust as trusting

    with open_store() as store:
        thread = lookup.find(store, id)
        lines = trusting.all_runs(store, thread)
        if not wants_json():
            ask_for_trust(f"thread {thread.id}", lines, yes)
        trusting.trust(store, thread)
    echo_result({"id": thread.id, "runs": lines}, f"trusted {thread.id}")


def trust_thread(id: str) -> None:
    """Trusts the thread that a person names, and prints what it runs on stderr."""
    from engine.threads import trust as trusting

    with open_store() as store:
        thread = lookup.find(store, id)
        echo_trusted(trusting.all_runs(store, thread))
        trusting.trust(store, thread)


@click.command()
@click.argument("id")
@click.option("--text", metavar="TEXT|@FILE", help="Summary.")
@click.option("--agent", metavar="NAME[:JSON]", help="Agent that writes the summary.")
@json_option
def compact(id: str, text: str | None, agent: str | None) -> None:
    """Replace the context before the next step with a summary; print its hash. No step is
    deleted. Starts the daemon where none runs.

    \b
    casfs thread compact 01K2 --agent 'llm:{"model": "small", "baseUrlEnv": "LLM_URL"}'
    """
    from casfs.system import daemon_socket

    if (text is None) == (agent is None):
        raise Usage("give the summary with --text, or an agent that writes it with --agent")
    with open_store() as store:
        thread = lookup.find(store, id)
    summary = None if text is None else text_or_file(text)
    summariser = None if agent is None else parse_agent(agent, "--agent")
    answer = daemon_socket.request(
        _root_with_daemon(), "compact", id=thread.id, text=summary, agent=summariser
    )
    echo_result(answer, answer["summary"])


@click.command()
@click.argument("id")
@click.option("--at", metavar="STEP[.TURN]", help="Step, or turn, to fork after (default: last).")
@click.option("--count", type=Count(1), default=1, help="How many, all at once (default: 1).")
@agent_option
@click.option("--vary", multiple=True, metavar="ROLE=FILE", help="TOML with [[variants]] tables.")
@click.option("--max-steps", type=Count(1), help="Step limit.")
@click.option("--workflow", metavar="NAME|HASH", help="Workflow that decides from there on.")
@click.option("--hint", metavar="TEXT|@FILE", help="Text for the next step.")
@name_option
@trust_option
@wait_option
@json_option
@options_as(ForkOptions)
def fork(
    id: str,
    agents: tuple[str, ...],
    vary: tuple[str, ...],
    options: ForkOptions,
    yes: bool,
    wait: bool,
) -> int:
    """Start a new thread from a step of another, with the workspace of that step; print its id.

    The other thread does not change. Roles without --agent keep their agents; a new workflow has
    all roles that played until there. With --count N the forks take several agents of a role, or
    the [[variants]] of a file, in turn. After a turn, agents that can do so go on with the
    conversation, others begin the step anew over its files. Starts the daemon where none runs.

    \b
    casfs thread fork 01K2 --at 3.2
    casfs thread fork 01K2 --at 3 --agent coder='command:{"argv": ["./other"]}'
    casfs thread fork 01K2 --workflow mended
    casfs thread fork 01K2 --at 3 --count 10 --vary coder=models.toml
    """
    at = options.at
    count = options.count
    if at is not None and not STEP.fullmatch(at):
        raise Usage(f"--at {at}: give the number of a step, or STEP.TURN")
    if wait and count > 1:
        raise Usage("--wait is for one fork; `casfs thread race` waits for several")
    fields = asdict(options)
    fields["hint"] = None if options.hint is None else text_or_file(options.hint)
    if yes:
        trust_thread(id)
    with open_store() as store:
        thread = lookup.find(store, id)
        fields["variants"] = variants(store, thread, texts=agents, files=vary, count=count)
    return _ask("fork", id=thread.id, wait=wait, **fields)


def _root_with_daemon() -> Path:
    """Returns the store's directory; starts its daemon where none runs."""
    from casfs.cli.background import start_daemon

    root = store_root()
    start_daemon(root)
    return root


def _request(op: str, **arguments: Any) -> dict[str, Any]:
    """Asks the daemon, and lends it the caller's variables."""
    from casfs.system import daemon_socket

    answer: dict[str, Any] = daemon_socket.request_of_agents(
        _root_with_daemon(), os.environ, op, **arguments
    )
    return answer


def _ask(op: str, id: str, wait: bool, **arguments: Any) -> int:
    with open_store() as store:
        thread = lookup.find(store, id)
        done = threads.length(store, thread) if wait else 0
    answer = _request(op, id=thread.id, **arguments)
    if not (wait and wants_json()):
        echo_lines(answer, answer.get("ids", [answer["id"]]))
    if answer.get("continues") is False:
        click.echo("casfs: its agent begins the step anew, over the files of that turn", err=True)
    return wait_until_over(answer["id"], done=answer.get("step", done)) if wait else 0
