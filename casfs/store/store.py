"""A store: one root, opened by any number of processes at once.

    format        "casfs 5", written last by `init`; a store of "casfs 4" becomes one when it is
                  opened, any other version is refused
    store.db, objects/, packs/, tmp/       the disk backend (`casfs.backend.disk`)
    workspaces/   private working directories of threads
    live/         output and tool calls of programs that run now (`casfs.threads.live_output`)
    log/          JSON lines of background processes, never content
    config.toml   settings of this store

The root is 0700: read permission on it gives all content. Reading is here; writing is
`casfs.store.write_batch`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, cast, overload

from casfs import config
from casfs.backend.derived import find_prefix
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import META, Backend, Blobs
from casfs.backend.purged_contents import PurgedContents
from casfs.digest import BlobHash, Digest, NodeDigest, NodeHash, is_hash
from casfs.errors import CasfsError, Conflict, Failed, Invalid, NotFound, Refused
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import node
from casfs.store.nodes.node import Node
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.registry import Registry, builtin
from casfs.system.files import SHARED_MEMORY, is_writable, os_errors, replacing, syncfs
from casfs.system.lru_cache import LruCache

if TYPE_CHECKING:
    from casfs import payloads
    from casfs.store.write_batch import Batch

FORMAT = "casfs 5"
SHARED_FORMAT = "casfs 5 shared"  # a machine's directory of a shared store
# Only tables of `store.db` were added since.
BEFORE = {"casfs 4": FORMAT, "casfs 4 shared": SHARED_FORMAT}
FORMAT_FILE = "format"
MIN_PREFIX_CHARS = 8
DECODED_CACHE_ENTRIES = 200_000  # directory entries


class Store:
    blobs: Blobs
    _writes_local = False
    _remove: Callable[[], object] = staticmethod(lambda: None)  # of a store in memory: its files

    def __init__(self, backend: Backend, root: Path) -> None:
        self.backend = backend
        self.blobs = backend.blobs
        self.heads = backend.heads
        self.registry = Registry(backend)
        self.root = root
        # The store that hides nothing: itself, or of a view by `shown` the store that it was made
        # from.
        self.whole = self
        self.cache = LruCache(DECODED_CACHE_ENTRIES)
        self.purged = PurgedContents(backend)
        # Directories are cached as readers see them, without what is purged: a tombstone must drop
        # them, also that of another process.
        self.purged.add_cache(self.cache)

    @classmethod
    def init(cls, root: Path) -> Self:
        """Makes a store at `root`, or updates an old one's built-in schemas. Raises Failed,
        Refused."""
        _refuse_as_root(root)
        with _making(root):
            _make_root(root)
            DiskBackend.create(root)
            for name in ("workspaces", "log"):
                (root / name).mkdir(exist_ok=True)
            store = cls(DiskBackend(root), root)
            try:
                # Before the format: what can be opened has its types, wherever `init` was killed.
                store.register_builtin()
                _write_format(root)
            except BaseException:
                store.close()
                raise
        return store

    @classmethod
    def init_shared(
        cls, root: Path, url: str, objects: str = "", endpoint: str | None = None,
        region: str | None = None,
    ) -> Self:  # fmt: skip
        """Makes or joins the shared store of the database `url`, with this machine's directory at
        `root`. Raises as `check_shared`."""
        from casfs.system.config_edit import with_table

        wanted = config.Shared(url, objects, endpoint=endpoint, region=region)
        # Before anything is made: `create` does not ask whether `root` is another database's.
        cls.check_shared(root, wanted)
        with _making(root):
            _make_root(root, SHARED_FORMAT)
            shared = _postgres("create").create(root, wanted)
            for name in ("workspaces", "log"):
                (root / name).mkdir(exist_ok=True)
            path = root / config.FILE
            text = path.read_text() if path.exists() else ""
            # Those of the database, not `wanted`: who joins need not know where the objects are.
            settings = shared._asdict()
            values = {key: value for key, value in settings.items() if value is not None}
            with replacing(path, durable=True) as file:
                new_text = with_table(text, config.SHARED, values)
                file.write(new_text.encode())
            _write_format(root, SHARED_FORMAT)
        # After a crash here the store lacks the types; another `init` adds them.
        store = cls.open(root)
        try:
            store.register_builtin()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def check_shared(cls, root: Path, wanted: config.Shared) -> config.Shared | None:
        """Returns the settings of the shared store that `init_shared` would join, None where it
        would make one. Changes nothing. Raises Refused where `root` is a store of its own or of
        another database, and as `casfs.backend.postgres.create`."""
        with _os_errors(root):
            _checked_format(root, SHARED_FORMAT)
        old = config.shared(root)
        if old is not None and old.url != wanted.url:
            raise Refused(
                f"{root} belongs to the shared store at {old.url}; give another --store, or where"
                f" that database has moved, edit url in {root / config.FILE}"
            )
        settings: config.Shared | None = _postgres("create").find(wanted)
        return settings

    @classmethod
    def check_init(cls, root: Path) -> str | None:
        """Returns the format of the store that `init` would find, None where it would make one.
        Changes nothing. Raises Failed, Refused, as `init` does."""
        with _os_errors(root):
            return _checked_format(root)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Opens a store. Raises NotFound, or Refused for another version's, and as root for one of
        another user."""
        _refuse_as_root(root)
        try:
            store_format = (root / FORMAT_FILE).read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"no store at {root}; make one with `casfs init`") from None
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"cannot read {root / FORMAT_FILE}: {error}") from None
        store_format = _upgraded(root, store_format)
        if store_format == SHARED_FORMAT:
            shared_backend = _postgres("backend").PostgresBackend.open(root)
            return cls(shared_backend, root)
        if store_format != FORMAT:
            raise _unreadable(root, store_format)
        return cls(DiskBackend(root), root)

    @classmethod
    def memory(cls) -> Self:
        """Makes a store in a private directory of the kernel's memory, or of the temporary files
        where there is none. It is removed when the store is closed or collected, or Python ends."""
        import shutil
        import tempfile
        import weakref

        folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        root = Path(tempfile.mkdtemp(prefix="casfs-", dir=folder))
        try:
            store = cls.init(root)
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        # Bound to the backend, since a view may outlive this object and has the backend, too.
        store._remove = weakref.finalize(store.backend, shutil.rmtree, root, ignore_errors=True)
        return store

    def register_builtin(self) -> None:
        """Idempotent: two processes may make a store at once."""
        retry_on_conflict(self._register)

    def _register(self) -> None:
        with self.batch() as batch:
            for document in builtin().values():
                batch.put_schema(document, builtin=True)

    def check_writable(self) -> None:
        """Raises Refused where its directory cannot be written, as in an agent's sandbox."""
        if not is_writable(self.root):
            from casfs.system import sandbox

            raise Refused(sandbox.cannot_write(self.root))

    def close(self) -> None:
        self.backend.close()
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shown(self, *, with_local: bool = False) -> Store:
        """Returns the store as others may see it, to be read only: without what local trees alone
        reach, unless `with_local`. It is closed with this one."""
        if with_local:
            return self
        from casfs.backend.shown_blobs import ShownBlobs

        view = Store(self.backend, self.root)
        view.blobs = ShownBlobs(self.blobs)
        view.registry = self.registry
        view.whole = self
        # Its cache is its own: a lookup in this one's would answer for directories that are hidden.
        return view

    def local_writes(self) -> Store:
        """Returns the store with batches whose new blobs get the mark of local ones, and which take
        it from none: for trees that are made of private files."""
        view = Store(self.backend, self.root)
        view.blobs = self.blobs
        view.registry = self.registry
        # Unlike those of `shown`: this view hides nothing. The cache goes with what clears it.
        view.cache = self.cache
        view.purged = self.purged
        view._writes_local = True
        return view

    # -- write --------------------------------------------------------------------------

    def batch(self) -> Batch:
        from casfs.store.write_batch import Batch

        batch = Batch(self.backend, self.registry)
        if self._writes_local:
            batch.begin_local()
        return batch

    def put(self, data: bytes) -> Digest:
        return self.put_stream(io.BytesIO(data))

    def put_stream(self, source: BinaryIO) -> Digest:
        with self.batch() as batch:
            return batch.put_stream(source)

    def put_node(self, type: str, payload: object) -> NodeDigest:
        """Stores a node. Raises Invalid for a payload that does not fit, or dangling refs."""
        with self.batch() as batch:
            return batch.put_node(type, payload)

    # -- read ---------------------------------------------------------------------------

    def get(self, hash: str) -> bytes:
        """Returns the verified bytes of a blob. Raises NotFound, CorruptBlob."""
        return self.blobs.get(hash).data

    @overload
    def node(self, hash: str, type: Literal["action-result"]) -> Node[payloads.ActionResult]: ...
    @overload
    def node(self, hash: str, type: Literal["action"]) -> Node[payloads.Action]: ...
    @overload
    def node(self, hash: str, type: Literal["agent"]) -> Node[payloads.Agent]: ...
    @overload
    def node(self, hash: str, type: Literal["call-detail"]) -> Node[payloads.CallDetail]: ...
    @overload
    def node(self, hash: str, type: Literal["checkpoint"]) -> Node[payloads.Checkpoint]: ...
    @overload
    def node(self, hash: str, type: Literal["command-detail"]) -> Node[payloads.CommandDetail]: ...
    @overload
    def node(self, hash: str, type: Literal["content"]) -> Node[payloads.Content]: ...
    @overload
    def node(self, hash: str, type: Literal["cursor-detail"]) -> Node[payloads.CursorDetail]: ...
    @overload
    def node(self, hash: str, type: Literal["cursor-turn"]) -> Node[payloads.CursorTurn]: ...
    @overload
    def node(self, hash: str, type: Literal["directory"]) -> Node[payloads.Directory]: ...
    @overload
    def node(self, hash: str, type: Literal["hermes-detail"]) -> Node[payloads.HermesDetail]: ...
    @overload
    def node(self, hash: str, type: Literal["hermes-turn"]) -> Node[payloads.HermesTurn]: ...
    @overload
    def node(self, hash: str, type: Literal["human-detail"]) -> Node[payloads.HumanDetail]: ...
    @overload
    def node(self, hash: str, type: Literal["react-session"]) -> Node[payloads.ReactSession]: ...
    @overload
    def node(self, hash: str, type: Literal["react-tool-call"]) -> Node[payloads.ReactToolCall]: ...
    @overload
    def node(self, hash: str, type: Literal["react-turn"]) -> Node[payloads.ReactTurn]: ...
    @overload
    def node(self, hash: str, type: Literal["review"]) -> Node[payloads.Review]: ...
    @overload
    def node(self, hash: str, type: Literal["role"]) -> Node[payloads.Role]: ...
    @overload
    def node(self, hash: str, type: Literal["thread-agents"]) -> Node[payloads.ThreadAgents]: ...
    @overload
    def node(self, hash: str, type: Literal["thread-end"]) -> Node[payloads.ThreadEnd]: ...
    @overload
    def node(self, hash: str, type: Literal["thread-start"]) -> Node[payloads.ThreadStart]: ...
    @overload
    def node(self, hash: str, type: Literal["thread-step"]) -> Node[payloads.ThreadStep]: ...
    @overload
    def node(self, hash: str, type: Literal["times"]) -> Node[payloads.Times]: ...
    @overload
    def node(self, hash: str, type: Literal["workflow"]) -> Node[payloads.Workflow]: ...
    @overload
    def node(self, hash: str, type: str | None = None) -> Node[Any]: ...
    def node(self, hash: str, type: str | None = None) -> Node[Any]:
        """Returns a node. Raises NotFound (also for plain bytes, or another `type`), Corrupt."""
        blob = self.blobs.get(hash)
        if blob.type is None:
            raise NotFound(f"{hash} is a blob, not a node")
        type_hash, payload = node.decode(hash, blob.data)
        name = self.registry.name(type_hash)
        if type is not None and name != type:
            raise NotFound(f"{hash} is a {name}, not a {type}")
        return Node(cast(NodeHash, hash), name, type_hash=type_hash, payload=payload)

    def readable_nodes(self, hashes: Sequence[str]) -> Iterator[Node[Any]]:
        """Yields the nodes of these hashes, read in one go; omits one that is damaged, or that gc
        has deleted meanwhile."""
        contents: list[bytes | None]
        try:
            contents = list(self.blobs.get_many(hashes))
        except CasfsError:
            # It does not say which one, so each is read by itself, where only that one is left out.
            contents = [None] * len(hashes)
        for hash, data in zip(hashes, contents, strict=True):
            try:
                # `get_many` gives None for what is large, too.
                content = data or self.get(hash)
                type_hash, payload = node.decode(hash, content)
                name = self.registry.name(type_hash)
            except CasfsError:
                continue
            yield Node(cast(NodeHash, hash), name, type_hash=type_hash, payload=payload)

    def refs(self, node: Node[Any]) -> list[Ref]:
        """Returns the refs of a node: those of its payload, then its type."""
        # The meta-schema alone: its type is not a hash, and it refers to nothing.
        if node.type_hash == META:
            return []
        _, schema = self.registry.compiled(node.type_hash)
        return [*schema.refs(node.payload), Ref(node.type_hash, META)]

    def expand(self, text: str) -> BlobHash:
        """Returns the stored hash that `text` is, or is a unique prefix of. Raises NotFound,
        Invalid, Conflict."""
        if is_hash(text):
            if not self.blobs.info([text]):
                raise NotFound(f"no blob {text} in this store")
            return text
        # Filled up to a hash, so that one rule says which characters are allowed.
        padded = text.ljust(64, "0")
        if len(text) < MIN_PREFIX_CHARS or not is_hash(padded):
            raise Invalid(
                f"{text!r} is not a valid hash (64 hex characters, or a prefix of 8 or more)"
            )
        hashes = find_prefix(self.blobs, text)
        if not hashes:
            raise NotFound(f"no blob {text}… in this store")
        if len(hashes) > 1:
            raise Conflict(f"{text} is ambiguous: {hashes[0][:16]}…, {hashes[1][:16]}…; give more")
        return BlobHash(hashes[0])


