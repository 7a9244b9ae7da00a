"""Attached agents: `attached.json` of a store, and the settings files that it has changed."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from casfs.attach import git_exclude, settings, spool
from casfs.attach.agents import AGENTS, OutsideAgent
from casfs.directories.identity import Identity
from casfs.errors import CasfsError, Conflict, Invalid, NotFound, Refused
from casfs.system import locks
from casfs.system.clock import now_ms
from casfs.system.files import os_errors, replacing

FILE = "attached.json"
LOCK = "attached"
MAX_SETTINGS_BYTES = 16 << 20
WORKTREE_TIMEOUT_S = 600  # the first one of a project records all of it


@dataclass(frozen=True)
class Attachment:
    """`directory`: the project, None for all of a user; `file`: the settings that were changed;
    `emptied`: as of `settings.with_hooks`; `created`: the file and the folders above it that
    were not there, the innermost first; `attached_ms`: since 1970 UTC; `identity`: of the project's
    directory, by which it is known after a move, empty where there is none; `excluded`: the pattern
    by which git ignores the file since, empty where none was needed."""

    agent: str
    directory: str | None
    file: str
    emptied: Mapping[str, str] = field(default_factory=dict)
    created: tuple[str, ...] = ()
    attached_ms: int = 0
    identity: str = ""
    excluded: str = ""

    def moved(self, project: Path) -> Attachment:
        """Returns what it is once its project is at another path."""
        assert self.directory is not None
        old = Path(self.directory)

        def at(path: str) -> str:
            return str(project / Path(path).relative_to(old))

        created = tuple(at(path) for path in self.created)
        return replace(self, directory=str(project), file=at(self.file), created=created)


@dataclass(frozen=True)
class Attachments:
    """What the file holds. `paused`: directories whose sessions are not recorded."""

    attached: tuple[Attachment, ...] = ()
    paused: tuple[str, ...] = ()

    def is_paused(self, directory: str) -> bool:
        path = Path(directory)
        return any(path.is_relative_to(paused) for paused in self.paused)


@dataclass(frozen=True)
class SettingsChange:
    """A change of a settings file that is not written yet; `before`: None where there is none;
    `after`: the same where it has all hooks already."""

    attachment: Attachment
    before: str | None
    after: str


def load(root: Path) -> Attachments:
    """Returns what is attached to a store. Raises Invalid where the file is damaged."""
    path = root / FILE
    try:
        value = json.loads(path.read_bytes())
        attached = tuple(
            Attachment(**{**entry, "created": tuple(entry["created"])})
            for entry in value["attached"]
        )
        return Attachments(attached, tuple(value["paused"]))
    except FileNotFoundError:
        return Attachments()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Invalid(f"{path} is damaged: {error}; delete it, and attach again") from None


def plan(
    root: Path,
    agent: OutsideAgent,
    project: Path | None,
    env: Mapping[str, str],
    *,
    worktrees: bool = False,
) -> SettingsChange:
    """Returns what `attach` would write. `worktrees`: also the hooks by which the agent has its
    worktrees made. Raises Refused and Invalid for a settings file that is not to be changed."""
    if project is not None and agent.project_file is None:
        raise Refused(f"{agent.name} has no settings of a project that are yours alone; use --user")
    file = agent.settings(project, env)
    created = _missing(file, _above(file) if project is None else project)
    before = _read(file)
    try:
        if agent.plugin is None:
            hooks = _hooks(root, agent, worktrees=worktrees)
            after, emptied = _with_hooks(agent, file, marker(root), before or "", hooks)
        else:
            after, emptied = _plugin(root, agent, file, before), {}
    except Invalid as error:
        raise Invalid(f"{file} {error}; it stays as it is") from None
    directory = None if project is None else str(project)
    identity = "" if project is None else str(Identity.at(project))
    attachment = Attachment(
        agent.name, directory, str(file), emptied, tuple(created), now_ms(), identity
    )
    for earlier in load(root).attached:
        # Whose hooks are there still: what was there before them counts.
        if earlier.file == attachment.file and (after == before or _events(root, agent, before)):
            attachment = replace(
                attachment,
                emptied={**emptied, **earlier.emptied},
                created=earlier.created,
                attached_ms=earlier.attached_ms,
                excluded=earlier.excluded,
            )
    return SettingsChange(attachment, before, after)


def marker(root: Path) -> str:
    """Returns the text that only commands of our hooks have."""
    return f"{root / spool.HOOKS}/"


def _hooks(root: Path, agent: OutsideAgent, *, worktrees: bool) -> dict[str, dict[str, Any]]:
    """Returns the hook for each event."""
    program = root / spool.HOOKS / spool.PROGRAM
    report = {"type": "command", "command": command(program, agent), "timeout": agent.timeout}
    hooks: dict[str, dict[str, Any]] = dict.fromkeys(agent.events, report)
    if worktrees:
        script = shlex.quote(str(root / spool.HOOKS / spool.WORKTREE_SCRIPT))
        for event, task in agent.worktrees.items():
            hooks[event] = {
                "type": "command",
                "command": f"{script} {task}",
                "timeout": WORKTREE_TIMEOUT_S,
            }
    return hooks


def _above(file: Path) -> Path:
    """Returns the innermost directory above a file that is there."""
    return next(folder for folder in file.parents if folder.exists())


def _missing(file: Path, above: Path) -> list[str]:
    """Returns the file and the folders below `above` that are not there, the innermost first."""
    paths = (file, *file.parents)
    return [str(path) for path in paths if above in path.parents and not path.exists()]


def _with_hooks(
    agent: OutsideAgent, file: Path, marker: str, before: str, hooks: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Returns the settings with those of our hooks that they lack. Raises Refused, Invalid."""
    present = settings.events(before, marker)
    missing = {event: hook for event, hook in hooks.items() if event not in present}
    after, emptied = settings.with_hooks(before, missing) if missing else (before, {})
    if json.loads(after).get("disableAllHooks") is True:
        raise Refused(f"{file} turns all hooks off (disableAllHooks)")
    return after, emptied


