"""`projects`: what the store has of each project, and the way to forget one."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import open_store
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_result, json_option, warn
from casfs.cli.table import Age, Cell, echo_table
from casfs.errors import NotFound
from casfs.maintenance import project_listing
from casfs.maintenance.project_listing import ProjectSummary
from casfs.system.clock import moment
from casfs.system.sizes import readable


@click.group(cls=LazyGroup)
def projects() -> None:
    """Projects: repositories and directories in which agents have worked.

    \b
    casfs projects list
    casfs projects forget ./old
    """


@projects.command("list")
@click.option("--room", is_flag=True, help="Also how much room each takes; reads all of it.")
@json_option
def list_(room: bool) -> None:
    """List the projects, the last active first. A linked work tree is part of its repository.

    \b
    casfs projects list
    casfs projects list --room
    """
    with open_store() as store:
        listed = project_listing.listing(store)
        sizes = [project_listing.room(store, each.all_threads) if room else None for each in listed]
    values = [_value(each, size) for each, size in zip(listed, sizes, strict=True)]
    rows: list[tuple[Cell, ...]] = [
        (
            str(each.directory) + ("" if each.exists else " (gone)"),
            each.sessions,
            each.open or None,
            each.runs,
            Age(each.updated_ms) if each.updated_ms else None,
            ", ".join(each.agents),
            ", ".join(each.worktrees),
            None if size is None else readable(size),
        )
        for each, size in zip(listed, sizes, strict=True)
    ]
    headers = "PROJECT SESSIONS OPEN RUNS ACTIVE ATTACHED WORKTREES ROOM"
    echo_table(values, headers, rows, whole="PROJECT")


@projects.command()
@click.argument("directory", metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@json_option
def forget(directory: str, dry_run: bool) -> None:
    """Remove the sessions and threads that the store has of a project.

    The directory stays as it is, and so do checkpoints, which have names of their own, worktrees,
    and what `casfs undo` can take back there. `casfs undo --store` restores all of it until gc
    deletes it. A directory in a project stands for the project.

    \b
    casfs projects forget ./old
    """
    from engine.threads import project_removal

    with open_store() as store:
        project = project_listing.find(store, directory)
        if project is None:
            raise NotFound(f"no project {directory} in this store; see `casfs projects list`")
        if dry_run:
            removal = None
            project_removal.removable_heads(store, project)  # refuses what forget would
        else:
            removal = project_removal.remove(store, project)
    value = {**_value(project, None), "removal": removal}
    verb = "would be removed" if dry_run else "removed"
    line = f"{verb}: {project.sessions} sessions and {project.runs} runs of {project.directory}"
    if removal is not None:
        line = f"{removal} {line}; `casfs undo --store` restores them until gc deletes them"
    echo_result(value, line)
    for attachment in project.attachments:
        command = f"casfs detach {attachment.agent} --project {attachment.directory}"
        warn(f"{attachment.agent} is attached there still: {command}")


def _value(project: ProjectSummary, size: int | None) -> dict[str, Any]:
    return {
        "directory": str(project.directory),
        "exists": project.exists,
        "sessions": project.sessions,
        "open": project.open,
        "runs": project.runs,
        "updatedAt": moment(project.updated_ms) if project.updated_ms else None,
        "attached": project.agents,
        "worktrees": project.worktrees,
        "bytes": size,
    }
