"""Action keys: the `action` node of a command, whose hash is the key of the action cache.

The key covers the whole input tree by its digest, argv, the working directory, the
environment, the outputs, the platform and the timeout. The command sees only what is in the
key: its environment is PATH and the named variables, its stdin is empty. It runs in the real
directory, though, without a sandbox. These do *not* count, and a command whose result depends
on them must not be cached: files outside the input directory (compilers, for example) or
excluded by the user (`.casfsignore`, and by `--default-excludes` what a checkpoint leaves out),
earlier content of the outputs, the network, the clock. Values of the environment are stored:
pass no secrets.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casfs import canonical
from casfs.actions import outputs
from casfs.digest import NodeHash, TreeHash, hash_bytes
from casfs.errors import Invalid, NotFound
from casfs.store.store import Store
from casfs.trees.snapshot import exclusions, stat_cache, walker
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules, Verdict
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

if TYPE_CHECKING:
    from casfs.trees.recorded_state import RecordedState

MAX_TIMEOUT_S = 2_000_000  # poll(2) takes an int of milliseconds
PRESET = "builds-tests-lints"  # names these in actions.cacheable: what is cached safely as a rule
PRESET_COMMANDS = (
    "npm run build",
    "yarn build",
    "pnpm build",
    "cargo build",
    "go build",
    "make",
    "npm test",
    "pytest",
    "cargo test",
    "go test",
    "eslint",
    "ruff",
    "cargo clippy",
    "clippy",
    "golangci-lint",
)
DEFAULT_VARIABLE = "PATH"  # passed without being named


@dataclass(frozen=True, slots=True)
class Request:
    """A command to run. `root`: the input directory; `cwd` and `outputs` are relative to it,
    no output is below another; `env` is the whole environment; `defaults`: default excludes;
    `tree`: its input as a stored tree, which `prepare` puts there before the command runs."""

    argv: tuple[str, ...]
    root: Path
    cwd: str
    outputs: tuple[str, ...]
    env: Mapping[str, str]
    timeout_ms: int | None
    defaults: bool = False
    tree: TreeHash | None = None
    prepare: Callable[[TreeHash], None] | None = None

    @property
    def directory(self) -> Path:
        return self.root / self.cwd


@dataclass(frozen=True, slots=True)
class Action:
    """An action node and its hash, the key. `warnings`: what the input excludes."""

    hash: NodeHash
    payload: Mapping[str, Any]
    warnings: list[str] = field(default_factory=list)


# -- requests ------------------------------------------------------------------------


def request(
    argv: Sequence[str],
    *,
    directory: Path,
    working_directory: Path,
    env: Mapping[str, str],
    names: Iterable[str] = (),
    outputs: Iterable[str] = (),
    timeout: float | None = None,
    defaults: bool = False,
) -> Request:
    """Builds a request. The command runs in `working_directory` if that is inside `directory`, the
    input directory, else in `directory`.

    `outputs` are relative to its working directory; `names` are the variables of `env` to
    pass besides PATH; `timeout` in seconds. Raises NotFound (the directory), Invalid.
    """
    root = directory.resolve()
    if not root.is_dir():
        raise NotFound(f"no directory {directory}")
    resolved_path = working_directory.resolve()
    cwd = resolved_path.relative_to(root).as_posix() if resolved_path.is_relative_to(root) else "."
    if timeout is not None and not 0.001 <= timeout <= MAX_TIMEOUT_S:
        raise Invalid(f"invalid timeout {timeout}: give seconds, above 0 and up to {MAX_TIMEOUT_S}")
    if not argv:
        raise Invalid("no command: give one after --")
    return Request(
        tuple(argv),
        root,
        cwd=cwd,
        outputs=_outermost(_output(root, cwd, path) for path in outputs),
        env={name: env[name] for name in sorted({DEFAULT_VARIABLE, *names}) if name in env},
        timeout_ms=None if timeout is None else round(timeout * 1000),
        defaults=defaults,
    )


def _output(root: Path, cwd: str, path: str) -> str:
    relative_path = os.path.relpath(os.path.normpath(root / cwd / path), root)
    if path == "" or relative_path == "." or relative_path.split("/")[0] == "..":
        raise Invalid(f"the output {path!r} is not inside the input directory {root}")
    return relative_path


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(paths))
    return tuple(path for path in ordered if not outputs.parent_directories([path]) & set(ordered))


def allows(prefixes: Iterable[str], argv: Sequence[str]) -> bool:
    """Does a command begin with one of the opted-in prefixes? PRESET stands for its commands.
    Raises Invalid for a bad prefix."""
    wanted = list(prefixes)
    if PRESET in wanted:
        wanted.remove(PRESET)
        wanted += PRESET_COMMANDS
    return any(list(argv[: len(words)]) == words for words in map(_words, wanted))


def _words(prefix: str) -> list[str]:
    try:
        words = shlex.split(prefix)
    except ValueError as error:
        raise Invalid(f"actions.cacheable: {prefix!r}: {error}") from None
    if not words:
        raise Invalid("actions.cacheable: an empty prefix would allow every command")
    return words


# -- the key ----------------------------------------------------------------------------------


class InputRules(IgnoreRules):
    """The excludes of the request, plus the outputs and staging directories of casfs."""

    def verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None = None
    ) -> Verdict | None:
        if directory and outputs.STAGING_NAME.fullmatch(path):
            return Verdict("a staging directory")
        return super().verdict(path, name, directory=directory, surroundings=surroundings)


def identify(store: Store, request: Request) -> Action:
    """Stores the request's input as it is now; returns its action. Raises as `walker.snapshot`."""
    from casfs.trees.snapshot import policy, working_tree  # a list of entries reads no input

    payload: dict[str, Any] = {
        "argv": list(request.argv),
        "cwd": request.cwd,
        "env": dict(request.env),
        "inputRoot": request.tree,
        "outputs": list(request.outputs),
        "platform": host_platform(),
        "timeoutMs": request.timeout_ms,
        "step": None,
    }
    canonical.encode(payload)  # raises before anything is read
    if request.tree is not None:
        with store.batch() as batch:
            return Action(batch.put_node("action", payload).hash, payload)
    report = SnapshotReport()
    ignore = _input_rules(store, request, report)
    options = SnapshotOptions(times=False, scanner=policy.load(store).scanner(), must_be_whole=True)
    cache = stat_cache.load(store, request.root, rules=ignore, variant=f"action,{options.variant}")
    with store.batch() as batch:
        full = walker.snapshot(
            batch, request.root, rules=ignore, report=report, options=options, cache=cache
        )
        state = working_tree.divide(
            store, batch, full=full.dated, directory=request.root, report=report
        )
        payload |= input_fields(state)
        node = batch.put_node("action", payload)
    if cache is not None:
        cache.save()
    return Action(node.hash, payload, report.warnings)