def _is_our_plugin(root: Path, text: str) -> bool:
    quoted = shlex.quote(str(root / spool.HOOKS / spool.PROGRAM))
    return json.dumps(quoted)[1:-1] in text


def _plugin(root: Path, agent: OutsideAgent, file: Path, before: str | None) -> str:
    """Returns the text of a plugin. Raises Refused where there is another file."""
    # One of ours is written anew: it may be of another version, or damaged.
    if before is not None and not _is_our_plugin(root, before):
        raise Refused(f"{file} is there already, and is none of ours")
    assert agent.plugin is not None
    text = Path(__file__).with_name(agent.plugin).read_text("utf-8")
    program = root / spool.HOOKS / spool.PROGRAM
    return text.replace('"@COMMAND@"', json.dumps(command(program, agent)))


def command(program: Path, agent: OutsideAgent) -> str:
    """Returns the line of a shell that agents run. It succeeds whatever is installed: some refuse a
    prompt where the program of a hook is missing."""
    words = [_python(), "-IS", str(program), agent.name]
    return f"{shlex.join(words)} 2>/dev/null || :"


def _python() -> str:
    # Not that of a virtual environment, which reads its `pyvenv.cfg` and may be deleted.
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


def attach(root: Path, change: SettingsChange, env: Mapping[str, str]) -> None:
    """Writes a planned change, and the hook program. Raises Conflict where the file was changed
    since, Failed."""
    attachment = change.attachment
    file = Path(attachment.file)
    spool.prepare(root, env)
    with _changing(root) as attachments:
        if _read(file) != change.before:
            raise Conflict(f"{file} was changed meanwhile; try again")
        if attachment.directory is not None:
            pattern = git_exclude.add(file, Path(attachment.directory), env)
            attachment = replace(attachment, excluded=pattern or attachment.excluded)
        # First the record: what is in a settings file can always be taken out again.
        remaining = [other for other in attachments.attached if other.file != attachment.file]
        _save(root, Attachments((*remaining, attachment), attachments.paused))
        if change.after != change.before:
            _write(file, change.after)


def follow(root: Path, project: Path) -> list[Attachment]:
    """Notes that a project is at this path now, where what is attached knows it at another one;
    returns what was, as it was before. Raises Failed."""
    moved: list[Attachment] = []
    if not (root / FILE).exists():
        return moved
    identity = Identity.at(project)
    with _changing(root) as attachments:
        attached = []
        for attachment in attachments.attached:
            known = Identity.parse(attachment.identity) if attachment.identity else None
            is_elsewhere = attachment.directory not in (None, str(project))
            if is_elsewhere and known is not None and known.is_same(identity):
                moved.append(attachment)
                attachment = attachment.moved(project)
            attached.append(attachment)
        if moved:
            _save(root, Attachments(tuple(attached), attachments.paused))
    return moved


def gone(root: Path) -> list[Attachment]:
    """Returns what is attached in projects that are not there any more, or were moved."""
    return [
        attachment
        for attachment in load(root).attached
        if attachment.directory is not None and not Path(attachment.directory).is_dir()
    ]


