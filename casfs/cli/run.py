"""`casfs run`: a thread from its start to its result, watched and answered on the terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from casfs import config
from casfs.agents import HUMAN
from casfs.checkpoints.revisions import state_if_any, step_state
from casfs.cli import permission, run_check
from casfs.cli.background import start_daemon
from casfs.cli.common import open_store, store_root
from casfs.cli.diff import DiffFormat, print_state_diff
from casfs.cli.json_values import times
from casfs.cli.keyboard import AnsweredElsewhere, read_line
from casfs.cli.output import echo, echo_json, echo_line, json_option, wants_json, warn
from casfs.cli.thread import arguments, changes, start
from casfs.cli.thread.log import print_event
from casfs.cli.thread.screen import Screen
from casfs.cli.thread.status_colours import coloured
from casfs.cli.thread.wait import check_result, watch
from casfs.cli.trust import trust_workflow
from casfs.errors import Conflict, NotFound, Refused, Usage
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import lookup, threads
from casfs.threads.permission import PermissionRequest
from casfs.threads.state import says, state
from casfs.threads.summary import content_text, head_fields
from casfs.threads.threads import SUSPENDED, Thread
from casfs.trees import tree
from casfs.trees.recorded_state import with_private
from casfs.trees.scratch_store import ScratchStore
from engine.agents import loader
from engine.threads import call_stack
from engine.workflow import registry, shipped

if TYPE_CHECKING:
    from casfs.agents.notation import AgentSpec

SINGLE = "single"  # the workflow of one agent
MAX_PATHS = 200
MAX_QUESTION_CHARS = 4000
OTHERS = ("workflow", "text", "workspace", "no_workspace", "wait", "json")  # of `thread start`


@click.command()
@click.argument("target", required=False, metavar="WORKFLOW|AGENT")
@click.argument("text", required=False, metavar="TASK|@FILE|-")
@click.argument("directory", required=False, metavar="[DIR]")
@click.option(
    "--continue",
    "thread",
    is_flag=False,
    flag_value=lookup.LAST,
    metavar="ID",
    help="Come back to it.",
)
@click.option("--apply/--no-apply", "applies", default=None, help="Do not ask about its changes.")
@run_check.check_options
@json_option
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> int:
    """Run a WORKFLOW, or one AGENT, on a copy of DIR (the working directory), and watch it.

    Starts the daemon where none runs, and asks on the terminal what a person has to answer. Its
    changes are applied to DIR only at the end, if you say so. Ctrl-C leaves the thread running;
    `--continue ID DIR` comes back (ID: default the newest), and tries a failed step again.

    \b
    casfs run command:./agent.sh "Fix the tests" --check "make test" --tries 5
    casfs run develop @task.md ./project --agent llm:small --apply
    """
    names = ("target", "text", "directory", "thread", "applies")
    target, task, folder, again, _ = map(options.pop, names)
    if again is not None:
        target, task, folder = "", None if task else "", target
    if target is None or task is None:
        raise Usage("give a workflow or an agent, and a task; or --continue, and only DIR")
    if not os.path.isdir(directory := os.path.abspath(folder or ".")):
        raise NotFound(f"no directory {directory}")
    for parameter in ctx.command.params if again is not None else ():
        is_given = ctx.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if is_given and parameter.name in options and parameter.name not in ("agents", "yes"):
            raise Usage(f"{parameter.opts[0]} is for a new thread, not for --continue")
    check = run_check.check_agent(options.pop("check"), options.pop("tries"))
    root = store_root()
    fields = arguments.agent_fields(options.pop("agents"), options.pop("file"))
    with open_store() as store:
        if again is None:
            patterns = options.pop("patterns")
            if options.pop("yes"):
                trust_workflow(store, target)
            fields |= arguments.start_fields(arguments.StartOptions(**options))
            fields |= {"input": arguments.text_or_file("@-" if task == "-" else task)}
            fields |= _player(store, text=target, fields=fields, check=check)
            fields |= arguments.record_workspace(
                directory, patterns, allow_secret=fields["allow_secret"]
            )
        else:
            id = lookup.find(store, again).id
            if options.pop("yes"):
                start.trust_thread(id)
        start_daemon(root)
        if again is None:
            id = daemon_socket.request_of_agents(root, os.environ, "start", **fields)["id"]
        else:
            with suppress(Conflict):  # it is not suspended, or asks a person
                daemon_socket.request_of_agents(root, os.environ, "resume", id=id, **fields)
        click.echo(f"casfs: thread {id}", err=True)
        screen = Screen(store, threads.get(store, id), err=wants_json())
        done = 0
        show = (lambda event: print_event(store, event)) if wants_json() else screen.show
        while True:
            watch(
                store,
                id,
                done=done,
                screen=screen,
                show=show,
                back=f"run --continue {id} {shlex.quote(directory)}",
            )
            thread = threads.get(store, id)
            done = threads.length(store, thread)
            try:
                answer = None if wants_json() else _ask(store, thread)
            except AnsweredElsewhere:
                echo_line("\nanswered elsewhere")
                continue
            if answer is None:
                return _end(ctx, store, thread=thread, directory=directory)
            try:
                # To the question that was shown: another one may be open by now.
                fields = {"input": answer, "question": thread.record["question"]}
                daemon_socket.request_of_agents(root, os.environ, "resume", id=id, **fields)
            except Refused as error:  # it does not fit, or was answered elsewhere
                warn(f"not accepted: {error}")


run.params += [parameter for parameter in start.start.params if parameter.name not in OTHERS]


def _player(
    store: Store, text: str, fields: dict[str, Any], check: AgentSpec | None
) -> dict[str, Any]:
    """Returns the fields of a start request for a workflow, or for an agent, with the agent of its
    check. Raises NotFound, Usage."""
    flows = [name for name, _ in registry.listing(store)]
    agents = config.agents(store_root(), os.environ)
    known = [*fields.get("profiles", ()), *agents, *loader.names()]
    if text in flows and (registry.is_trusted(store, text) or text not in known):
        registry.find_trusted(store, text)
        if check:
            way = f"add a role to {text} that an agent `command` with the config `check` plays"
            raise Usage(f"--check is for an agent, and {text} is a workflow; {way}")
        return {"workflow": text}
    name = re.split("[:<>=!~]", text, maxsplit=1)[0].strip()
    if name not in known:
        raise NotFound(f"no workflow {name!r}, and {loader.unknown(name, [*flows, *known])}")
    if fields["agents"] or fields["every"]:
        raise Usage(f"--agent is for the roles of a workflow; {name} is an agent")
    flow = run_check.WORKFLOW if check else SINGLE
    if flow not in flows:
        shipped.install(store)  # the store is older than this workflow
    agents_by_role = {"agent": arguments.parse_agent(text, text)}
    if check:
        agents_by_role[run_check.ROLE] = check
    return {"workflow": flow, "agents": agents_by_role}


def _ask(store: Store, thread: Thread) -> str | None:
    """Asks what a thread, or one that it waits for, asks a person. None without an answer. Raises
    AnsweredElsewhere."""
    waits = call_stack.awaited_children(store, thread) if thread.status == SUSPENDED else []
    thread = [thread, *waits][-1]
    if thread.status != SUSPENDED or thread.record["cause"] != HUMAN:
        return None
    role = thread.intent["role"]
    words = {}
    echo_line(f"? {thread.record['reason']}")
    request = PermissionRequest.of_question(store, thread.record["question"])
    if request is not None:
        question = thread.record["question"]
        asking = thread.id

        def is_open() -> bool:
            current = threads.get(store, asking)
            return current.status == SUSPENDED and current.record.get("question") == question

        return permission.ask(store.root, thread.id, request, is_open)
    if store.node(threads.agents(store, thread)[role]).payload["package"] == "human":
        schema = registry.load(store, threads.workflow(store, thread)).roles[role].schema
        required = schema.get("required", [])
        fields = schema.get("properties", {})
        field = fields.get(required[0]) if len(required) == 1 else None
        values = field.get("enum", ()) if isinstance(field, dict) else ()
        words = {str(choice): json.dumps({required[0]: choice}) for choice in values}
    else:
        question = thread.record["question"]
        said = "" if question is None else content_text(store, question)
        echo(said.strip()[-MAX_QUESTION_CHARS:])
    while (line := read_line(f"{' or '.join(words) or 'answer'}> ")) == "":
        pass
    return words.get(line or "", line)


def _end(ctx: click.Context, store: Store, thread: Thread, directory: str) -> int:
    """Shows the result, and applies it where that is wanted. Raises as `check_result`."""
    applies = ctx.params["applies"]
    end = threads.end(store, thread)
    scratch = ScratchStore(store)
    first = state_if_any(store, thread.record["start"])
    last = first and step_state(store, thread, index=None)
    sides = [side and with_private(scratch, side) for side in (first, last)]
    different = (change.path for change in tree.changes(scratch, sides[0], sides[1]))
    changed = (path for path in different if b".git" not in path.split(b"/"))
    paths = list(islice(changed, MAX_PATHS + 1))  # one more, to know whether that is all
    report = run_check.last_report(store, thread)
    how_to_apply = f"`casfs thread apply {thread.id} {shlex.quote(directory)}` does it"
    if wants_json():
        checked = {"checked": report is not None and report["status"] == "passed"}
        echo_json({"event": "over", **checked, **times(head_fields(thread))}, pretty=False)
    elif end is not None:
        spent = thread.record["spent"]
        word = coloured(state(thread), state(thread))
        tokens = f", {spent['tokens']} tokens" if spent["tokens"] else ""
        summary = run_check.result_text(report) if report else end.payload["summary"]
        echo_line(f"{word}: {summary}, {spent['wallMs'] / 1000:.1f} s{tokens}")
        if first and last and paths:
            form = DiffFormat(True, patch=True)
            print_state_diff(store, first, new=last, format=form, paths=paths[:MAX_PATHS])
        if len(paths) > MAX_PATHS:
            echo_line(f"… `casfs thread diff {thread.id}` shows all")
        if paths and end.payload["returnCode"] != 0:
            echo_line(f"not applied, since it {says(thread)}; {how_to_apply}")
    check_result(store, thread)
    if paths and applies is None and not wants_json():
        applies = read_line(f"Apply to {directory}? [y/N] ") in ("y", "Y", "yes")
    if paths and applies:
        return int(ctx.invoke(changes.apply, id=thread.id, directory=directory))
    if paths and not wants_json():
        echo_line(f"not applied; {how_to_apply}")
    return 0
