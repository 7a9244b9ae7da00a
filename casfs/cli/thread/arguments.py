"""Arguments of `casfs thread`, parsed to the form of the daemon's requests."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from casfs import config
from casfs.checkpoints.revisions import resolve
from casfs.cli.common import input_name, open_store, read_input
from casfs.cli.output import warn
from casfs.cli.snapshot_options import print_notes
from casfs.directories.projects import project_of
from casfs.errors import Invalid, NotFound, Usage
from casfs.system.home import refuse_home_or_root
from casfs.system.paths import printable
from casfs.threads import threads
from casfs.trees import tree
from casfs.trees.git import linked_repositories
from casfs.trees.git.index import GIT
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import exclusions, policy
from casfs.trees.snapshot.ignore import read_patterns
from casfs.trees.snapshot.report import BY_PATTERN, SnapshotOptions, SnapshotReport
from casfs.workspaces import ignored_files

if TYPE_CHECKING:
    from casfs.agents.notation import AgentSpec
    from casfs.store.store import Store
    from casfs.threads.threads import Thread
    from casfs.trees.git.index import TrackedFiles
    from casfs.trees.recorded_state import RecordedState

MAX_SECONDS = 1e9
ROLE_PREFIX = re.compile(r"([^=<>!~:\s]+)=(?!=)")
agent_option = click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="[ROLE=]NAME[:TEXT]",
    help="Agent for a role, or for all: a profile or package; a version may follow (mine>=1.2).",
)
name_option = click.option("--name", help="Name of the thread, usable in place of its id.")
trust_option = click.option(
    "--yes", is_flag=True, help="Trust the thread, if it came from elsewhere."
)
wait_option = click.option(
    "--wait", is_flag=True, help="Wait until it finishes or is suspended: exit 0, 1 (failed), 7."
)


class StartOptions(NamedTuple):
    """What a new thread may do and spend, and how it is kept."""

    max_steps: int
    max_tokens: int | None
    max_seconds: float | None
    compact_above: int | None
    compact_by: str | None
    idempotency_key: str | None
    on_limit: str
    turn_trees: bool
    allow_secret: bool
    name: str | None


def start_fields(options: StartOptions) -> dict[str, Any]:
    """Returns the optional fields of a start request, under the daemon's names."""
    max_seconds = options.max_seconds
    if (options.compact_above is None) != (options.compact_by is None):
        raise Usage("--compact-above and --compact-by require each other")
    if options.idempotency_key == "":
        raise Usage("--idempotency-key must not be empty")
    if max_seconds is not None and not max_seconds <= MAX_SECONDS:  # nan is not
        raise Usage(f"--max-seconds must be at most {MAX_SECONDS:g}")
    compact = None
    if options.compact_by is not None:
        compact = {
            "above": options.compact_above,
            "agent": parse_agent(options.compact_by, "--compact-by"),
        }
    return {
        "max_steps": options.max_steps,
        "tokens": options.max_tokens,
        "wall_ms": None if max_seconds is None else max(1, round(max_seconds * 1000)),
        "compact": compact,
        "key": options.idempotency_key,
        "on_limit": options.on_limit,
        "turn_trees": options.turn_trees,
        "allow_secret": options.allow_secret,
        "name": options.name,
    }


def text_or_file(text: str) -> str:
    """Returns TEXT, or the content of FILE for @FILE."""
    return _text(text[1:]) if text.startswith("@") else text


