"""The operation log of a directory: what commands have written into it, and the way back.

    operations/<directory>/<number>     leads to the tree of the written paths as they were before

The head's record has the rest: the same paths as the command was to leave them, and what it was.
Both trees have the paths that differ between them and no others, private files included, so they
stay in this store, and whatever takes an operation back touches nothing else. An operation is
stored before its first write: where a command was killed, each path is as in one of the two trees.

`undo` takes back the newest operation of its own actor that is not taken back, `redo` the other
way; both are operations themselves. The first other operation ends what `redo` could do. A
directory that was moved keeps its log (`casfs.directories.identity`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from casfs.backend.protocols import Head, HeadName
from casfs.digest import TreeHash
from casfs.directories.identity import Identity
from casfs.errors import NotFound
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.system.paths import real_path
from casfs.trees.dated import DatedTree

HEADS = "operations/"
NUMBER_DIGITS = 8
MAX_ARGUMENT_CHARS = 200
MAX_OPERATIONS = 1000  # of a directory; older ones can not be taken back any more
PERSON = "a person"


class Verb(Enum):
    RESTORE = "restore"
    APPLY = "apply"
    REWIND = "rewind"
    UNDO = "undo"
    REDO = "redo"


REVERSALS = Verb.UNDO, Verb.REDO


@dataclass(frozen=True, slots=True)
class Intent:
    """What a command is about to do. `argument`: what it was given, in words; `actor`: who gave the
    command; `target`: the number of the operation that an undo or a redo is of."""

    verb: Verb
    argument: str
    actor: str = PERSON
    target: int | None = None


class OpenedAt(NamedTuple):
    """An open directory, which is or becomes the one at an absolute path without links."""

    path: Path
    fd: int


class WrittenPaths(NamedTuple):
    """The paths that a command writes, as they are, and as they shall be."""

    before: DatedTree
    after: DatedTree


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the log, as its head has it."""

    name: HeadName
    head: Head

    @property
    def _record(self) -> Mapping[str, Any]:
        return self.head.record

    @property
    def directory_id(self) -> str:
        return self.name[len(HEADS) :].partition("/")[0]

    @property
    def number(self) -> int:
        return int(self.name.rpartition("/")[2])

    @property
    def path(self) -> Path:
        """Where the directory was."""
        return _path_of(self._record)

    @property
    def identity(self) -> Identity:
        return Identity.parse(self._record["identity"])

    @property
    def verb(self) -> Verb:
        return Verb(self._record["verb"])

    @property
    def argument(self) -> str:
        text: str = self._record["argument"]
        return text

    @property
    def actor(self) -> str:
        text: str = self._record["actor"]
        return text

    @property
    def target(self) -> int | None:
        return self._record.get("target")

    @property
    def at_ms(self) -> int:
        """When it began, since 1970 UTC."""
        moment: int = self._record["at"]
        return moment

    @property
    def before(self) -> DatedTree:
        return DatedTree(TreeHash(self.head.hash), self._record.get("times"))

    @property
    def after(self) -> DatedTree:
        return DatedTree(self._record["after"], self._record.get("afterTimes"))

    @property
    def is_done(self) -> bool:
        """False while it runs, and where it was interrupted."""
        return bool(self._record.get("done"))

    @property
    def is_taken_back(self) -> bool:
        return bool(self._record.get("takenBack"))

    @property
    def left(self) -> int:
        """How many paths could not be written."""
        return int(self._record.get("left", 0))

    @property
    def stays(self) -> int:
        """How many paths were changed since, so that they stay though it is taken back."""
        return self.left_by_reversal if self.is_taken_back else 0

    @property
    def left_by_reversal(self) -> int:
        """The same of the last undo or redo of it."""
        return int(self._record.get("stays", 0))

    @property
    def bases(self) -> Mapping[str, Any]:
        """What restores compared with `before` and `after` it, where it has changed that."""
        bases: Mapping[str, Any] = json.loads(self._record.get("bases", "{}"))
        return bases


@dataclass(frozen=True, slots=True)
class Log:
    """The operations of one directory, newest first."""

    id: str
    operations: tuple[Operation, ...]

    def numbered(self, number: int) -> Operation:
        """Raises NotFound."""
        for operation in self.operations:
            if operation.number == number:
                return operation
        raise NotFound(f"no operation {number} here; see `casfs undo --list`")

    def meant(self, number: int) -> tuple[Operation, bool]:
        """Returns the operation that is to be taken back where one with this number shall be, and
        whether it is to be done once more instead: that takes an undo back. Raises NotFound."""
        operation = self.numbered(number)
        is_again = False
        while operation.verb in REVERSALS and operation.target is not None:
            is_again ^= operation.verb is Verb.UNDO
            operation = self.numbered(operation.target)
        return operation, is_again

    def to_take_back(self, operation: Operation, *, is_again: bool) -> Operation:
        """Returns the undo of an operation that is to be done once more, or the redo of one that is
        to be undone, if that alone has done all of it: what it has overwritten is in its trees
        alone. Else the operation itself."""
        opposite = Verb.UNDO if is_again else Verb.REDO
        reversals = [entry for entry in self.operations if entry.target == operation.number]
        verbs = [entry.verb for entry in reversals[:2]]
        if verbs[:1] != [opposite] or verbs == [opposite, opposite]:
            return operation
        is_whole = operation.is_done and reversals[0].is_done and not reversals[0].left
        return reversals[0] if is_whole and not operation.left_by_reversal else operation

    def to_undo(self, actor: str) -> Operation | None:
        """Returns the newest operation of an actor that is not taken back."""
        for operation in self.operations:
            is_own = operation.actor == actor and operation.verb not in REVERSALS
            if is_own and not operation.is_taken_back:
                return operation
        return None

    def to_redo(self, actor: str) -> Operation | None:
        """Returns the operation that this actor has taken back last, unless there is another one of
        theirs since."""
        for operation in self.operations:
            if operation.actor != actor:
                continue
            if operation.verb not in REVERSALS:
                return None
            if operation.verb is Verb.UNDO and operation.target is not None:
                target = self.numbered(operation.target)
                if target.is_taken_back:
                    return target
        return None


