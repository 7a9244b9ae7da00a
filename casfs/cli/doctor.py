"""`doctor`: what is stale, and what mends it."""

from __future__ import annotations

import click

from casfs.cli.common import open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines, json_option


@click.command()
@json_option
def doctor() -> int:
    """Tell which mounts, workspaces and worktrees are stale, and what mends each; change nothing.

    Exit 1 where something is.

    \b
    casfs doctor
    """
    # Heavier than what every command imports.
    from casfs.maintenance import stale

    with open_store() as store:
        findings = list(stale.listing(store))
    lines = [
        line
        for finding in findings
        for line in (
            f"{finding.kind} {finding.path}: {finding.problem}",
            f"    {finding.remedy}",
        )
    ]
    echo_lines({"stale": [record(item) for item in findings]}, lines or ["nothing is stale"])
    return 1 if findings else 0
