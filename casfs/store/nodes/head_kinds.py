"""The kinds of heads: how one is named, which nodes it leads to, and the schema of its record.

The same rules hold for what is read and for what an import brings. A record that breaks its
schema is damaged: its head is shown as broken or left out of listings (`sound`), and `casfs fsck`
reports it. A record may have more fields than its schema names, as those of a newer casfs have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from casfs.backend.protocols import DamagedHead, Head, HeadName, Heads
from casfs.backend.purged_contents import PURGED
from casfs.digest import is_hash
from casfs.errors import Corrupt, Invalid
from casfs.store.nodes.record_shape import Shape, shape_of
from casfs.store.nodes.ref_collectors import Ref

if TYPE_CHECKING:
    from casfs.store.nodes.schema import Schema

Document = dict[str, Any]  # a JSON Schema
TypeNames = tuple[str, ...]
NamedHead = tuple[HeadName, Head]

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# A title as well: nothing that means something in a revision, or ends a line.
THREAD_NAME = r"(?!.*\.\.)[^\W_](?:[\w .,'+()-]{0,62}[\w.,'+()-])?"
HASH = "[0-9a-f]{64}"
CHECKPOINT_ID = "[0-9]{8}T[0-9]{6}[.][0-9]{3}Z-[0-9a-f]{8}"
THREAD_ID = "[0-9A-HJKMNP-TV-Z]{26}"
THREADS = "threads/"  # prefix of the heads of threads
NAMED_BY_HASH = ("actions/", "local/", PURGED)  # prefixes of heads
REMOVED = "removed/"  # prefix of heads that were removed (`casfs.store.removals`), before an id
# Of checkpoints: in a mount these stand beside their names, and beside their ids, in `trees/`.
RESERVED_NAMES = ("plugins", "latest")
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999


def _text(*, null: bool = False) -> Document:
    return {"type": ["string", "null"] if null else "string"}


def _count(minimum: int = 0, *, null: bool = False) -> Document:
    return {"type": ["integer", "null"] if null else "integer", "minimum": minimum}


def _ref(type: str | None = None, *, null: bool = False) -> Document:
    document = {**_text(null=null), "format": "cas_ref"}
    if type is not None:
        document["cas_type"] = type
    return document


def _id(*, null: bool = False) -> Document:
    return {**_text(null=null), "pattern": f"^{THREAD_ID}$"}


def _list(items: Document) -> Document:
    return {"type": "array", "items": items}


def _object(required: dict[str, Document], **optional: Document) -> Document:
    # Other members may follow, or a head of a newer casfs would count as damaged.
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


TIME = {**_count(), "maximum": MAX_TIME_MS}
FLAG = {"type": "boolean"}
REFS = _list(_ref())
IDS = _list(_id())
SPENT = _object({"tokens": _count(), "wallMs": _count()})
FORK = _object({"thread": _text(), "step": _count()})
# The pending step of a thread; `casfs.threads.threads` says what its members are.
INTENT = _object(
    {"role": {**_text(), "minLength": 1}, "index": _count(1)},
    attempt=_count(1),
    since=TIME,
    waitedMs=_count(),
    run=_text(null=True),
    # Its process group is killed after a crash of the daemon: 0 and 1 would be no group of a step.
    pid=_count(2, null=True),
    pidStart=_count(null=True),
    turns=REFS,
    turnCount=_count(),
    earlier=_ref("content"),
    paused=_ref("content"),
    correction=_ref("content"),
    kept=_ref(),
    tree=_ref("directory"),
    local=_ref("directory"),
    times=_ref("times"),
    localTimes=_ref("times"),
    calls=IDS,
    resumed=FLAG,
    goesOn=FLAG,
    begun=FLAG,
    lost=_count(),
    rule=_count(),
    prompt=_ref("react-turn"),
    promptId=_text(),
)
THREAD = _object(
    {
        "status": {"enum": ["running", "suspended", "ended", "cancelled"]},
        "start": _ref("thread-start"),
        "workflow": _text(),
        "updatedAt": TIME,
    },
    reason=_text(null=True),
    cause=_text(null=True),
    question=_ref("content", null=True),
    answer=_ref("content", null=True),
    hint=_ref("content", null=True),
    intent={**INTENT, "type": ["object", "null"]},
    attempts=REFS,
    spent=SPENT,
    compact=_ref("content", null=True),
    parent=_id(null=True),
    children=IDS,
    fork={**FORK, "type": ["object", "null"]},
    agents=_ref("thread-agents", null=True),
    definition=_ref("workflow"),
    key=_text(null=True),
    name=_text(null=True),
    archived=FLAG,
    pinned=FLAG,
    returnCode=_count(null=True),
    origin=_text(),
    trusted=FLAG,
    lease=_count(1),
    secretMarks=_count(),
    allowsSecrets=FLAG,
    ignored=_text(null=True),
    project=_text(),
    worktree=_text(),
    rounds=_count(1),
    onLimit=_text(),
    session=_object(
        {"pid": _count(), "open": {"type": "object"}},
        pidStart=_count(null=True),
        boot=_text(),
        host=_text(),
        identity=_text(),
        ended=FLAG,
        event=_text(null=True),
        fault=_text(),
        id=_text(),
        transcript=_text(),
        transcriptBytes=_count(),
        subagents={"type": "object", "additionalProperties": _count()},
    ),
)
TREE = {"root": _ref("directory"), "createdAt": TIME}


class HeadKind:
    """The heads below one prefix. `name`: the pattern of the rest; `types`: of the nodes that they
    lead to; `document`: the schema of their records."""

    def __init__(self, prefix: str, name: str, types: TypeNames, document: Document) -> None:
        self.prefix = prefix
        self.name = name
        self.types = types
        self.document = document

    # Both when a record is first checked: most processes meet few kinds, and the library of
    # schemas takes longer to import than all that a short command does.
    @cached_property
    def record_schema(self) -> Schema:
        from casfs.store.nodes.schema import Schema

        return Schema(self.document)

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.document)

    def check(self, record: dict[str, Any]) -> None:
        """Raises Invalid where a record breaks the schema."""
        # The shape is asked first: a cheap check without the library, which may report a false
        # fault. Where it sees one, the library decides, and names the place. Where another part of
        # the process has imported the library, that is the faster of the two.
        if "jsonschema_rs" in sys.modules or not self.shape(record):
            self.record_schema.check(record)


KINDS = (
    HeadKind(
        THREADS, THREAD_ID, types=("thread-start", "thread-step", "thread-end"), document=THREAD
    ),
    HeadKind(
        "checkpoints/",
        f"{NAME}/{CHECKPOINT_ID}",
        types=("checkpoint",),
        document=_object(
            {**TREE, "message": _text()}, times=_ref("times"), origin=_text(), name=_text()
        ),
    ),
    HeadKind(
        "workflows/",
        NAME,
        types=("workflow",),
        document=_object(
            {},
            agents=_ref("thread-agents"),
            builtin=FLAG,
            origin=_text(),
            trusted=FLAG,
            name=_text(),
        ),
    ),
    HeadKind(
        "schemas/", "[a-z][a-z0-9-]{0,63}", types=("schema",), document=_object({}, builtin=FLAG)
    ),
    HeadKind(
        "plugins/",
        f"{NAME}/{NAME}",
        types=("directory",),
        document=_object({**TREE, "source": _text(), "commit": _text(null=True), "syncedAt": TIME}),
    ),
    HeadKind(
        "workspaces/",
        "[0-9a-f]{16}([.][0-9]+)?",
        types=("directory",),
        document=_object(
            {
                "path": _text(),
                "way": {"enum": ["native", "overlay", "fuse-overlayfs", "copy"]},
                "base": _ref("directory"),
                "generation": _count(),
                "readOnly": FLAG,
                "made": FLAG,
                "openedAt": TIME,
                "system": {"type": "string", "pattern": "^[^ ]+ [^ ]+$"},
            },
            name=_text(null=True),
            checkpoint=_ref("checkpoint", null=True),
            local=_ref("directory", null=True),
            times=_ref("times", null=True),
            localTimes=_ref("times", null=True),
            baseTimes=_ref("times", null=True),
            imageTree=_ref("directory"),
            imageTimes=_ref("times", null=True),
            worktree=_object(
                {"name": _text(), "project": _text(), "portBase": _count()},
                git=_object(
                    {"admin": _text(), "branch": _text(), "start": _text(), "madeBranch": FLAG}
                ),
                applied=_text(),
            ),
        ),
    ),
    HeadKind(
        "operations/",
        "[0-9a-f]{16}/[0-9]{8}",
        types=("directory",),
        document=_object(
            {
                "identity": {"type": "string", "pattern": "^[0-9]+:[0-9]+:[0-9]+$"},
                "verb": {"enum": ["restore", "apply", "rewind", "undo", "redo"]},
                "argument": _text(),
                "actor": _text(),
                "at": TIME,
                "after": _ref("directory"),
            },
            path=_text(),
            pathHex={"type": "string", "pattern": "^([0-9a-f]{2})+$"},
            times=_ref("times"),
            afterTimes=_ref("times"),
            target=_count(1),
            done=FLAG,
            takenBack=FLAG,
            left=_count(),
            stays=_count(),
            bases=_text(),
        ),
    ),
    HeadKind(
        "actions/",
        HASH,
        types=("action-result",),
        document=_object({"createdAt": TIME, "argv0": _text()}),
    ),
    HeadKind(
        "dictionaries/",
        "[1-9][0-9]{0,8}",
        types=(),
        document=_object({"type": _text(), "nodes": _count()}),
    ),
    HeadKind(
        PURGED,
        HASH,
        types=(),
        document=_object(
            {"size": _count(), "at": TIME, "why": _text()}, substitute=_ref(null=True)
        ),
    ),
    HeadKind("reviews/", THREAD_ID, types=("review",), document=_object({"waits": FLAG})),
    HeadKind("local/", HASH, types=("directory",), document=_object({}, times=_ref("times"))),
    HeadKind("keys/", "[0-9a-f]{32}", types=("thread-start",), document=_object({"thread": _id()})),
)
BY_PREFIX = {kind.prefix: kind for kind in KINDS}


def removed_name(name: str) -> str:
    """Returns the name that a removed head had; any other name as it is."""
    # `removed/<id>/<name>`, and the name has slashes of its own.
    return name.split("/", 2)[-1] if name.startswith(REMOVED) else name


def kind_of(name: str) -> HeadKind | None:
    name = removed_name(name)
    # Up to the first slash; without one the prefix is empty, which no kind has.
    prefix = name[: name.find("/") + 1]
    return BY_PREFIX.get(prefix)


def fault(name: str, head: Head) -> str | None:
    """Returns why a head is damaged; None where its name and record are as its kind has them."""
    # First, since the record of such a head is empty, which some kinds allow.
    if isinstance(head, DamagedHead):
        return "its row does not decode"
    kind = kind_of(name)
    # There are others: heads of a newer casfs, and on a shared store those of other machines.
    if kind is None:
        return None
    bare_name = removed_name(name)[len(kind.prefix) :]
    first = bare_name.partition("/")[0]
    reserved = kind.prefix == "checkpoints/" and first in RESERVED_NAMES
    # Wherever a name may be typed, so may a hash: a name that looks like one could not be typed.
    stands_for_hash = is_hash(first) and kind.prefix not in NAMED_BY_HASH
    if not re.fullmatch(kind.name, bare_name) or reserved or stands_for_hash:
        return "its name is not allowed"
    return record_fault(name, head)


def record_fault(name: str, head: Head) -> str | None:
    """As `fault`, of the record alone: threads and checkpoints are shown as broken under whatever
    name they have."""
    if isinstance(head, DamagedHead):
        return "its row does not decode"
    kind = kind_of(name)
    try:
        # A record may be any mapping; the library takes a dict alone.
        if kind is not None:
            kind.check(dict(head.record))
    except Invalid as error:
        return f"its record is damaged: {error}"
    return None


def sound(heads: Heads, prefix: str, *, reverse: bool = False) -> Iterator[NamedHead]:
    """Yields the heads below a prefix without the damaged ones."""
    named_heads = heads.list(prefix, reverse=reverse)
    return (named_head for named_head in named_heads if fault(*named_head) is None)


def get(heads: Heads, name: HeadName) -> Head | None:
    """Returns a head, None where there is none. Raises Corrupt where it is damaged."""
    head = heads.get(name)
    if head is not None:
        check(name, head)
    return head


def check(name: HeadName, head: Head) -> None:
    """Raises Corrupt for a damaged head."""
    if reason := fault(name, head):
        raise Corrupt(f"head {name!r} is damaged: {reason}; see `casfs fsck`")


def refs(name: str, head: Head) -> list[Ref]:
    """Returns the refs of a sound head's record, with the types that they must have."""
    kind = kind_of(name)
    if kind is None:
        return []
    record = dict(head.record)
    return kind.record_schema.refs(record)
