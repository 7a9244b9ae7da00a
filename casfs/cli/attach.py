"""`attach`, `detach`: agents that run outside casfs, and report to the store by their hooks."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from casfs import config
from casfs.attach import (
    agents,
    attachments,
    codex_trust,
    git_exclude,
    spool,
    state,
    user_service,
)
from casfs.attach.agents import OutsideAgent
from casfs.attach.attachments import Attachment, SettingsChange
from casfs.cli.background import start_daemon
from casfs.cli.common import open_store, options_as, store_root
from casfs.cli.json_values import moment, times
from casfs.cli.output import (
    echo_line,
    echo_lines,
    echo_result,
    json_option,
    say_incomplete,
    wants_json,
    warn,
)
from casfs.cli.table import Age, Cell, echo_table
from casfs.directories.projects import work_tree_of
from casfs.errors import CasfsError, NotFound, Refused, Usage
from casfs.store.store import FORMAT_FILE, Store
from casfs.system import daemon_socket, reserve
from casfs.system.home import refuse_home_or_root
from casfs.trees.git.index import TrackedFiles

AGENT = click.Choice([*agents.AGENTS])
project_option = click.option(
    "--project", metavar="DIR", help="Only in this project (default: that of the directory)."
)
user_option = click.option("--user", is_flag=True, help="In all projects of yours.")


class AttachOptions(NamedTuple):
    """Of `attach AGENT`. `project`: the directory, None for the default; `trust`: the hooks, as
    codex asks for; `worktrees`: also have its worktrees made by casfs; `service`: make the daemon a
    service where there is systemd."""

    project: str | None
    user: bool
    trust: bool
    worktrees: bool
    service: bool
    dry_run: bool


@click.command()
@click.argument("agent", required=False, type=AGENT)
@project_option
@user_option
@click.option("--trust", is_flag=True, help="Of codex: also trust the hooks, as codex asks.")
@click.option("--worktrees", is_flag=True, help="Of claude: have its worktrees made by casfs.")
@click.option(
    "--service/--no-service",
    default=True,
    help="Start the daemon with each login, where you have systemd (default).",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written; change nothing.")
@click.option("--list", "listing", is_flag=True, help="List what is attached.")
@click.option("--pause", metavar="DIR", help="Record no sessions in DIR for now.")
@click.option("--resume", metavar="DIR", help="Record them again.")
@json_option
@options_as(AttachOptions)
def attach(
    agent: str | None,
    options: AttachOptions,
    listing: bool,
    pause: str | None,
    resume: str | None,
) -> None:
    """Record what AGENT does from now on: each session is a thread, each prompt a step.

    AGENT runs as before; its settings get hooks, which `casfs detach` takes out again.

    \b
    casfs attach claude
    casfs attach claude --user
    casfs attach claude --worktrees
    casfs attach codex --trust
    casfs attach --list
    casfs attach --pause ./private
    """
    chosen = [agent is not None, listing, pause is not None, resume is not None]
    if sum(chosen) != 1:
        raise Usage("give AGENT, --list, --pause DIR or --resume DIR")
    if listing:
        _list()
    elif agent is not None:
        _attach(agents.AGENTS[agent], options)
    else:
        _pause(pause or resume or "", is_paused=pause is not None)


@click.command()
@click.argument("agent", required=False, type=AGENT)
@project_option
@user_option
@click.option("--all", "is_all", is_flag=True, help="All agents, in all projects.")
@json_option
def detach(agent: str | None, project: str | None, user: bool, is_all: bool) -> None:
    """Take the hooks of `casfs attach` out of the settings of AGENT; its threads stay.

    \b
    casfs detach claude
    casfs detach claude --user
    casfs detach --all
    """
    if is_all == (agent is not None) or (is_all and (user or project is not None)):
        raise Usage("give AGENT, or --all without anything else")
    root = store_root()
    if agent is None:
        done = _detach_all(root)
    else:
        directory = _project(agents.AGENTS[agent], project, user)
        named = None if directory is None else str(directory)
        done = attachments.detach(root, agent, named, os.environ)
    if any(attachment.agent == agents.CODEX.name for attachment in done):
        _forget_trust(root)
    if not attachments.load(root).attached:
        user_service.remove(root, os.environ)
    lines = [f"{attachment.agent} detached: {attachment.file}" for attachment in done]
    echo_lines([_value(attachment) for attachment in done], lines or ["nothing is attached"])


def _detach_all(root: Path) -> list[Attachment]:
    """Detaches all that can be; names what cannot, and exits with 1 then."""
    done: list[Attachment] = []
    for attachment in attachments.load(root).attached:
        try:
            done += attachments.detach(root, attachment.agent, attachment.directory, os.environ)
        except CasfsError as error:
            say_incomplete(str(error))
    return done


def _attach(agent: OutsideAgent, options: AttachOptions) -> None:
    dry_run = options.dry_run
    if options.trust and agent is not agents.CODEX:
        raise Usage(f"--trust is for codex; {agent.name} does not ask for it")
    if options.worktrees and not agent.worktrees:
        raise Usage(f"--worktrees is for claude; {agent.name} makes none by hooks")
    directory = _project(agent, options.project, options.user)
    if directory is not None:
        refuse_home_or_root(directory, force=None)
        _refuse_tracked(agent.settings(directory, os.environ), directory)
    root = store_root()
    has_service = options.service and user_service.is_available()
    change = attachments.plan(root, agent, directory, os.environ, worktrees=options.worktrees)
    if not wants_json():
        for line in _diff(change) if dry_run else _summary(root, change, options):
            echo_line(line)
        if has_service:
            file = user_service.unit_file(root, os.environ)
            echo_line(f"{file} starts the daemon with each login; --no-service leaves it out")
    value = _value(change.attachment) | {"dryRun": dry_run, "trusted": None}
    where = "all projects" if directory is None else str(directory)
    if dry_run:
        echo_result(value, f"{agent.name} would be attached in {where}")
        return
    _make_store(root)
    attachments.attach(root, change, os.environ)
    file = Path(change.attachment.file)
    if directory is not None and git_exclude.is_seen(file, directory, os.environ):
        warn(f"git sees {file}, which has paths of this machine: keep it out of commits")
    if has_service:
        _start_service(root)
    start_daemon(root)
    if options.trust:
        value["trusted"] = codex_trust.trust(root / spool.HOOKS / spool.PROGRAM)
    elif agent.note:
        warn(agent.note)
    echo_result(value, f"{agent.name} attached in {where}; sessions that begin now are recorded")


def _start_service(root: Path) -> None:
    """Installs and starts the systemd service. A failure is only a warning: the hooks are written
    by now, and they start the daemon where it does not run."""
    try:
        user_service.install(root, os.environ)
        if not daemon_socket.runs(root):
            user_service.start(root, os.environ)
    except CasfsError as error:
        warn(f"no service for the daemon: {error}")


def _make_store(root: Path) -> None:
    """Makes the store where there is none: `attach` is the first command of many a person. One of
    an older casfs gets the types that sessions need."""
    if config.shared(root) is not None:
        return
    is_new = not (root / FORMAT_FILE).exists()
    with Store.init(root) as store:
        if is_new:
            from engine.workflow import shipped

            shipped.install(store)
    reserve.allocate(root)


def _forget_trust(root: Path) -> None:
    """Trust that stays is of hooks that are gone: it harms nobody, and codex may be gone, too."""
    try:
        codex_trust.forget(root / spool.HOOKS / spool.PROGRAM)
    except CasfsError as error:
        warn(f"codex still lists these hooks as trusted: {error}")


def _project(agent: OutsideAgent, project: str | None, user: bool) -> Path | None:
    """Returns the directory of a project, None for all of the user: that of --project, or the
    repository of the working directory, or that itself. An agent that has no settings of a project
    is attached for all."""
    if user and project is not None:
        raise Usage("give --project DIR or --user, not both")
    if user or (project is None and agent.project_file is None):
        return None
    if project is None:
        return _followed(work_tree_of(Path.cwd()))
    directory = Path(os.path.realpath(project))
    # What is attached in a project that is gone must be named to be detached.
    is_gone = any(item.directory == str(directory) for item in attachments.gone(store_root()))
    if not directory.is_dir() and not is_gone:
        raise NotFound(f"{project} is not a directory")
    return _followed(directory)


def _followed(directory: Path) -> Path:
    """Returns a project; where it was moved, what is attached there moves with it."""
    if directory.is_dir():
        for attachment in attachments.follow(store_root(), directory):
            warn(f"{attachment.agent}: {attachment.directory} is at {directory} now")
    return directory


def _refuse_tracked(file: Path, directory: Path) -> None:
    """Raises Refused for a file that git shares: its hooks would run on the machines of others."""
    path = os.fsencode(file.relative_to(directory))
    if TrackedFiles(directory, above=True).has(path):
        raise Refused(f"git tracks {file}, which others share; take it out, or attach with --user")


def _summary(root: Path, change: SettingsChange, options: AttachOptions) -> Iterator[str]:
    agent = agents.AGENTS[change.attachment.agent]
    if change.after == change.before:
        yield f"{change.attachment.file} has all hooks already"
        return
    what = f"a hook for {', '.join(agent.events)}" if agent.events else "a plugin"
    yield f"{change.attachment.file} gets {what}:"
    yield f"  {attachments.command(root / spool.HOOKS / spool.PROGRAM, agent)}"
    if options.worktrees:
        yield f"and for {', '.join(agent.worktrees)}:"
        yield f"  {root / spool.HOOKS / spool.WORKTREE_SCRIPT}"


def _diff(change: SettingsChange) -> Iterator[str]:
    """Yields the lines that are added; what is around them may be keys."""
    file = change.attachment.file
    yield f"{file}:"
    before = (change.before or "").splitlines()
    for line in difflib.unified_diff(before, change.after.splitlines(), n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _pause(directory: str, *, is_paused: bool) -> None:
    path = os.path.realpath(directory)
    attachments.set_paused(store_root(), path, is_paused=is_paused)
    verb = "not recorded" if is_paused else "recorded again"
    echo_result({"directory": path, "paused": is_paused}, f"sessions in {path} are {verb}")


def _list() -> None:
    from casfs.transcripts import unheard

    with open_store() as store:
        value = unheard.listing(store, os.environ)
    rows: list[tuple[Cell, ...]] = [
        (
            attached["agent"],
            attached["directory"] or "all projects",
            Age(attached["lastSpokeAt"] or 0),
            attached["fault"],
        )
        for attached in value["attached"]
    ]
    rows += [("-", directory, 0, "paused") for directory in value["paused"]]
    echo_table(times(value), "AGENT PROJECT SPOKE FAULT", rows, whole="PROJECT")
    if not wants_json():
        for warning in state.warnings(value):
            warn(warning)


def _value(attachment: Attachment) -> dict[str, Any]:
    return {
        "agent": attachment.agent,
        "directory": attachment.directory,
        "file": attachment.file,
        "attachedAt": moment(attachment.attached_ms),
    }
