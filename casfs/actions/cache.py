"""The action cache: what ran before, on the same input, need not run again.

The key is the hash of the `action` node, so it covers the whole input tree by its digest,
argv, the working directory, the environment, the outputs, the platform and the timeout.
The head `actions/<key>` leads to the `action-result`; it is cache (`casfs.maintenance.gc`), so
losing it is a miss later. A result that is damaged is a miss too.

    record  createdAt, usedAt; argv0; command: which argv, to find entries of the same

An action is a command, or a step of a role marked cacheable (`engine.runtime.step_cache`).

The command sees only what is in the key: its environment is PATH and the variables that
were named, stdin is empty. It is not in a sandbox, though: it runs in the real directory.
So these do *not* count, and a command whose result depends on them must not be cached:
files outside the input directory (compilers, for example) or left out by the rules of a
checkpoint (`node_modules`, `.casfsignore`), what lay at the outputs before, the network, the
clock. The values of the environment are stored: name no secrets.

Caching is opted into by the first words of a command, word by word: `make` allows
`make -j2 all`, but neither `makefoo` nor `sh -c make`. How a command is run:
`casfs.actions.runner`.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from casfs import canonical
from casfs.actions import outputs
from casfs.backend.derived import last_use
from casfs.backend.protocols import Head
from casfs.digest import hash_bytes
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.store import Store
from casfs.system.clock import now_ms
from casfs.trees.snapshot import exclusions, stat_cache, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport

HEADS = "actions/"
ALWAYS = "PATH"  # the variable that needs no naming
ARGV0 = 60  # characters; no hash is that short
RESULT = (
    "action", "exitCode", "stdout", "stderr", "outputs", "detail", "artifacts", "durationMs",
    "createdAt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be run. `root`: the input directory; `cwd` and `outputs` are relative to it,
    no output lies below another; `env` is the whole environment."""

    argv: tuple[str, ...]
    root: Path
    cwd: str
    outputs: tuple[str, ...]
    env: Mapping[str, str]
    timeout_ms: int | None
    defaults: bool = True

    @property
    def directory(self) -> Path:
        return self.root / self.cwd