@contextmanager
def _making(root: Path) -> Iterator[None]:
    """As `_os_errors`; removes a directory in which nothing was made."""
    is_new = not os.path.lexists(root)
    try:
        with _os_errors(root):
            yield
    except BaseException:
        if is_new:
            # Refuses a directory with anything in it: another process may be making a store there.
            with suppress(OSError):
                root.rmdir()
        raise


def _os_errors(root: Path) -> AbstractContextManager[None]:
    """Turns an OSError into Failed. Changes nothing, so it is for the checks, too."""
    return os_errors(f"cannot make a store at {root}")


def _postgres(module: str) -> Any:
    try:
        return import_module(f"casfs.backend.postgres.{module}")
    except ImportError as error:
        from casfs.system.extras import install_line

        raise Failed(
            f"a shared store needs extras: {install_line('postgres', 's3')} ({error})"
        ) from None


def _write_format(root: Path, format: str = FORMAT) -> None:
    """Marks the directory as a store, durably, once everything that it is made of is durable."""
    with replacing(root / FORMAT_FILE, durable=True) as file:
        file.write(f"{format}\n".encode())
        # Inside the block: the file gets its name after this. One sync serves all files and
        # directories that were made so far.
        syncfs(root)


def _make_root(root: Path, format: str = FORMAT) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Before the mode: a directory that is refused stays as it is.
    _checked_format(root, format)
    # `mkdir` left an existing directory's mode.
    root.chmod(0o700)


