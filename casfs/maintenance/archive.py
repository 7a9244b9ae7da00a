"""Export and import: the closure of some roots as one file.

A tar, compressed with zstd where its name ends in `.zst`:

    manifest.json          {"format", "roots", "heads": [{name, hash, record}]}
    nodes/<hash>           canonical bytes of a node
    blobs/<hash>           any other bytes
    end.json               {"members": how many of these two, "seal": hash of all before it:
                           the bytes of the manifest and the members' names}

What a node refers to comes before it, in an order that the roots alone determine, and no
member has a time, an owner or a name of its own: equal content, equal file. An import is
thus one pass, and it is made twice: first against a backend that stores nothing, with the
checks of every put (digest, schema, refs), then for real. A file that is cut short or was
tampered with fails the first pass and changes nothing.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from casfs import canonical, graph
from casfs.backend.protocols import Backend, Head, targets
from casfs.digest import Digest, Hasher, is_hash
from casfs.errors import Conflict, Corrupt, CorruptBlob, Failed, Invalid, NotFound
from casfs.maintenance import names
from casfs.maintenance.import_dry_run import Rehearsal
from casfs.nodes.registry import Registry
from casfs.store import Store
from casfs.system import zstd
from casfs.write_batch import Batch

FORMAT = "casfs export 1"
MANIFEST, END = "manifest.json", "end.json"
MAX_NODE = 1 << 30  # bytes


@dataclass(slots=True)
class Exported:
    members: int = 0
    bytes: int = 0
    skipped: int = 0  # that the other side has


@dataclass(slots=True)
class Imported:
    members: int = 0
    new_bytes: int = 0
    heads: list[str] = field(default_factory=list)


# -- export -----------------------------------------------------------------------------------


def export(
    store: Store,
    roots: Iterable[str],
    heads: Iterable[tuple[str, Head]],
    target: BinaryIO,
    *,
    have: Collection[str] = (),
    compress: bool = False,
) -> Exported:
    """Write the closure of `roots` and `heads`, less what is in `have`."""
    named = sorted(dict(heads).items())
    start = sorted({*roots, *(head.hash for _, head in named)})
    records = [{"name": name, "hash": h.hash, "record": dict(h.record)} for name, h in named]
    manifest = canonical.encode({"format": FORMAT, "roots": start, "heads": records})
    mentioned = [hash for _, head in named for hash in targets(head)]
    done, seal = Exported(), _Seal(manifest)
    with _compressed(target, compress) as out, _tar(out, "w|") as tar:
        _add(tar, MANIFEST, manifest)
        for hash in graph.post_order(store, [*start, *sorted(mentioned)]):
            if hash in have:
                done.skipped += 1
            else:
                seal.add(_add_blob(store, tar, hash, done))
        _add(tar, END, canonical.encode(seal.value()))
    return done


def _add_blob(store: Store, tar: tarfile.TarFile, hash: str, done: Exported) -> str:
    """Returns the member's name."""
    info = store.blobs.info([hash])[hash]
    with store.blobs.open(hash) as source:
        name = f"{'blobs' if info.type is None else 'nodes'}/{hash}"
        tar.addfile(_member(name, info.size), source)
    done.members += 1
    done.bytes += info.size
    return name


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


class _Seal:
    """What the end says of all that is before it."""

    def __init__(self, manifest: bytes) -> None:
        self._hasher = Hasher(manifest)
        self._members = 0

    def add(self, name: str) -> None:
        self._hasher.update(f"{name}\n".encode())
        self._members += 1

    def value(self) -> dict[str, Any]:
        return {"members": self._members, "seal": self._hasher.hexdigest()}


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    return member


# -- import -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manifest:
    data: bytes
    roots: list[str]
    heads: list[tuple[str, Head]]


def load(store: Store, source: Path) -> Imported:
    """Bring in an exported file. Raises NotFound (the file), Corrupt (what is in it), Conflict
    (a head that is something else here); nothing has changed then."""
    _pass(Rehearsal(store.backend), source)
    return _pass(store.backend, source)


def _pass(backend: Backend, source: Path) -> Imported:
    done = Imported()
    with _opened(source) as raw, _blamed_on(source), _tar(raw, "r|") as tar:
        members = iter(tar)
        manifest = _manifest(tar, next(members, None))
        with Batch(backend, Registry(backend)) as batch:
            _members(batch, tar, members, manifest, done)
            done.heads = _heads(backend, batch, manifest)
        done.new_bytes = batch.new_bytes
        if absent := set(manifest.roots) - backend.blobs.info(manifest.roots).keys():
            raise Corrupt(f"its root {min(absent)} is not in it")
    return done


