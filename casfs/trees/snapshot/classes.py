"""The classes of paths, which decide in which tree of a recorded state an entry is.

    work      the default, also what `.gitignore` names: in the work
    private   files whose names hold secrets and nothing else; in a git work tree also untracked
              files in which the scanner finds a secret; what `[snapshot] private` names: kept here
              only. A file that git tracks is work whatever it holds
    derived   directories that a tool makes again, by evidence (`casfs.trees.snapshot.derived`): of
              a thread kept here only, of a checkpoint left out
    ignored   what `.casfsignore`, --exclude and the like name: recorded nowhere

What the rules can tell from a name is a `Verdict`, given while a directory is listed. The rest is
decided by `settle`, once the contents were read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from casfs.trees.snapshot.git_index import TrackedFiles
from casfs.trees.snapshot.ignore import BY_SETTING, IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport


class LocalPaths(NamedTuple):
    """The paths of `local` that are not in the work, with the reason of each. `by_content`: those
    that are private because the scanner found a secret in them."""

    reasons: Mapping[bytes, str]
    by_content: frozenset[bytes]


def settle(
    report: SnapshotReport,
    root: Path,
    rules: IgnoreRules,
    private_before: Collection[bytes] = (),
    *,
    above: bool = True,
) -> LocalPaths:
    """Decides of everything that a snapshot of `root` reported whether it is work, and moves what
    is work after all to `report.exposed`. `private_before`: files that were recorded as private:
    without git, as in a directory that a checkpoint was restored to, they stay so while they hold a
    secret. `rules` say what a person has called work. `above`: as of TrackedFiles."""
    tracked = TrackedFiles(root, above=above)
    reasons = dict(report.derived)
    for path, reason in report.private.items():
        if reason == BY_SETTING or not tracked.has(path):
            reasons[path] = reason
    by_content = set()
    for path, findings in report.findings.items():
        if path in reasons or _is_below(path, reasons):
            continue
        is_tracked = tracked.has(path)
        if rules.is_work(path, path.rpartition(b"/")[2]):
            report.exposed[path] = findings
        elif is_tracked is False or (is_tracked is None and path in private_before):
            reasons[path] = str(findings[0])
            by_content.add(path)
        else:
            report.exposed[path] = findings
    report.local = {path: why for path, why in reasons.items() if path not in report.derived}
    return LocalPaths(reasons, frozenset(by_content))


def _is_below(path: bytes, directories: Mapping[bytes, str]) -> bool:
    parts = path.split(b"/")
    return any(b"/".join(parts[:length]) in directories for length in range(1, len(parts)))