def _checked_format(root: Path, format: str = FORMAT) -> str | None:
    """Returns the format of the store at `root`, None where there is none. Raises Refused where
    `init` would not make or update one."""
    # `init` makes store.db first and the format last: with the former alone, it was interrupted,
    # and may go on.
    own_names = {FORMAT_FILE, "store.db"}
    names: set[str] = set()
    # A dangling symlink must fail here, too, so that `check_init` does not promise a store.
    if os.path.lexists(root):
        names = {path.name for path in root.iterdir()}
    if names and not names & own_names:
        raise Refused(f"{root} is not empty and not a store; give another directory")
    if FORMAT_FILE not in names:
        return None
    # Another program's file of this name may hold any bytes, and must be refused like a version.
    content = (root / FORMAT_FILE).read_bytes()
    store_format = content.strip().decode("ascii", "replace")
    store_format = BEFORE.get(store_format, store_format)
    if store_format not in (FORMAT, SHARED_FORMAT):
        raise _unreadable(root, store_format)
    if store_format != format:
        raise Refused(f"{root} has format {store_format!r}, not {format!r}; give another --store")
    return store_format


def _refuse_as_root(root: Path) -> None:
    """Raises Refused for root in a store of another user, who could neither change nor delete what
    root writes there: searches and some writes would fail from then on."""
    try:
        owner = root.stat().st_uid
    except OSError:  # said by who opens it
        return
    if os.geteuid() == 0 and owner != 0:
        import pwd

        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:  # it has a number and no name, as in a container
            user = f"#{owner}"
        raise Refused(f"{root} belongs to {user}; use it as that user: sudo -u {user} casfs …")


def _upgraded(root: Path, store_format: str) -> str:
    """Returns the format of a store, after one of the version before was made one of this."""
    new = BEFORE.get(store_format)
    if new is None:
        return store_format
    with os_errors(f"cannot bring the store at {root} to format {new!r}"):
        DiskBackend.create(root)
        _write_format(root, new)
    return new


def _unreadable(root: Path, format: str) -> Refused:
    return Refused(
        f"the store at {root} has format {format!r}, which this casfs does not read; export it"
        " with the casfs that made it"
    )