@dataclass(frozen=True, slots=True)
class Action:
    """An action node and its hash, the key. `warnings`: what the input left out."""

    hash: str
    payload: Mapping[str, Any]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """An action-result node: its hash, and its fields in the order of RESULT."""

    hash: str
    action: str
    exit_code: int
    stdout: str
    stderr: str
    outputs: str
    detail: str | None
    artifacts: list[str]
    duration_ms: int
    created_at: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What is cached, as the head says. `used_at`: ms since 1970 UTC."""

    action: str
    result: str
    argv0: str
    created_at: int
    used_at: int


# -- what is asked for ------------------------------------------------------------------------


def request(
    argv: Sequence[str],
    *,
    directory: Path,
    here: Path,
    env: Mapping[str, str],
    names: Iterable[str] = (),
    outputs: Iterable[str] = (),
    timeout: float | None = None,
    defaults: bool = True,
) -> Request:
    """The command runs in `here` if that is in the input `directory`, else in `directory`.

    `outputs` are relative to where it runs; `names` are the variables of `env` that it gets
    besides PATH. Raises NotFound (the directory), Invalid.
    """
    root = directory.resolve()
    if not root.is_dir():
        raise NotFound(f"no directory {directory}")
    at = here.resolve()
    cwd = at.relative_to(root).as_posix() if at.is_relative_to(root) else "."
    if timeout is not None and not 0.001 <= timeout <= canonical.MAX_INT / 1000:
        raise Invalid(f"invalid timeout {timeout}: give seconds above 0")
    if not argv:
        raise Invalid("no command: give one after --")
    return Request(
        tuple(argv),
        root,
        cwd,
        _outermost(_output(root, cwd, path) for path in outputs),
        {name: env[name] for name in sorted({ALWAYS, *names}) if name in env},
        None if timeout is None else round(timeout * 1000),
        defaults,
    )


def _output(root: Path, cwd: str, path: str) -> str:
    found = os.path.relpath(os.path.normpath(root / cwd / path), root)
    if path == "" or found == "." or found.split("/")[0] == "..":
        raise Invalid(f"the output {path!r} is not inside the input directory {root}")
    return found


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    found = sorted(set(paths))
    return tuple(path for path in found if not outputs.parents([path]) & set(found))


def allows(prefixes: Iterable[str], argv: Sequence[str]) -> bool:
    """Is a command opted in? Raises Invalid for a prefix that is no command."""
    return any(list(argv[: len(words)]) == words for words in map(_words, prefixes))


def _words(prefix: str) -> list[str]:
    try:
        words = shlex.split(prefix)
    except ValueError as error:
        raise Invalid(f"actions.cacheable: {prefix!r}: {error}") from None
    if not words:
        raise Invalid("actions.cacheable: an empty prefix would allow every command")
    return words


# -- the key ----------------------------------------------------------------------------------


class Inputs(IgnoreRules):
    """A checkpoint's rules, and besides: no outputs, nothing of ours on its way."""

    def ignores(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        if directory and outputs.PRIVATE.fullmatch(path):
            return True
        return super().ignores(path, name, directory=directory)


def identify(store: Store, request: Request) -> Action:
    """The action that a request is, now: its input is stored. Raises as `walker.snapshot`."""
    payload: dict[str, Any] = {
        "argv": list(request.argv),
        "cwd": request.cwd,
        "env": dict(request.env),
        "inputRoot": None,
        "outputs": list(request.outputs),
        "platform": host(),
        "timeoutMs": request.timeout_ms,
        "step": None,
    }
    canonical.encode(payload)  # refused before anything is read
    report = SnapshotReport()
    ignore = _inputs(store, request, report)
    cache = stat_cache.load(store, request.root, ignore, "action")
    with store.batch() as batch:
        root = walker.snapshot(batch, request.root, ignore, report, cache=cache)
        payload["inputRoot"] = root.hash
        node = batch.put_node("action", payload)
    if cache is not None:
        cache.save()
    return Action(node.hash, payload, report.warnings)


@cache
def host() -> dict[str, str]:
    """The platform that actions run on."""
    libc = " ".join(platform.libc_ver()).strip()
    return {"os": platform.system().lower(), "arch": platform.machine(), "libc": libc}


def _inputs(store: Store, request: Request, report: SnapshotReport) -> Inputs:
    ignore = Inputs.of(request.root, defaults=request.defaults)
    assert isinstance(ignore, Inputs)
    exclusions.exclude_stores(store, request.root, ignore, report)
    excluded = {*map(os.fsdecode, ignore.excluded), *request.outputs}
    for above in sorted(outputs.parents(request.outputs), key=len, reverse=True):
        if _holds_only(request.root / above, above, excluded):
            excluded.add(above)  # there or not: the command finds it made
    ignore.excluded = frozenset(map(os.fsencode, excluded))
    return ignore


def _holds_only(directory: Path, path: str, excluded: set[str]) -> bool:
    try:
        return all(f"{path}/{name}" in excluded for name in os.listdir(directory))
    except OSError:
        return False


# -- the cache --------------------------------------------------------------------------------


def lookup(store: Store, key: str) -> Result | None:
    """The result of an action; None where there is none, or none that can be read."""
    head = store.heads.get(HEADS + key)
    if head is None:
        return None
    try:
        return load(store, head.hash)
    except (NotFound, Corrupt):
        return None


def load(store: Store, hash: str) -> Result:
    """Raises NotFound, Corrupt."""
    found = store.node(hash, "action-result").payload
    return Result(hash, *(found[name] for name in RESULT))


def publish(store: Store, action: Action, result: str) -> None:
    """Let an action's key lead to a stored result. Raises Conflict, NotFound."""
    now = now_ms()
    record = {
        "createdAt": now,
        "usedAt": now,
        "argv0": argv0(action.payload),
        "command": command(action.payload),
    }
    name = HEADS + action.hash
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), Head(result, record))


def listing(store: Store) -> list[Entry]:
    """What is cached, the most recently used first."""
    found = []
    for name, head in store.heads.list(HEADS):
        made = int(head.record["createdAt"])
        used = max(made, last_use(store.heads, name))
        what = str(head.record["argv0"])
        found.append(Entry(name[len(HEADS) :], head.hash, what, made, used))
    return sorted(found, key=lambda entry: entry.used_at, reverse=True)


def argv0(action: Mapping[str, Any]) -> str:
    """What an action is called in a record."""
    step = action["step"]
    name: str = action["argv"][0] if step is None else f"role {step['name']}"
    return name[:ARGV0]


def command(action: Mapping[str, Any]) -> str:
    """Stands for an argv, or for a role, in a record."""
    step = action["step"]
    what = action["argv"] if step is None else {"role": step["role"]}
    return hash_bytes(canonical.encode(what))[:16]