def log_of(store: Store, directory: Path) -> Log:
    """Returns what was done to a directory, under whatever path. Raises OSError where it is
    gone."""
    id = Identity.at(directory).key
    return Log(id, tuple(_listing(store, id)))


def innermost(store: Store, directory: Path) -> tuple[Path, Log] | None:
    """Returns the innermost directory that holds this one, or is it, and has a log. Raises OSError
    where this one is gone: what is above it is not meant."""
    Identity.at(directory)
    for path, identity in Identity.above(real_path(directory)):
        if operations := tuple(_listing(store, identity.key)):
            return path, Log(identity.key, operations)
    return None


def logs(store: Store) -> Iterator[Operation]:
    """Yields the newest operation of each directory."""
    previous: Operation | None = None
    for name, head in head_kinds.sound(store.heads, HEADS):
        operation = Operation(name, head)
        if previous is not None and previous.directory_id != operation.directory_id:
            yield previous
        previous = operation
    if previous is not None:
        yield previous


def begin(
    store: Store,
    batch: Batch,
    intent: Intent,
    opened: OpenedAt,
    written: WrittenPaths,
    bases: Mapping[str, Any] | None = None,
) -> Operation:
    """Stores that a command is about to bring `written` from one tree to the other; both are in
    `batch`, which this commits, or stored. `bases`: as of `Operation`. Raises Conflict where
    another one begins there."""
    identity = Identity.of(opened.fd)
    id = identity.key
    newest = next(_listing(store, id), None)
    number = 1 if newest is None else newest.number + 1
    optional = {
        "times": written.before.times,
        "afterTimes": written.after.times,
        "target": intent.target,
        # As text: what its hashes name may be deleted by gc, and the log goes on.
        "bases": None if bases is None else json.dumps(bases),
    }
    record = {
        **_path_fields(opened.path),
        "identity": str(identity),
        "verb": intent.verb.value,
        "argument": intent.argument[:MAX_ARGUMENT_CHARS],
        "actor": intent.actor,
        "at": now_ms(),
        "after": written.after.tree,
        **{name: value for name, value in optional.items() if value is not None},
    }
    name = HeadName(f"{HEADS}{id}/{number:0{NUMBER_DIGITS}d}")
    head = Head(written.before.tree, record)
    batch.swap(name, None, head)
    _drop_old(store, batch, id, number)
    batch.commit()
    return Operation(name, head)


def conclude(store: Store, operation: Operation, *, left: int = 0) -> Operation:
    """Notes that all of an operation was written but `left` paths."""
    done = Head(operation.head.hash, {**operation.head.record, "done": True, "left": left})
    with store.local_writes().batch() as batch:
        batch.swap(operation.name, operation.head, done)
    return Operation(operation.name, done)


def mark(store: Store, operation: Operation, *, is_taken_back: bool, stays: int) -> None:
    """Notes whether an operation is taken back; `stays`: as of `Operation`. Raises Conflict where
    it was changed meanwhile."""
    marked = {**operation.head.record, "takenBack": is_taken_back, "stays": stays}
    with store.local_writes().batch() as batch:
        batch.swap(operation.name, operation.head, Head(operation.head.hash, marked))


def _listing(store: Store, id: str) -> Iterator[Operation]:
    for name, head in head_kinds.sound(store.heads, f"{HEADS}{id}/", reverse=True):
        yield Operation(name, head)


def _drop_old(store: Store, batch: Batch, id: str, number: int) -> None:
    if number <= MAX_OPERATIONS:
        return
    name = HeadName(f"{HEADS}{id}/{number - MAX_OPERATIONS:0{NUMBER_DIGITS}d}")
    if (head := store.heads.get(name)) is not None:
        batch.swap(name, head, None)


def _path_fields(path: Path) -> dict[str, str]:
    data = os.fsencode(path)
    try:
        return {"path": data.decode("utf-8")}
    except UnicodeDecodeError:  # a record is JSON, which has no text for these
        return {"pathHex": data.hex()}


def _path_of(record: Mapping[str, Any]) -> Path:
    if "path" in record:
        return Path(record["path"])
    return Path(os.fsdecode(bytes.fromhex(record["pathHex"])))