def input_fields(state: RecordedState | None) -> dict[str, Any]:
    """Returns the fields of an action that say what it reads. All of the directory counts; what is
    local of it by a hash of its hash, which tells two apart and names none."""
    if state is None or state.local is None:
        return {"inputRoot": None if state is None else state.tree}
    return {"inputRoot": state.tree, "local": hash_bytes(state.local.encode())}


@functools.cache
def host_platform() -> dict[str, str]:
    libc = " ".join(platform.libc_ver()).strip()
    return {"os": platform.system().lower(), "arch": platform.machine(), "libc": libc}


def _input_rules(store: Store, request: Request, report: SnapshotReport) -> InputRules:
    ignore = InputRules.of(request.root, defaults=request.defaults)
    exclusions.exclude_stores(store, request.root, rules=ignore, report=report)
    excluded = {*map(os.fsdecode, ignore.excluded), *request.outputs}
    for above in sorted(outputs.parent_directories(request.outputs), key=len, reverse=True):
        if _holds_only(request.root / above, above, excluded):
            excluded.add(above)  # it always exists when the command runs
    reasons = {os.fsencode(path): "an output" for path in excluded}
    ignore.excluded = {**reasons, **ignore.excluded}
    return ignore


def _holds_only(directory: Path, path: str, excluded: set[str]) -> bool:
    try:
        return all(f"{path}/{name}" in excluded for name in os.listdir(directory))
    except OSError:
        return False
