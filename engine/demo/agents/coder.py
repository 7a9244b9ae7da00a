"""The coder: each round applies the next of its candidate patches.

A candidate continues from the one before it, so the first that applies to the workspace is the
next to try: what was tried is read from the code itself, not remembered.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workbench import changed_files, fenced, json_objects, must, phases, report, run

CANDIDATES = Path(__file__).resolve().parent.parent / "patches"


def next_candidate() -> Path | None:
    """Return the first candidate that applies to the workspace."""
    for patch in sorted(CANDIDATES.glob("*.patch")):
        if run("git", "apply", "--check", str(patch)).returncode == 0:
            return patch
    return None


def current_phase(prompt: str) -> dict[str, str]:
    """Return the first phase that no coder has reported yet, else the last one."""
    done = [found.get("completedPhase") for found in json_objects(prompt)]
    planned = phases(prompt)
    return next((phase for phase in planned if phase["hash"] not in done), planned[-1])


def main() -> None:
    """Do one round of work."""
    phase = current_phase(sys.stdin.read())
    heading = f"# {phase['title']}"
    meta: dict[str, Any] = {"completedPhase": phase["hash"], "status": "completed"}
    patch = next_candidate()
    if patch is None:
        summary = "No candidate patch is left to try."
        meta |= {"status": "failed", "filesChanged": [], "summary": summary}
        report(heading, summary, meta=meta)
        return
    text = patch.read_text("utf-8")
    summary, change = text.split("\n\n", 1)
    must("git", "apply", str(patch))
    meta |= {"filesChanged": changed_files(), "summary": summary}
    report(heading, f"{summary} (`{patch.name}`)", fenced(change, "diff"), meta=meta)


if __name__ == "__main__":
    main()
