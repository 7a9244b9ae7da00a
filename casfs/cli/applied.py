"""The output of commands that apply changes to a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from casfs.cli.diff_output import letter_json, shown_path
from casfs.cli.output import echo_json, echo_line, wants_json, warn
from casfs.cli.restore import aside_json, operation_json, print_aside, print_failed, way_back
from casfs.trees.restore.apply import Applied


def report_applied(
    done: Applied,
    source: Mapping[str, Any],
    directory: str,
    *,
    check: bool,
) -> int:
    """Prints what was changed in a directory; returns the exit code. `source`: what was applied, in
    the JSON."""
    merged = done.merged
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
                "operation": operation_json(done.operation),
            },
            pretty=False,
        )
    else:
        for change in merged.changed:
            echo_line(change.letter.encode() + b" " + shown_path(change))
        for path, why in merged.conflicts:
            echo_line(b"conflict: %s: %s" % (path, why.encode()))
        if done.operation is not None:
            echo_line(way_back(directory))
        if not merged.changed and not merged.conflicts:
            echo_line("nothing to apply")
    print_aside(done.aside)
    print_failed(done.failed)
    return 1 if merged.conflicts else 0
