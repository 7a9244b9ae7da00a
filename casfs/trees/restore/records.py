"""What the store remembers of the directories it restored, so that the next restore into
one of them need only do what has changed.

    restored/<hash of the absolute path>.json

A record says of one directory, known by its device and inode so that another one of the
same path is not mistaken for it: every path of it is as in one of `roots` (None: an empty
directory). One root: the restore was completed. Several: one is under way, or was
interrupted, and any path may be as in any of them. A record is a hint about somebody's
directory, no part of a tree: it keeps nothing from gc.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from casfs.digest import hash_bytes, is_hash
from casfs.system.files import replacing

FOLDER = "restored"


@dataclass(frozen=True, slots=True)
class Record:
    """`path`: the absolute path that was asked for."""

    path: str
    device: int
    inode: int
    roots: tuple[str | None, ...]

    def is_of(self, found: os.stat_result) -> bool:
        return (self.device, self.inode) == (found.st_dev, found.st_ino)


class Records:
    """The records of a store; a store in memory remembers nothing."""

    def __init__(self, root: Path | None) -> None:
        self._folder = None if root is None else root / FOLDER

    @staticmethod
    def key(target: Path) -> str:
        return hash_bytes(os.fsencode(target))

    def temp(self, target: Path) -> str:
        """The only name that an unfinished restore may have left in the target or beside it:
        always the same one, so that the next restore finds it; another store has another."""
        if self._folder is None:
            return f".casfs.{secrets.token_hex(8)}"
        return f".casfs.{self.key(self._folder.resolve() / self.key(target))[:16]}"

    def find(self, target: Path) -> Record | None:
        """What is known of the directory that was restored at this path, if anything."""
        if self._folder is None:
            return None
        found = _read(self._folder / f"{self.key(target)}.json")
        return found if found is not None and found.path == str(target) else None

    def save(self, record: Record, *, durable: bool = False) -> None:
        """`durable`: before it returns; a record of what is under way must not be lost."""
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{self.key(Path(record.path))}.json"
        if not path.exists():
            self._prune()
        with replacing(path, durable=durable) as file:
            file.write(json.dumps(asdict(record)).encode("ascii"))

    def forget(self, target: Path) -> None:
        """Whoever removes the directory says so."""
        if self._folder is not None:
            (self._folder / f"{self.key(target)}.json").unlink(missing_ok=True)

    def _prune(self) -> None:
        """Forget directories that are gone."""
        assert self._folder is not None
        for path in self._folder.glob("*.json"):
            record = _read(path)
            if record is None or not _is_there(record):
                path.unlink(missing_ok=True)


def _read(path: Path) -> Record | None:
    """None where there is none, or none that can be understood: it is only a hint."""
    try:
        value = json.loads(path.read_bytes())
        record = Record(**{**value, "roots": tuple(value["roots"])})
        roots = [root for root in record.roots if root is not None]
        sound = roots and all(map(is_hash, roots))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if sound else None


def _is_there(record: Record) -> bool:
    try:
        return record.is_of(os.lstat(record.path))
    except OSError:
        return False
