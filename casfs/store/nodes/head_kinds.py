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

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
CHECKPOINT_ID = "[0-9]{8}T[0-9]{6}[.][0-9]{3}Z-[0-9a-f]{8}"
THREAD_ID = "[0-9A-HJKMNP-TV-Z]{26}"
THREADS = "threads/"  # prefix of the heads of threads
NAMED_BY_HASH = ("actions/", "local/", PURGED)  # prefixes of heads
REMOVED = "removed/"  # prefix of heads that were removed (`casfs.store.removals`), before an id
RESERVED_NAMES = ("plugins", "latest")  # of checkpoints
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999


def _text(*, null: bool = False) -> dict[str, Any]:
    return {"type": ["string", "null"] if null else "string"}


def _count(minimum: int = 0, *, null: bool = False) -> dict[str, Any]:
    return {"type": ["integer", "null"] if null else "integer", "minimum": minimum}


def _ref(type: str | None = None, *, null: bool = False) -> dict[str, Any]:
    return {**_text(null=null), "format": "cas_ref", **({"cas_type": type} if type else {})}


def _id(*, null: bool = False) -> dict[str, Any]:
    return {**_text(null=null), "pattern": f"^{THREAD_ID}$"}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


TIME = {**_count(), "maximum": MAX_TIME_MS}
FLAG = {"type": "boolean"}
INTENT = _object(
    {"role": {**_text(), "minLength": 1}, "index": _count(1)},
    attempt=_count(1),
    since=TIME,
    run=_text(null=True),
    pid=_count(2, null=True),
    pidStart=_count(null=True),
    turns=_list(_ref()),
    turnCount=_count(),
    earlier=_ref("content"),
    paused=_ref("content"),
    correction=_ref("content"),
    kept=_ref(),
    tree=_ref("directory"),
    local=_ref("directory"),
    times=_ref("times"),
    localTimes=_ref("times"),
    calls=_list(_id()),
    resumed=FLAG,
    goesOn=FLAG,
    begun=FLAG,
    lost=_count(),
    rule=_count(),
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
    attempts=_list(_ref()),
    spent=_object({"tokens": _count(), "wallMs": _count()}),
    compact=_ref("content", null=True),
    parent=_id(null=True),
    children=_list(_id()),
    fork={**_object({"thread": _text(), "step": _count()}), "type": ["object", "null"]},
    agents=_ref("thread-agents", null=True),
    definition=_ref("workflow"),
    key=_text(null=True),
    name=_text(null=True),
    returnCode=_count(null=True),
    origin=_text(),
    trusted=FLAG,
    lease=_count(1),
    secretMarks=_count(),
    allowsSecrets=FLAG,
    ignored=_text(null=True),
    rounds=_count(1),
    onLimit=_text(),
)
TREE = {"root": _ref("directory"), "createdAt": TIME}


class HeadKind:
    """The heads below one prefix. `name`: the pattern of the rest; `types`: of the nodes that they
    lead to; `document`: the schema of their records."""

    def __init__(
        self, prefix: str, name: str, types: tuple[str, ...], document: dict[str, Any]
    ) -> None:
        self.prefix = prefix
        self.name = name
        self.types = types
        self.document = document

    @cached_property
    def record(self) -> Schema:
        from casfs.store.nodes.schema import Schema

        return Schema(self.document)

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.document)

    def check(self, record: dict[str, Any]) -> None:
        """Raises Invalid where a record breaks the schema."""
        # Where another part of the process has imported the library, it is the faster of the two.
        if "jsonschema_rs" in sys.modules or not self.shape(record):
            self.record.check(record)


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
                "way": {"enum": ["native", "overlay", "namespace", "fuse-overlayfs", "copy"]},
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
        ),
    ),
    HeadKind(
        "actions/",
        "[0-9a-f]{64}",
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
        "[0-9a-f]{64}",
        types=(),
        document=_object(
            {"size": _count(), "at": TIME, "why": _text()}, substitute=_ref(null=True)
        ),
    ),
    HeadKind(
        "local/", "[0-9a-f]{64}", types=("directory",), document=_object({}, times=_ref("times"))
    ),
    HeadKind("keys/", "[0-9a-f]{32}", types=("thread-start",), document=_object({"thread": _id()})),
)
BY_PREFIX = {kind.prefix: kind for kind in KINDS}


def removed_name(name: str) -> str:
    """Returns the name that a removed head had; any other name as it is."""
    return name.split("/", 2)[-1] if name.startswith(REMOVED) else name


def kind_of(name: str) -> HeadKind | None:
    name = removed_name(name)
    return BY_PREFIX.get(name[: name.find("/") + 1])


def fault(name: str, head: Head) -> str | None:
    """Returns why a head is damaged; None where its name and record are as its kind has them."""
    if isinstance(head, DamagedHead):
        return "its row does not decode"
    kind = kind_of(name)
    if kind is None:
        return None
    bare_name = removed_name(name)[len(kind.prefix) :]
    first = bare_name.partition("/")[0]
    reserved = kind.prefix == "checkpoints/" and first in RESERVED_NAMES
    stands_for_hash = is_hash(first) and kind.prefix not in NAMED_BY_HASH
    if not re.fullmatch(kind.name, bare_name) or reserved or stands_for_hash:
        return "its name is not allowed"
    return record_fault(name, head)


def record_fault(name: str, head: Head) -> str | None:
    """As `fault`, of the record alone."""
    if isinstance(head, DamagedHead):
        return "its row does not decode"
    kind = kind_of(name)
    try:
        if kind is not None:
            kind.check(dict(head.record))
    except Invalid as error:
        return f"its record is damaged: {error}"
    return None


def sound(heads: Heads, prefix: str, *, reverse: bool = False) -> Iterator[tuple[HeadName, Head]]:
    """Yields the heads below a prefix without the damaged ones."""
    return (
        named_head
        for named_head in heads.list(prefix, reverse=reverse)
        if fault(*named_head) is None
    )


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
    return [] if kind is None else kind.record.refs(dict(head.record))
