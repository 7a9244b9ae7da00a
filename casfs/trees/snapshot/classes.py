"""The classes of paths, which decide in which tree of a recorded state an entry is.

    work      the default, also what `.gitignore` names: in the work
    private   files whose names hold secrets and nothing else, and files in which the scanner finds
              a secret, unless git tracks them; what `[snapshot] private` names: kept here only
    derived   directories that a tool makes again, by evidence (`casfs.trees.snapshot.derived`): of
              a thread kept here only, of a checkpoint left out
    ignored   what `.casfsignore`, --exclude and the like name: recorded nowhere

What the rules can tell from a name is a `Verdict`, given while a directory is listed. The rest is
decided by `settle`, once the contents were read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from casfs.trees.git.index import TrackedFiles
from casfs.trees.snapshot.ignore import BY_SETTING, IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport


class LocalPaths(NamedTuple):
    """The paths of `local` that are not in the work, with the reason of each. `by_content`: those
    that are private because the scanner found a secret in them."""

    reasons: Mapping[bytes, str]
    by_content: frozenset[bytes]


def settle(
    report: SnapshotReport,
    tracked: TrackedFiles,
    rules: IgnoreRules,
    private_before: Collection[bytes] = (),
    is_known_work: Callable[[bytes], bool] = lambda path: False,
) -> LocalPaths:
    """Decides of everything that a snapshot reported whether it is work, and moves what is work
    after all to `report.exposed`. `rules` say what a person has called work. `private_before`:
    files that stay private although git tracks them now; `is_known_work`: whether a file was
    recorded as work with the content that it has. Raises Invalid for a damaged git index."""
    reasons = dict(report.derived)
    for path, reason in report.private.items():
        if reason == BY_SETTING or path in private_before or not tracked.has(path):
            reasons[path] = reason
    by_content = set()
    for path, findings in report.findings.items():
        if path in reasons or is_below(path, reasons):
            continue
        is_work = rules.is_work(path, path.rpartition(b"/")[2])
        if not is_work and path not in private_before:
            is_tracked = tracked.has(path)
            # Without git nothing says what a person means to share: no new secret is work.
            is_work = is_known_work(path) if is_tracked is None else is_tracked
        if is_work:
            report.exposed[path] = findings
        else:
            reasons[path] = str(findings[0])
            by_content.add(path)
    report.local = {path: why for path, why in reasons.items() if path not in report.derived}
    return LocalPaths(reasons, frozenset(by_content))


def is_below(path: bytes, directories: Collection[bytes]) -> bool:
    """Returns whether a path is in one of these directories, at any depth."""
    parts = path.split(b"/")
    return any(b"/".join(parts[:length]) in directories for length in range(1, len(parts)))
