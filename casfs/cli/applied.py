"""The output of commands that apply changes to a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.cli.diff_output import letter_json, shown_path
from casfs.cli.output import echo_json, echo_line, wants_json, warn
from casfs.cli.restore import aside_json, print_aside, print_failed, undo_command
from casfs.trees.restore.apply import Applied


def report_applied(
    done: Applied,
    source: Mapping[str, Any],
    directory: str,
    saved: Sequence[Checkpoint],
    *,
    check: bool,
) -> int:
    """Prints what was changed in a directory; returns the exit code. `source`: what was applied, in
    the JSON; `saved`: checkpoints of what it held before."""
    merged = done.merged
    if done.undone:
        warn("an interrupted apply was undone before")
    if done.skipped:
        warn(f"{done.skipped} paths in .git are left out")
    if wants_json():
        echo_json(
            {
                **source,
                "directory": directory,
                "check": check,
                "changes": list(map(letter_json, merged.changed)),
                "conflicts": [
                    {"path": os.fsdecode(path), "reason": why} for path, why in merged.conflicts
                ],
                "failed": [
                    {"path": os.fsdecode(path), "reason": why} for path, why in done.failed.items()
                ],
                "aside": aside_json(done.aside),
                "recordedAs": [f"{recorded.name}@{recorded.id}" for recorded in saved],
            },
            pretty=False,
        )
    else:
        for change in merged.changed:
            echo_line(change.letter.encode() + b" " + shown_path(change))
        for path, why in merged.conflicts:
            echo_line(b"conflict: %s: %s" % (path, why.encode()))
        for checkpoint in saved:
            echo_line(f"undo: {undo_command(checkpoint, directory)}")
        if not merged.changed and not merged.conflicts:
            echo_line("nothing to apply")
    print_aside(done.aside)
    print_failed(done.failed)
    return 1 if merged.conflicts else 0
