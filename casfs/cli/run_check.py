"""`casfs run --check`: the command that says whether the agent has done its task. It is the second
role of the shipped workflow `checked`, so the daemon runs it, and asks the agent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from casfs.errors import Usage
from casfs.threads import threads

if TYPE_CHECKING:
    from casfs.agents.notation import AgentSpec
    from casfs.store.store import Store
    from casfs.threads.threads import Thread

WORKFLOW = "checked"
ROLE = "check"
REPORT = {"status", "command", "exitCode", "tries"}
TRIES = 3
MAX_TRIES = 20
F = TypeVar("F", bound=Callable[..., Any])


def check_options(command: F) -> F:
    # The help lists last what is added first.
    tries_help = f"Of AGENT, until --check succeeds (default: {TRIES})."
    command = click.option("--tries", type=click.IntRange(1, MAX_TRIES), help=tries_help)(command)
    check_help = "Shell command that has to succeed; AGENT gets its output and tries again."
    return click.option("--check", metavar="COMMAND", help=check_help)(command)


def check_agent(command: str | None, tries: int | None) -> AgentSpec | None:
    """Returns the agent of the role ROLE, None without a command. Raises Usage."""
    if command is None:
        if tries is not None:
            raise Usage("--tries is for --check; give --check COMMAND, too")
        return None
    if not command.strip():
        raise Usage("--check: the command is empty; give one, such as --check 'make test'")
    config = {"argv": ["sh", "-c", command], "check": {"tries": tries or TRIES}}
    return {"name": "command", "version": "", "config": config}


def last_report(store: Store, thread: Thread) -> Mapping[str, Any] | None:
    """Returns the members REPORT of the check that a thread ended with; None where it did not end
    with one."""
    if thread.fields["workflow"] != WORKFLOW or threads.end(store, thread) is None:
        return None
    for step in threads.last_steps(store, thread, 1):
        meta: Mapping[str, Any] = step.payload["meta"]
        # A person may have put another workflow under this name.
        return meta if step.payload["role"] == ROLE and meta.keys() >= REPORT else None
    return None


def result_text(report: Mapping[str, Any]) -> str:
    """Returns a report as the end of a thread's line."""
    if report["status"] == "passed":
        return f"checked by `{report['command']}`"
    tries = f"in the last of {report['tries']} tries"
    return f"`{report['command']}` ended with exit code {report['exitCode']} {tries}"
