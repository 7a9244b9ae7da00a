"""Export and import: the closure of some roots as one file.

A tar, compressed with zstd where its name ends in `.zst`:

    manifest.json          {"format", "roots", "heads": [{name, hash, record}]}
    nodes/<hash>           canonical bytes of a node
    blobs/<hash>           any other bytes
    end.json               {"members": how many of these two}

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

from . import canonical, catalogue, threads, walk
from .backend import Backend, Blob, BlobInfo, Head, Heads, Staged, Swap
from .batch import Batch
from .digest import Digest, hash_stream, is_hash
from .errors import Conflict, Corrupt, Failed, Invalid, NotFound
from .registry import Registry
from .store import Store

FORMAT = "casfs export 1"
MANIFEST, END = "manifest.json", "end.json"
LEVEL = 3  # zstd's own default
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
    zstd: bool = False,
) -> Exported:
    """Write the closure of `roots` and `heads`, less what is in `have`."""
    named = sorted(heads, key=lambda one: one[0])
    start = sorted({*roots, *(head.hash for _, head in named)})
    manifest = {
        "format": FORMAT,
        "roots": start,
        "heads": [
            {"name": name, "hash": head.hash, "record": dict(head.record)} for name, head in named
        ],
    }
    targets = [hash for _, head in named for hash in catalogue.targets(head)]
    done = Exported()
    with _compressed(target, zstd) as out, _tar(out, "w|") as tar:
        _add(tar, MANIFEST, canonical.encode(manifest))
        for hash in walk.post_order(store, [*start, *sorted(targets)]):
            if hash in have:
                done.skipped += 1
            else:
                _add_blob(store, tar, hash, done)
        _add(tar, END, canonical.encode({"members": done.members}))
    return done


def _add_blob(store: Store, tar: tarfile.TarFile, hash: str, done: Exported) -> None:
    info = store.blobs.info([hash])[hash]
    with store.blobs.open(hash) as source:
        kind = "blobs" if info.type is None else "nodes"
        tar.addfile(_member(f"{kind}/{hash}", info.size), source)
    done.members += 1
    done.bytes += info.size


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    return member


# -- import -----------------------------------------------------------------------------------


def load(store: Store, source: Path) -> Imported:
    """Bring in an exported file. Raises NotFound, Corrupt or Invalid (the file), Conflict (a
    head that is something else here); nothing has changed then."""
    _pass(Rehearsal(store.backend), source)
    return _pass(store.backend, source)


def _pass(backend: Backend, source: Path) -> Imported:
    done = Imported()
    try:
        with _opened(source) as raw, _tar(raw, "r|") as tar:
            members = iter(tar)
            manifest = _manifest(tar, next(members, None))
            with Batch(backend, Registry(backend)) as batch:
                _members(batch, tar, members, done)
                done.heads = _heads(backend, batch, manifest)
            done.new_bytes = batch.new_bytes
    except (tarfile.TarError, EOFError) as error:
        raise Corrupt(f"{source}: not a whole export: {error}") from None
    except Invalid as error:
        raise Corrupt(f"{source}: {error}") from None
    return done


def _members(
    batch: Batch, tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], done: Imported
) -> None:
    for member in members:
        content = _content(tar, member)
        if member.name == END:
            wanted = canonical.parse(content.read(1 << 16)).get("members")
            if wanted != done.members:
                raise Corrupt(f"has {done.members} members and should have {wanted}")
            return
        kind, _, hash = member.name.partition("/")
        if kind not in ("nodes", "blobs") or not is_hash(hash):
            raise Invalid(f"the member {member.name!r} has no place in an export")
        found = _put(batch, kind, member, content)
        if found.hash != hash:
            raise Corrupt(f"{member.name}: its bytes hash to {found.hash}")
        done.members += 1
    raise Corrupt("it has no end: it was cut short")


def _put(batch: Batch, kind: str, member: tarfile.TarInfo, content: IO[bytes]) -> Digest:
    if kind == "blobs":
        return batch.put_stream(content)  # type: ignore[arg-type]  # an IO[bytes] is all it needs
    if member.size > MAX_NODE:
        raise Invalid(f"{member.name}: no node has {member.size} bytes")
    return batch.put_encoded(content.read())


def _heads(backend: Backend, batch: Batch, manifest: dict[str, Any]) -> list[str]:
    """Move the heads of the manifest; what is here already and equal stays."""
    made = []
    for one in manifest["heads"]:
        name, new = one["name"], Head(one["hash"], one["record"])
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


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> dict[str, Any]:
    if member is None or member.name != MANIFEST:
        raise Corrupt("not an export of casfs: it does not begin with its manifest")
    value = canonical.parse(_content(tar, member).read())
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Invalid("not an export of a form that this casfs reads")
    for one in value["heads"]:
        if not catalogue.is_portable(one["name"]):
            raise Invalid(f"an export cannot bring in the head {one['name']!r}")
        if one["record"].get("status") == threads.RUNNING:
            raise Invalid(f"the thread {one['name']} is running; it cannot travel like that")
    return value


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise Invalid(f"the member {member.name!r} is no regular file")
    return content


# -- files ------------------------------------------------------------------------------------


def _tar(stream: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, format=tarfile.GNU_FORMAT)


@contextmanager
def _compressed(target: BinaryIO, zstd: bool) -> Iterator[Any]:
    if not zstd:
        yield target
        return
    import zstandard  # only for files that ask for it

    compressor = zstandard.ZstdCompressor(level=LEVEL)
    with compressor.stream_writer(target, closefd=False) as out:
        yield out


@contextmanager
def _opened(source: Path) -> Iterator[Any]:
    """The file as a stream, decompressed where it begins as zstd does."""
    try:
        with source.open("rb") as raw:
            if raw.read(4) != b"\x28\xb5\x2f\xfd":
                raw.seek(0)
                yield raw
                return
            import zstandard

            raw.seek(0)
            try:
                with zstandard.ZstdDecompressor().stream_reader(raw) as out:
                    yield out
            except zstandard.ZstdError as error:
                raise Corrupt(f"{source}: {error}") from None
    except FileNotFoundError:
        raise NotFound(f"no file {source}") from None
    except OSError as error:
        raise Failed(f"cannot read {source}: {error.strerror}") from None


# -- the first pass ---------------------------------------------------------------------------


class Rehearsal:
    """A backend that answers like the real one and stores nothing. It keeps what it is given
    of schemas, since later nodes are checked against them, and of the rest the digests."""

    def __init__(self, real: Backend) -> None:
        self._real = real
        self.blobs: Any = RehearsalBlobs(real)
        self.heads: Heads = real.heads

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> None:
        del require  # the real one answered for them a moment ago
        self.blobs.keep(staged)
        for swap in swaps:
            if swap.new is not None and not self.blobs.info([swap.new.hash]):
                raise Corrupt(f"the head {swap.name} leads to {swap.new.hash}, which is not in it")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class RehearsalBlobs:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self._info: dict[str, BlobInfo] = {}
        self._schemas: dict[str, bytes] = {}

    def stage(self, source: BinaryIO) -> Staged:
        return Staged(hash_stream(source), None)

    def discard(self, staged: Iterable[Staged]) -> None:
        pass

    def keep(self, staged: Iterable[Staged]) -> None:
        for one in staged:
            self._info[one.digest.hash] = BlobInfo(one.digest.size_bytes, one.type)
            if one.type is not None and one.data is not None and b'"$id":' in one.data:
                self._schemas[one.digest.hash] = one.data

    def get(self, hash: str) -> Blob:
        if hash in self._schemas:
            return Blob(self._schemas[hash], self._info[hash].type)
        return self._real.blobs.get(hash)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        ours = {hash: self._info[hash] for hash in hashes if hash in self._info}
        return {**self._real.blobs.info(hashes), **ours}
