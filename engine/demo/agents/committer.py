"""The committer: commits the workspace on a branch of the thread's own."""

from __future__ import annotations

import os
import sys

from workbench import fenced, must, phases, report, run

IDENTITY = ("-c", "user.name=casfs demo", "-c", "user.email=demo@example.org")


def main() -> None:
    """Commit everything, or say why that failed."""
    title = "; ".join(phase["title"] for phase in phases(sys.stdin.read()))
    branch = f"casfs/{os.environ['CASFS_THREAD']}"
    for command in (
        ("switch", "--quiet", "--force-create", branch),
        ("add", "--all"),
        (*IDENTITY, "commit", "--quiet", f"--message={title}"),
    ):
        result = run("git", *command)
        if result.returncode != 0:
            error = (result.stderr + result.stdout).strip()
            report("# Not committed", fenced(error), meta={"status": "failed", "error": error})
            return
    meta = {
        "status": "committed",
        "branch": branch,
        "commitSha": must("git", "rev-parse", "HEAD").strip(),
    }
    report("# Committed", fenced(must("git", "show", "--stat", "HEAD")), meta=meta)


if __name__ == "__main__":
    main()
