"""What the verbs that record a directory share: options, and notes on what was not recorded."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from casfs.cli.output import echo_result, say_incomplete, wants_json, warn
from casfs.system.paths import printable
from casfs.system.safe_text import escape
from casfs.trees.snapshot.report import (
    BY_PATTERN,
    HARD_LINKS,
    MODES,
    NOT_PART,
    OWNERS,
    XATTRS,
    SnapshotOptions,
    SnapshotReport,
)

if TYPE_CHECKING:
    from casfs.store.store import Store

TO_SHARE = "to share one: the settings snapshot.work and snapshot.allow"
MAX_NAMED_PATHS = 6
NOT_KEPT = {
    HARD_LINKS: "hard links",
    OWNERS: "entries of another owner",
    MODES: "set-id or sticky bits (--preserve mode keeps them)",
    XATTRS: "files with extended attributes",
}
F = TypeVar("F", bound=Callable[..., Any])


def snapshot_options(verb: F) -> F:
    """Adds `defaults`, `patterns` and `dry_run`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Say what would be recorded; store nothing."),
        click.option(
            "--exclude",
            "patterns",
            multiple=True,
            metavar="PATTERN",
            help="Leave out what matches, in gitignore syntax; after .casfsignore.",
        ),
        click.option(
            "--default-excludes/--no-default-excludes",
            "defaults",
            default=True,
            help="Leave out derived directories and .git (the default), or nothing.",
        ),
    ):
        verb = option(verb)
    return verb


allow_secret_option = click.option(
    "--allow-secret",
    is_flag=True,
    help="Record secrets as they are, in files of the work and in texts.",
)


def print_dry_run(
    store: Store,
    path: Path,
    defaults: bool,
    patterns: Iterable[str],
    options: SnapshotOptions,
    *,
    with_derived: bool = False,
) -> None:
    """Prints what a snapshot of `path` would record. Raises as the snapshot."""
    from casfs.trees.git.index import TrackedFiles
    from casfs.trees.snapshot import classes, exclusions, walker

    report = SnapshotReport()
    rules = exclusions.ignore_rules(
        store,
        path,
        report,
        defaults=defaults,
        patterns=[*patterns],
        keeps_derived=with_derived,
        keeps_git=False,
    )
    walker.survey(store, path, rules=rules, report=report, options=options)
    classes.settle(report, TrackedFiles(path, above=True), rules)
    counts = {"dryRun": True, "files": report.files, "bytes": report.bytes}
    line = f"would record {report.files} files, {report.bytes} bytes"
    echo_result(counts | notes(report), line)
    print_notes(report)


def notes(report: SnapshotReport) -> dict[str, Any]:
    """Returns what was not recorded, what is private, and the secrets in the work, for JSON."""
    return {
        "excluded": [
            {"path": os.fsdecode(path), "reason": reason} for path, reason in report.excluded
        ],
        "notKept": dict(report.not_kept),
        "private": [
            {"path": os.fsdecode(path), "reason": reason} for path, reason in report.local.items()
        ],
        "secrets": [
            {"path": os.fsdecode(path), "kind": hit.kind, "line": hit.line}
            for path, hits in report.exposed.items()
            for hit in hits
        ],
        "purged": [
            {"path": os.fsdecode(path), "hash": hash} for path, hash in report.purged.items()
        ],
        "unreadable": [
            {"path": os.fsdecode(path), "reason": reason}
            for path, reason in report.unreadable.items()
        ],
    }


def print_notes(report: SnapshotReport) -> None:
    """Prints warnings, and the notes, unless they are in the JSON, a line each, on stderr."""
    for warning in report.warnings:
        warn(warning)
    print_unreadable(report)
    for line in () if wants_json() else _lines(report):
        click.echo(f"casfs: {escape(line, one_line=True)}", err=True)


def print_unreadable(report: SnapshotReport) -> None:
    """Names what could not be read and was left out; the command's exit code is 1 then."""
    for line in report.unreadable_lines():
        say_incomplete(line)


def _lines(report: SnapshotReport) -> Iterator[str]:
    """Yields one line on what is not in the work and how to change that, and one for each secret
    that is."""
    derived = [path for path, why in report.excluded if why not in (BY_PATTERN, *NOT_PART)]
    matched = [path for path, why in report.excluded if why == BY_PATTERN]
    parts = []
    if report.local:
        parts.append(f"private, kept in this store only: {_named_private(report)} ({TO_SHARE})")
    if derived:
        parts.append(f"left out: {named(derived)} (--no-default-excludes records them)")
    if matched:
        parts.append(f"left out by pattern: {named(matched)}")
    if parts:
        yield "; ".join(parts)
    if report.not_kept:
        counts = (f"{report.not_kept[kind]} {text}" for kind, text in NOT_KEPT.items())
        yield f"not kept: {', '.join(text for text in counts if not text.startswith('0 '))}"
    for path, hits in islice(report.exposed.items(), MAX_NAMED_PATHS):
        where = f"{printable(path)}: recorded with a secret ({hits[0]})"
        name = shlex.quote(printable(path))
        yield (
            f"{where}; take it out and `casfs purge` it, or leave the file out by --exclude {name};"
            " a wrong alarm: --allow-secret"
        )
    if len(report.exposed) > MAX_NAMED_PATHS:
        yield f"and {len(report.exposed) - MAX_NAMED_PATHS} more files with secrets; see --json"
    for path in report.purged:
        name = printable(path)
        yield f"{name}: purged; left out; --allow-purged {shlex.quote(name)} records it again"


def _named_private(report: SnapshotReport) -> str:
    """Names private files; first those that are so for a secret in them, with its line."""
    lines = {path: hits[0].line for path, hits in report.findings.items() if path in report.local}
    first = [f"{printable(path)}:{line}" for path, line in lines.items()][:MAX_NAMED_PATHS]
    other_paths = [path for path in report.local if path not in lines]
    if unnamed_count := len(lines) - len(first):
        first.append(f"{unnamed_count} more with a secret")
    return ", ".join([*first, *([named(other_paths)] if other_paths else [])])


def named(paths: Collection[bytes]) -> str:
    """Names the first paths; those of one name once, with their count."""
    names = Counter(os.path.basename(path) for path in paths)
    labels = dict.fromkeys(
        f"{printable(name)} ({names[name]})" if names[name] > 1 else printable(path)
        for path in paths
        for name in (os.path.basename(path),)
    )
    unnamed_count = len(labels) - MAX_NAMED_PATHS
    first = ", ".join(list(labels)[:MAX_NAMED_PATHS])
    return f"{first} and {unnamed_count} more" if unnamed_count > 0 else first
