"""The format of `directory` nodes: one level of a Merkle tree, by value, without a store.

A directory's payload has three lists (files, directories, symlinks), each sorted by name
bytes, and a name is unique over all three (seed 004, SPEC-08.11; REAPI's Directory
message). Names and link targets are bytes here, as in the kernel; in JSON they are text
where they are UTF-8, else base64. Names that could escape from a directory (empty, `.`,
`..`, with `/` or NUL) are refused when encoded and again when decoded, so that no reader
has to trust a writer.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from operator import attrgetter, ne
from typing import Any, NamedTuple, TypeAlias

from casfs.digest import Digest, TreeDigest, TreeHash
from casfs.errors import Invalid

RESERVED_NAMES = (b"", b".", b"..")
MAX_NAME_BYTES = 255  # as on every Linux file system
MAX_UNIX_MODE = 0o7777
NANOS_PER_S = 1_000_000_000


class Properties(NamedTuple):
    """Metadata kept by `--preserve`: (seconds, nanoseconds) of the mtime, permission bits."""

    mtime: tuple[int, int] | None = None
    unix_mode: int | None = None


class File(NamedTuple):
    name: bytes
    digest: Digest
    executable: bool = False
    properties: Properties | None = None


class Subdirectory(NamedTuple):
    """A directory's own metadata is in its node: see `properties`."""

    name: bytes
    digest: TreeDigest


class Symlink(NamedTuple):
    name: bytes
    target: bytes
    properties: Properties | None = None


Item: TypeAlias = dict[str, Any]  # an entry as a payload has it
Items: TypeAlias = Sequence[Item]
Entry = File | Subdirectory | Symlink
# In this order everywhere: the lists of a `times` node have it, too.
KINDS: tuple[tuple[str, type[Entry]], ...] = (
    ("files", File),
    ("directories", Subdirectory),
    ("symlinks", Symlink),
)


def encode(entries: Iterable[Entry], own: Properties | None = None) -> dict[str, Any]:
    """Returns the payload of a `directory` node; `own`: metadata of the directory itself. Raises
    Invalid for a name that is refused."""
    payload: dict[str, Any] = {key: [] for key, _ in KINDS}
    # One order of the names, whatever the caller's is, so that equal directories have one hash.
    ordered = sorted(entries, key=attrgetter("name"))
    for entry in ordered:
        _check_name(entry.name)
    for key, kind in KINDS:
        payload[key] = [_encode(entry) for entry in ordered if isinstance(entry, kind)]
    # `decode` calls it, too: whatever can be written can be read.
    check(payload)
    return payload if own is None else payload | _preserved(own)


def decode(payload: Mapping[str, Any]) -> dict[bytes, Entry]:
    """Returns the entries by name, sorted. Raises Invalid where the payload breaks the format."""
    names = check(payload)
    entries: list[Entry] = []
    for key, kind in KINDS:
        for name, item in zip(names[key], payload[key], strict=True):
            entries.append(_decode(kind, name, item))
    entries.sort(key=attrgetter("name"))
    return {entry.name: entry for entry in entries}


def find(payload: Mapping[str, Any], name: bytes) -> Entry | None:
    """Returns one entry of a stored payload, without decoding the others. Raises Invalid."""
    # A name has one text only, so texts can be compared: no other entry is decoded.
    [(field, text)] = _text("name", name).items()
    for key, kind in KINDS:
        for item in payload[key]:
            if item.get(field) == text:
                return _decode(kind, name, item)
    return None


