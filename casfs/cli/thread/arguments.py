"""Arguments of `casfs thread`, parsed to the form of the daemon's requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from casfs import canonical
from casfs.cli.common import input_name, open_store, read_input, refuse_home_or_root
from casfs.cli.output import warn
from casfs.errors import Invalid, NotFound, Usage
from casfs.revisions import resolve_tree
from casfs.trees.snapshot import exclusions, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport

MAX_SECONDS = 1e9
AGENT_NAME = re.compile(r"(?P<name>[^<>=!~\s]+)(?P<version>(?:\s*[<>=!~].*)?)", re.S)


def start_options(
    max_tokens: int | None,
    max_seconds: float | None,
    compact_above: int | None,
    compact_by: str | None,
    idempotency_key: str | None,
    on_limit: str,
    name: str | None,
) -> dict[str, Any]:
    """Returns the optional fields of a start request, under the daemon's names."""
    if (compact_above is None) != (compact_by is None):
        raise Usage("--compact-above and --compact-by require each other")
    if idempotency_key == "":
        raise Usage("--idempotency-key must not be empty")
    if max_seconds is not None and not max_seconds <= MAX_SECONDS:  # nan is not
        raise Usage(f"--max-seconds must be at most {MAX_SECONDS:g}")
    compact = None
    if compact_by is not None:
        compact = {"above": compact_above, "agent": parse_agent(compact_by, "--compact-by")}
    return {
        "tokens": max_tokens,
        "wall_ms": None if max_seconds is None else max(1, round(max_seconds * 1000)),
        "compact": compact,
        "key": idempotency_key,
        "on_limit": on_limit,
        "name": name,
    }


def text_or_file(text: str) -> str:
    """Returns TEXT, or the content of FILE for @FILE."""
    return _text(text[1:]) if text.startswith("@") else text


def _text(file: str) -> str:
    try:
        return read_input(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{input_name(file)}: byte {error.start} is not UTF-8") from None


def agent_bindings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parses --agent options. Raises Usage, also for a role that is named twice."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        role, agent = agent_binding(text)
        if role in found:
            raise Usage(f"--agent {role}: the role has an agent already")
        found[role] = agent
    return found


def agent_binding(text: str) -> tuple[str, dict[str, Any]]:
    """Parses ROLE=NAME[VERSION][:JSON]. Raises Usage."""
    role, equals, rest = text.partition("=")
    if not equals or not role or not rest.partition(":")[0]:
        raise Usage(f"--agent {text!r}: give ROLE=NAME or ROLE=NAME:JSON")
    return role, parse_agent(rest, f"--agent {role}")


def parse_agent(text: str, where: str) -> dict[str, Any]:
    """Parses NAME[VERSION][:JSON]; the version is a PEP 440 specifier, as in `mine>=1.2,<2`."""
    named, colon, config = text.partition(":")
    found = AGENT_NAME.fullmatch(named)
    if found is None:
        raise Usage(f"{where}: give NAME or NAME:JSON")
    try:
        value = canonical.parse(config) if colon else {}
    except Invalid as error:
        raise Usage(f"{where}: config is {error}") from None
    if not isinstance(value, dict):
        raise Usage(f"{where}: config must be a JSON object")
    return {"name": found["name"], "config": value, "version": found["version"].strip()}


def record_workspace(ctx: click.Context, text: str) -> str:
    """Returns the root of a recorded directory, or of the tree that `text` names."""
    with open_store(ctx) as store:
        if not Path(text).is_dir():
            try:
                return resolve_tree(store, text)
            except NotFound as error:
                raise NotFound(f"no directory {text}, and no such tree: {error}") from None
        refuse_home_or_root(Path(text), force=None)
        ignore, report = IgnoreRules(), SnapshotReport()
        exclusions.exclude_stores(store, Path(text), ignore, report)
        with store.batch() as batch:
            tree = walker.snapshot(batch, Path(text), ignore, report)
    for warning in report.warnings:
        warn(warning)
    return tree.hash