@contextmanager
def _blamed_on(source: Path) -> Iterator[None]:
    """What is wrong with the file's content is Corrupt, and says which file."""
    try:
        yield
    except (tarfile.TarError, EOFError) as error:
        raise Corrupt(f"{source}: not a whole export: {error}") from None
    except (Conflict, CorruptBlob):  # of this store
        raise
    except (Invalid, NotFound, Corrupt) as error:
        raise Corrupt(f"{source}: {error}") from None


def _members(
    batch: Batch,
    tar: tarfile.TarFile,
    members: Iterator[tarfile.TarInfo],
    manifest: Manifest,
    done: Imported,
) -> None:
    seal = _Seal(manifest.data)
    for member in members:
        content = _content(tar, member)
        if member.name == END:
            if canonical.parse(content.read(1 << 16)) != seal.value():
                raise Corrupt(f"its end does not fit its manifest and {done.members} members")
            if next(members, None) is not None:
                raise Corrupt("it goes on after its end")
            return
        kind, _, hash = member.name.partition("/")
        if kind not in ("nodes", "blobs") or not is_hash(hash):
            raise Invalid(f"the member {member.name!r} has no place in an export")
        _put(batch, kind, hash, member, content)
        seal.add(member.name)
        done.members += 1
    raise Corrupt("it has no end: it was cut short")


def _put(batch: Batch, kind: str, hash: str, member: tarfile.TarInfo, content: IO[bytes]) -> None:
    if kind == "blobs":
        found = batch.put_stream(content).hash  # type: ignore[arg-type]  # an IO[bytes] will do
    elif member.size > MAX_NODE:
        raise Invalid(f"{member.name}: no node has {member.size} bytes")
    else:
        data = content.read()
        found = Digest.of(data).hash
        if found == hash:
            _put_node(batch, member.name, data)
    if found != hash:
        raise Corrupt(f"{member.name}: its bytes hash to {found}")


def _put_node(batch: Batch, name: str, data: bytes) -> None:
    try:
        batch.put_encoded(data)
    except (Invalid, NotFound) as error:
        raise Corrupt(f"{name}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise Corrupt(f"{name}: not a node") from None


def _heads(backend: Backend, batch: Batch, manifest: Manifest) -> list[str]:
    """Move the heads of the manifest; what is here already and equal stays."""
    made = []
    for name, new in manifest.heads:
        old = backend.heads.get(name)
        if old is not None and (name.startswith("schemas/") or _same(name, old, new)):
            continue
        if old is not None:
            raise Conflict(f"{name} is there already, and is something else; nothing was imported")
        batch.swap(name, None, new)
        made.append(name)
    return made


def _same(name: str, old: Head, new: Head) -> bool:
    """A workflow is its definition; of the others the record counts too."""
    return old.hash == new.hash and (name.startswith("workflows/") or old == new)


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> Manifest:
    if member is None or member.name != MANIFEST or member.size > MAX_NODE:
        raise Corrupt("not an export of casfs: it does not begin with its manifest")
    data = _content(tar, member).read()
    value = canonical.parse(data)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Invalid("not an export of a form that this casfs reads")
    roots, heads = value.get("roots"), value.get("heads")
    if not isinstance(roots, list) or not all(map(is_hash, roots)) or not isinstance(heads, list):
        raise Invalid("its manifest has no roots, or no heads")
    named = [names.travelled(one) for one in heads]
    if len(dict(named)) != len(named):
        raise Invalid("its manifest names a head twice")
    return Manifest(data, roots, named)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise Invalid(f"the member {member.name!r} is not a regular file")
    return content


# -- files ------------------------------------------------------------------------------------


def _tar(stream: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, format=tarfile.GNU_FORMAT)


@contextmanager
def _compressed(target: BinaryIO, compress: bool) -> Iterator[BinaryIO]:
    if not compress:
        yield target
        return
    with zstd.compressed(target) as out:
        yield out


@contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    try:
        with zstd.opened(source) as stream:
            yield stream
    except FileNotFoundError:
        raise NotFound(f"no file {source}") from None
    except OSError as error:
        raise Failed(f"cannot read {source}: {error.strerror}") from None