def _text(file: str) -> str:
    try:
        return read_input(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{input_name(file)}: byte {error.start} is not UTF-8") from None


def agent_fields(texts: Sequence[str], file: str | None = None) -> dict[str, Any]:
    """Returns the fields of a request that say which agents play the roles: those of --agent, and
    of --agents FILE."""
    from engine.threads.role_agents import read_profiles

    roles, every = agent_bindings(texts)
    fields = {"agents": roles, "every": every}
    if file is None:
        return fields
    tables = config.agents_file(read_input(file), Path(input_name(file)))
    return {**fields, "profiles": read_profiles(tables)}


def agent_bindings(texts: Sequence[str]) -> tuple[dict[str, AgentSpec], AgentSpec | None]:
    """Parses --agent options: the agents of roles, and the one for all other roles. Raises Usage,
    also for a role that is named twice."""
    agents: dict[str, AgentSpec] = {}
    every: AgentSpec | None = None
    for text in texts:
        role, agent = agent_binding(text)
        if role is None:
            if every is not None:
                raise Usage(f"--agent {text}: an agent for all roles was given already")
            every = agent
        elif role in agents:
            raise Usage(f"--agent {role}: the role has an agent already")
        else:
            agents[role] = agent
    return agents, every


def agent_binding(text: str) -> tuple[str | None, AgentSpec]:
    """Parses ROLE=NAME[VERSION][:TEXT|:JSON], or the same without ROLE=. Raises Usage."""
    named = ROLE_PREFIX.match(text)
    if named is None:
        return None, parse_agent(text, f"--agent {text}")
    role = named[1]
    return role, parse_agent(text[named.end() :], f"--agent {role}")


def variants(
    store: Store, thread: Thread, texts: Sequence[str], files: Sequence[str], count: int
) -> list[dict[str, Any]]:
    """Returns {agents, every} of forks, which take the agents of --agent, and those in the files of
    --vary, in turn; of the first ones, until they repeat. Raises Usage, Invalid, NotFound."""
    specs_by_role: dict[str | None, list[AgentSpec]] = {}
    for text in texts:
        role, spec = agent_binding(text)
        specs_by_role.setdefault(role, []).append(spec)
    for text in files:
        role, _, file = text.partition("=")
        if not role or not file or role in specs_by_role:
            raise Usage(f"--vary {text}: give ROLE=FILE, of a role without --agent")
        specs_by_role[role] = _read_variants(store, thread, role=role, file=file)
    for role, specs in specs_by_role.items():
        if len(specs) > count:
            many = f"{len(specs)} agents for {role or 'all roles'}"
            raise Usage(f"{many}; give --count {len(specs)}, or more")
    period = min(count, math.lcm(*map(len, specs_by_role.values())))
    turns = [
        {role: them[index % len(them)] for role, them in specs_by_role.items()}
        for index in range(period)
    ]
    return [{"every": turn.pop(None, None), "agents": turn} for turn in turns]


def _read_variants(store: Store, thread: Thread, role: str, file: str) -> list[AgentSpec]:
    """Returns the tables [[variants]] of a file. One without `package` is the role's own agent,
    with its `config` over that agent's."""
    from casfs.agents import notation
    from engine.workflow import registry

    specs = []
    hash = threads.agents(store, thread).get(role)
    own = registry.agent_spec(store, hash) if hash else None
    tables = config.parsed(read_input(file), Path(file)).get("variants")
    if not isinstance(tables, list):
        raise Invalid(f"{file}: must hold tables [[variants]]")
    for number, table in enumerate(tables, start=1):
        try:
            if own and isinstance(table, Mapping) and "package" not in table:
                spec = notation.from_value({**table, "package": own["name"]})
                specs.append(notation.resolved(spec, {own["name"]: own}))
            else:
                specs.append(notation.from_value(table))
        except Invalid as error:
            raise Invalid(f"{file}: variants, number {number}: {error}") from None
    return specs


def parse_agent(text: str, where: str) -> AgentSpec:
    """Parses NAME[VERSION][:TEXT|:JSON]; the version is a PEP 440 specifier, as in `mine>=1.2,<2`.
    Raises Usage."""
    from casfs.agents import notation

    try:
        return notation.parse(text)
    except Invalid as error:
        raise Usage(f"{where}: {error}") from None


def _warn_of_unreadable(what: str) -> None:
    warn(f"not in the thread's workspace: {what}")


def _tracked_at_start(store: Store, known: RecordedState | None) -> TrackedFiles | None:
    """Returns what git tracked in a directory to which a thread's step was restored, with the
    repository that agents worked in; None for any other."""
    if known is None or tree.find(store, known.full, os.fsencode(GIT)) is None:
        return None
    from casfs.trees.git.recorded_index import RecordedTrackedFiles

    return RecordedTrackedFiles(store, known)


def record_workspace(
    text: str, patterns: Sequence[str] = (), *, allow_secret: bool = False
) -> dict[str, Any]:
    """Returns the fields of a start request: what a directory holds, recorded, or the tree that
    `text` names. `patterns`: what else of the directory is ignored."""
    from casfs.trees.snapshot import working_tree  # what only lists agents records nothing

    with open_store() as store:
        directory = Path(text)
        if not directory.is_dir():
            try:
                state = resolve(store, text).state
            except NotFound as error:
                raise NotFound(f"no directory {text}, and no such tree: {error}") from None
            return {"workspace": state.tree, "recorded": state.fields}
        refuse_home_or_root(directory, force=None)
        report = SnapshotReport()
        options = SnapshotOptions()
        if not allow_secret:
            options.scanner = policy.load(store).scanner()
        rules = exclusions.ignore_rules(
            store, directory, report, patterns=patterns, keeps_derived=True
        )
        with store.batch() as batch:
            target = Target(store, directory)
            known = target.known_state()
            state = working_tree.snapshot(
                store,
                batch,
                directory=directory,
                rules=rules,
                report=report,
                options=options,
                earlier=working_tree.Earlier(
                    base=known,
                    known=target.restored_state(),
                    tracked_at_start=_tracked_at_start(store, known),
                ),
            )
            state, left_out = linked_repositories.replaced(
                store, batch, state=state, top=directory, git_files=report.git_files
            )
        for path in left_out:
            _warn_of_unreadable(f"{printable(path)}: the repository that it names cannot be read")
        ignored = [path for path, reason in report.excluded if reason == BY_PATTERN]
        lines = [read_patterns(directory), *map(os.fsencode, patterns)]
        token = ignored_files.keep(
            store,
            directory,
            paths=ignored,
            patterns=b"\n".join(filter(None, lines)),
            on_unreadable=_warn_of_unreadable,
        )
    print_notes(report)
    return {
        "workspace": state.tree,
        "recorded": state.fields,
        "ignored": token,
        "project": project_of(directory).fields,
    }
