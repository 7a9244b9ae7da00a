"""Lists a directory of a snapshot: its entries without those that the rules leave out. Reports
what was left out, and what looks like a secret."""

from __future__ import annotations

import os

from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport
from casfs.trees.snapshot.secret_names import looks_secret

Listing = dict[bytes, os.DirEntry[str]]


def list_directory(
    fd: int, path: bytes, root: int, rules: IgnoreRules, report: SnapshotReport
) -> Listing:
    """Lists the directory `fd`, at `path` below the recorded directory `root`. Raises OSError."""
    with os.scandir(fd) as found:
        entries = {os.fsencode(entry.name): entry for entry in found}
    at = Surroundings(root, fd, entries)
    above = path[1:] + b"/" if path else b""
    kept: Listing = {}
    for name, entry in entries.items():
        directory = entry.is_dir(follow_symlinks=False)
        reason = rules.reason(above + name, name, directory=directory, at=at)
        if reason is not None:
            report.exclude(above + name, reason)
            continue
        kept[name] = entry
        if not directory and looks_secret(fd, name):
            report.secrets.append(above + name)
    return kept
