"""Lists a directory of a snapshot: its entries without those that the rules leave out. Reports
what was left out, and what looks like a secret."""

from __future__ import annotations

import os

from casfs.trees.snapshot.derived import CACHE_TAG, Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport
from casfs.trees.snapshot.secret_names import secret_names

Listing = dict[bytes, os.DirEntry[str]]


def list_directory(
    fd: int, path: bytes, root: int, rules: IgnoreRules, report: SnapshotReport
) -> Listing | None:
    """Lists the directory `fd`, at `path` below the recorded directory `root`; returns None where
    it is left out for what it holds. Raises OSError."""
    with os.scandir(fd) as found:
        entries = {os.fsencode(entry.name): entry for entry in found}
    if path and CACHE_TAG in entries:
        at = Surroundings(root, fd, entries, inside=True)
        name = path.rpartition(b"/")[2]
        reason = rules.reason(path[1:], name, directory=True, at=at)
        if reason is not None:
            report.exclude(path[1:], reason)
            return None
    at = Surroundings(root, fd, entries)
    above = path[1:] + b"/" if path else b""
    asks_files = rules.considers_files
    left_out = []
    for name, entry in entries.items():
        directory = entry.is_dir(follow_symlinks=False)
        if directory or asks_files:
            reason = rules.reason(above + name, name, directory=directory, at=at)
            if reason is not None:
                report.exclude(above + name, reason)
                left_out.append(name)
    for name in left_out:
        del entries[name]
    for name in secret_names(fd, entries):
        if entries[name].is_file(follow_symlinks=False):
            report.secrets.append(above + name)
    return entries