def changed_names(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[bytes, tuple[TreeHash | None, TreeHash | None]]:
    """Returns the names whose entries differ between two stored payloads, without decoding the
    others; of each the tree of the directory with that name before and after, None where it is no
    directory. Raises Invalid."""
    changed: dict[bytes, tuple[TreeHash | None, TreeHash | None]] = {}
    for key, kind in KINDS:
        before, after = _differing(old[key], new[key])
        for name in before.keys() | after.keys():
            if before.get(name) == after.get(name):
                continue
            changed.setdefault(name, (None, None))
            if kind is Subdirectory:
                changed[name] = (_tree_of(before.get(name)), _tree_of(after.get(name)))
    return changed


def _differing(old: Items, new: Items) -> tuple[dict[bytes, Item], dict[bytes, Item]]:
    """Returns the items of two lists, by name, but for those that both begin or end with."""
    # Both are in the order of names, and mostly differ in an item or two: nothing of ours is run
    # for each of the others.
    if old == new:
        return {}, {}
    shorter = min(len(old), len(new))
    begin = next(compress(count(), map(ne, old, new)), shorter)
    same_ends = compress(count(), map(ne, reversed(old), reversed(new)))
    end = min(next(same_ends, shorter), shorter - begin)
    lists = (items[begin : len(items) - end] for items in (old, new))
    before, after = ({_bytes(item, "name", "$"): item for item in items} for items in lists)
    return before, after


def _tree_of(item: Item | None) -> TreeHash | None:
    return None if item is None else TreeHash(item["digest"]["hash"])


def check(payload: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Checks what the schema cannot: order, unique and allowed names, targets. Raises Invalid.
    Returns the names of each list, so that `decode` need not read them again."""
    seen: set[bytes] = set()
    names_by_key: dict[str, list[bytes]] = {}
    for key, _ in KINDS:
        names_by_key[key] = names = _names(key, payload[key])
        # Over the lists before: within one list the order shows a duplicate.
        twice = seen.intersection(names)
        if twice:
            raise Invalid(f"$.{key}: duplicate name {min(twice)!r}")
        seen.update(names)
    # The schema sees no bytes in base64, and what is loaded was not checked against it again.
    for index, item in enumerate(payload["symlinks"]):
        target = _bytes(item, "target", f"$.symlinks[{index}]")
        if not target or b"\0" in target:
            raise Invalid(f"$.symlinks[{index}]: the target {target!r} is not allowed in a symlink")
    return names_by_key


def check_node(payload: dict[str, Any]) -> None:
    """Checks everything about a payload that the schema cannot. Raises Invalid."""
    check(payload)
    # For what it raises. It is not in `check`, since `decode` calls it for each entry anyway.
    for item in (payload, *payload["files"], *payload["symlinks"]):
        properties(item)


def check_sizes(payload: dict[str, Any], sizes: Mapping[str, int]) -> None:
    """Checks each `size_bytes` against the size of the blob in `sizes`, by its hash. Raises
    Invalid."""
    # Readers trust these sizes: a mount shows them without a look at the blobs.
    for key in ("files", "directories"):
        for index, item in enumerate(payload[key]):
            digest = item["digest"]
            # A blob that is missing is the fault of a ref, which others report.
            size = sizes.get(digest["hash"])
            if size is not None and size != digest["size_bytes"]:
                stated = f"size_bytes is {digest['size_bytes']}, the blob's size is {size}"
                raise Invalid(f"{_at(key, index)}.digest: {stated}")


def _names(key: str, items: list[dict[str, Any]]) -> list[bytes]:
    """Returns the names of one list, in their order."""
    names: list[bytes] = []
    before = b""
    for index, item in enumerate(items):
        # Every directory that is read comes through here: `_bytes` and `_check_name`, and the place
        # in the payload, are called for in the rare cases alone.
        if "name" in item:
            name = str(item["name"]).encode()
        else:
            name = _bytes(item, "name", _at(key, index))
        if name in RESERVED_NAMES or b"/" in name or b"\0" in name or len(name) > MAX_NAME_BYTES:
            _check_name(name, f"{_at(key, index)}: ")
        if before >= name:
            raise Invalid(f"{_at(key, index)}: {name!r} is out of order")
        names.append(name)
        before = name
    return names


def _at(key: str, index: int) -> str:
    return f"$.{key}[{index}]"


def _check_name(name: bytes, where: str = "") -> None:
    if name in RESERVED_NAMES or b"/" in name or b"\0" in name:
        raise Invalid(f"{where}the name {name!r} is not allowed in a directory")
    if len(name) > MAX_NAME_BYTES:
        raise Invalid(f"{where}the name {name[:20]!r}… is longer than {MAX_NAME_BYTES} bytes")


def _encode(entry: Entry) -> dict[str, Any]:
    item = _text("name", entry.name)
    if isinstance(entry, Symlink):
        item |= _text("target", entry.target)
    else:
        item["digest"] = {"hash": entry.digest.hash, "size_bytes": entry.digest.size_bytes}
    if isinstance(entry, File):
        item["is_executable"] = entry.executable
    if not isinstance(entry, Subdirectory) and entry.properties is not None:
        item |= _preserved(entry.properties)
    return item


def _preserved(properties: Properties) -> dict[str, Any]:
    item: dict[str, Any] = {}
    if properties.mtime is not None:
        seconds, nanos = properties.mtime
        item["mtime"] = {"seconds": seconds, "nanos": nanos}
    if properties.unix_mode is not None:
        item["unix_mode"] = properties.unix_mode
    return item


def _decode(kind: type[Entry], name: bytes, item: dict[str, Any]) -> Entry:
    if kind is Symlink:
        return Symlink(name, _bytes(item, "target", "$"), properties(item))
    hash = item["digest"]["hash"]
    size = item["digest"]["size_bytes"]
    if kind is File:
        digest = Digest(hash, size)
        return File(name, digest, executable=item["is_executable"], properties=properties(item))
    return Subdirectory(name, TreeDigest(hash, size))


def properties(item: Mapping[str, Any]) -> Properties | None:
    """Returns the metadata of an entry, or of the directory whose payload this is. Raises Invalid
    for a value that no file can have."""
    if "mtime" not in item and "unix_mode" not in item:
        return None
    mtime = item.get("mtime")
    # Not in the schema: a schema that is changed is another type, and gives equal trees new hashes.
    if mtime is not None and mtime["nanos"] >= NANOS_PER_S:
        raise Invalid(f"mtime: nanos is {mtime['nanos']}, and must be below 10^9")
    if item.get("unix_mode", 0) > MAX_UNIX_MODE:
        raise Invalid(f"unix_mode: {item['unix_mode']} is not a set of permission bits")
    pair = None if mtime is None else (mtime["seconds"], mtime["nanos"])
    return Properties(pair, item.get("unix_mode"))


def _text(key: str, value: bytes) -> dict[str, Any]:
    try:
        return {key: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{key}_base64": binascii.b2a_base64(value, newline=False).decode("ascii")}


def _bytes(item: dict[str, Any], key: str, where: str) -> bytes:
    if key in item:
        return str(item[key]).encode("utf-8")
    text = item[f"{key}_base64"]
    try:
        value = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # not ASCII, or not base64
        value = b""  # refused below: `_text` writes it, as all UTF-8, without base64
    # One text for each name, or equal directories have two hashes: base64 is only for what is not
    # UTF-8. Several texts stand for the same bytes, as unused bits at the end are ignored; only the
    # one that `_text` writes is right.
    if _text(key, value) != {f"{key}_base64": text}:
        raise Invalid(f"{where}.{key}_base64: not the base64 of bytes that are not UTF-8")
    return value
