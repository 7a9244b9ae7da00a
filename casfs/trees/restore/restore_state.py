"""Restore state: the trees that the store knows to be in a directory, so that the next restore
into it need only write the differences.

    restored/<hash of the absolute path>.json

A state is about one directory, identified by device and inode so that another one at the same
path is not mistaken for it: every path of it is as in one of `roots` (None: an empty
directory). One root: the restore was completed. Several: one is under way, or was
interrupted, and any path may be as in any of them. Or single paths of the later ones were restored
into the first (`is_partial`): there each file is whole, so nothing has to be completed. A state is
a hint about a host directory, no part of a tree: it keeps nothing from gc.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from casfs.digest import TreeHash, hash_bytes, is_hash
from casfs.system.files import replacing
from casfs.trees.recorded_state import RecordedState

FOLDER = "restored"


@dataclass(frozen=True, slots=True)
class RestoreState:
    """`path`: the absolute path of the target; `roots`: of the whole directory; `name`: NAME@ID of
    the checkpoint that it was recorded as, else empty; `work`: of the first root, where not all of
    it is work; `is_partial`: a restore of single paths; `is_restored`: a restore has made it, so
    that git may track in it what an agent has added; `written`, `written_work`: of
    what state a rewind has brought something back since, which no restore compares with; `steps`:
    when each applied step was noted; `looks`: when the last checkpoint of each name looked."""

    path: str
    device: int
    inode: int
    roots: tuple[TreeHash | None, ...]
    name: str = ""
    work: TreeHash | None = None
    is_partial: bool = False
    is_restored: bool = False
    written: TreeHash | None = None
    written_work: TreeHash | None = None
    steps: dict[str, int] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> RecordedState | None:
        """What a completed restore left; None while one is under way."""
        if not self.roots or self.roots[0] is None:
            return None
        if len(self.roots) != 1 and not self.is_partial:
            return None
        if self.work is None:
            return RecordedState(self.roots[0])
        return RecordedState(self.work, self.roots[0])

    @property
    def last_written(self) -> RecordedState | None:
        """What casfs wrote there last; None where it wrote nothing, or is about to."""
        if self.written is not None and self.written_work is not None:
            return RecordedState(self.written_work, self.written)
        return self.state if self.is_restored else None

    def is_of(self, status: os.stat_result) -> bool:
        return (self.device, self.inode) == (status.st_dev, status.st_ino)


class RestoreStates:
    """The restore states of a store."""

    def __init__(self, root: Path, folder: str = FOLDER) -> None:
        self._folder = root / folder

    def path(self, target: Path) -> Path:
        """Returns the file of a directory's state."""
        return self._folder / f"{self.key(target)}.json"

    @staticmethod
    def key(target: Path) -> str:
        return hash_bytes(os.fsencode(target))

    def staging_name(self, target: Path) -> str:
        """Returns the only name that an unfinished restore may have left in the target or beside
        it: always the same, so that the next restore finds it; each store has its own."""
        return f".casfs.{self.key(self._folder.resolve() / self.key(target))[:16]}"

    def find(self, target: Path) -> RestoreState | None:
        """Returns the state of the directory at this path, if any."""
        state = _read(self.path(target))
        return state if state is not None and state.path == str(target) else None

    def save(self, state: RestoreState, *, durable: bool = False) -> None:
        """`durable`: synced when it returns; the state of a restore under way must not be lost."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self.path(Path(state.path))
        if not path.exists():
            self._prune()
        with replacing(path, durable=durable) as file:
            file.write(json.dumps(asdict(state)).encode("ascii"))

    def forget(self, target: Path) -> None:
        self.path(target).unlink(missing_ok=True)

    def listing(self) -> list[RestoreState]:
        """Returns the states of all directories that are there."""
        if not self._folder.is_dir():
            return []
        states = map(_read, sorted(self._folder.glob("*.json")))
        return [state for state in states if state is not None and _exists(state)]

    def _prune(self) -> None:
        """Delete the states of directories that are gone."""
        for path in self._folder.glob("*.json"):
            state = _read(path)
            if state is None or not _exists(state):
                path.unlink(missing_ok=True)


def _read(path: Path) -> RestoreState | None:
    """Returns None for a missing or invalid state: it is only a hint."""
    try:
        value = json.loads(path.read_bytes())
        state = RestoreState(**{**value, "roots": tuple(value["roots"])})
        roots = [root for root in state.roots if root is not None]
        optional = (state.work, state.written, state.written_work)
        hashes = [*roots, *(hash for hash in optional if hash is not None), *state.steps]
        is_valid = hashes and all(map(is_hash, hashes)) and isinstance(state.name, str)
        times = [*state.steps.values(), *state.looks.values()]
        is_valid = is_valid and all(isinstance(time, int) for time in times)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return state if is_valid else None


def _exists(state: RestoreState) -> bool:
    try:
        return state.is_of(os.lstat(state.path))
    except OSError:
        return False