def detach(
    root: Path, agent: str, directory: str | None, env: Mapping[str, str]
) -> list[Attachment]:
    """Takes the hooks of an agent out of the settings of a project, or out of all that are of the
    user: an environment can name other ones. Raises NotFound, Refused, Failed."""
    if not (root / FILE).exists():
        raise NotFound(f"nothing is attached to the store at {root}")
    with _changing(root) as attachments:
        attached = [
            attachment
            for attachment in attachments.attached
            if (attachment.agent, attachment.directory) == (agent, directory)
        ]
        attached = attached or [_unrecorded(root, agent, directory, env)]
        remaining = list(attachments.attached)
        faults: list[CasfsError] = []
        for attachment in attached:
            try:
                _take_out(root, attachment)
                if attachment.excluded and attachment.directory is not None:
                    projects = [
                        Path(other.directory)
                        for other in remaining
                        if other != attachment and other.excluded == attachment.excluded
                        if other.directory is not None
                    ]
                    project = Path(attachment.directory)
                    git_exclude.remove(attachment.excluded, project, projects, env)
            except CasfsError as error:  # the others are taken out all the same
                faults.append(error)
                continue
            if attachment in remaining:
                remaining.remove(attachment)
                _save(root, Attachments(tuple(remaining), attachments.paused))
    if faults:
        raise faults[0]
    return attached


def _unrecorded(
    root: Path, agent: str, directory: str | None, env: Mapping[str, str]
) -> Attachment:
    """Returns what has our hooks though no record says so: a copy of a project. Raises NotFound."""
    project = None if directory is None else Path(directory)
    file = AGENTS[agent].settings(project, env)
    attachment = Attachment(agent, directory, str(file))
    if not reported_events(root, attachment):
        where = "for all projects" if directory is None else f"in {directory}"
        raise NotFound(f"{agent} is not attached {where}; see `casfs attach --list`")
    return attachment


def _take_out(root: Path, attachment: Attachment) -> None:
    file = Path(attachment.file)
    before = _read(file)
    if before is None:  # the project was deleted, or moved
        return
    program = marker(root)
    is_plugin = AGENTS[attachment.agent].plugin is not None
    try:
        after = "{}"
        if not is_plugin:
            after = settings.without_hooks(before, program, attachment.emptied)
        elif not _is_our_plugin(root, before):
            raise Refused(f"{file} is none of ours any more; it stays as it is")
    except Invalid as error:
        raise Invalid(f"{file} {error}; take out what runs {program} by hand") from None
    if attachment.file in attachment.created and after.strip() == "{}":
        with os_errors(f"cannot delete {file}"):
            file.unlink()
        with suppress(OSError):  # another file is in it
            for folder in attachment.created[1:]:
                Path(folder).rmdir()
    elif after != before:
        _write(file, after)


def set_paused(root: Path, directory: str, *, is_paused: bool) -> None:
    """Has the sessions below a directory recorded no longer, or again. Raises NotFound, Failed."""
    with _changing(root) as attachments:
        remaining = [paused for paused in attachments.paused if paused != directory]
        if not is_paused and len(remaining) == len(attachments.paused):
            raise NotFound(f"{directory} is not paused; see `casfs attach --list`")
        paused = (*remaining, directory) if is_paused else tuple(remaining)
        _save(root, Attachments(attachments.attached, paused))


def reported_events(root: Path, attachment: Attachment) -> set[str] | None:
    """Returns the events for which the settings of an attachment have our hooks now; None where
    they cannot be read."""
    agent = AGENTS[attachment.agent]
    try:
        text = _read(Path(attachment.file), to_write=False) or ""
        if agent.plugin is not None and not _is_our_plugin(root, text):
            return None
        return _events(root, agent, text)
    except (Invalid, Refused):
        return None


def _events(root: Path, agent: OutsideAgent, text: str | None) -> set[str]:
    """Returns the events for which settings have our hooks; a plugin has none. Raises Invalid."""
    return set() if agent.plugin is not None else settings.events(text or "", marker(root))


@contextmanager
def _changing(root: Path) -> Iterator[Attachments]:
    with locks.held(root, LOCK, waiting=lambda: None):
        yield load(root)


def _save(root: Path, attachments: Attachments) -> None:
    path = root / FILE
    with os_errors(f"cannot write {path}"), replacing(path, durable=True) as file:
        file.write(json.dumps(asdict(attachments), indent=1).encode())


def _read(file: Path, *, to_write: bool = True) -> str | None:
    """Returns the text of a settings file; None where there is none. Raises Refused for one that is
    not to be read, or written, by us, Invalid."""
    # A link leads to a file that may be shared, as in a directory of dotfiles.
    if file.is_symlink() or file.parent.is_symlink():
        raise Refused(f"{file} is a link, or in one; add the hooks where it leads to by hand")
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{file} is not a file")
        # As root every file can be written, also one that its owner has protected.
        is_writable = status.st_mode & stat.S_IWUSR and os.access(file, os.W_OK)
        if to_write and not is_writable:
            raise Refused(f"{file} is read-only; it stays as it is (chmod u+w lets it be changed)")
        if status.st_size > MAX_SETTINGS_BYTES:
            raise Refused(f"{file} has {status.st_size} bytes; that is not a settings file")
        return file.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not UTF-8; it stays as it is") from None
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None


def _write(file: Path, text: str) -> None:
    with os_errors(f"cannot write {file}"):
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with replacing(file, durable=True) as new:
            os.fchmod(new.fileno(), mode)
            new.write(text.encode())
