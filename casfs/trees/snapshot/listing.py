"""Lists a directory of a snapshot: its entries without those that the rules leave out. Reports
what was left out, and candidates for the local tree."""

from __future__ import annotations

import os

from casfs.scanner.private_names import private_names
from casfs.trees.snapshot.derived import CACHE_TAG, Surroundings
from casfs.trees.snapshot.ignore import BY_SETTING, IgnoreRules, Verdict
from casfs.trees.snapshot.report import SnapshotReport

Listing = dict[bytes, os.DirEntry[str]]
BY_NAME = "its name"


def list_directory(
    fd: int, path: bytes, root: int, rules: IgnoreRules, report: SnapshotReport
) -> Listing | None:
    """Lists the directory `fd`, at `path` below the recorded directory `root`; returns None where
    it is left out for what it holds. Raises OSError."""
    with os.scandir(fd) as dir_entries:
        entries = {os.fsencode(entry.name): entry for entry in dir_entries}
    if path and CACHE_TAG in entries:
        surroundings = Surroundings(root, fd, entries, inside=True)
        name = path.rpartition(b"/")[2]
        verdict = rules.verdict(path[1:], name, directory=True, surroundings=surroundings)
        if verdict is not None and not keeps(report, path[1:], verdict):
            return None
    surroundings = Surroundings(root, fd, entries)
    above = path[1:] + b"/" if path else b""
    asks_files = rules.considers_files
    left_out = []
    for name, entry in entries.items():
        directory = entry.is_dir(follow_symlinks=False)
        if directory or asks_files:
            verdict = rules.verdict(
                above + name, name, directory=directory, surroundings=surroundings
            )
            if verdict is not None and not keeps(report, above + name, verdict):
                left_out.append(name)
    for name in left_out:
        del entries[name]
    for name in private_names(entries):
        is_directory = entries[name].is_dir(follow_symlinks=False)
        if not is_directory and not rules.is_work(above + name, name):
            report.private[above + name] = BY_NAME
    return entries


def keeps(report: SnapshotReport, path: bytes, verdict: Verdict) -> bool:
    """Reports an entry that the work tree excludes; returns whether the local tree has it."""
    if not verdict.is_local:
        report.exclude(path, verdict.reason)
    elif verdict.reason == BY_SETTING:
        report.private[path] = verdict.reason
    else:
        report.derived[path] = verdict.reason
    return verdict.is_local
