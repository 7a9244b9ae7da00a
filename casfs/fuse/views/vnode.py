"""What a vnode is: a file, link or directory of the mount, free of any FUSE library.

A vnode is made when somebody looks at it, and made again when it is wanted later
(`casfs.fuse.inodes`); it holds what it needs to answer, not its content and not its children.
Its `key` says which vnode it is: two objects with one key are the same file. A key is a hash
over the path from the root (`below`); only files and links of trees have another rule
(`casfs.fuse.views.trees`).

The mtime of what is live differs whenever its content does (`casfs.fuse.views.change_times`).

How long the kernel may keep what it was told follows from three answers:

    Vnode.live         its attributes or its content can change
    Directory.fixed    no name will ever come or go there
    Directory.binds    that name will never come to mean something else there
    Directory.watched  when a name vanishes there, the mount is told (`casfs.fuse.views.gone`)

That a name vanished may go unnoticed for a moment; whatever is new or moved is seen at
once, since it was never kept. What fails while a directory is listed is one `Broken` file
in it, never a broken listing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple, NoReturn

from casfs.digest import Hasher, is_hash
from casfs.errors import CasfsError

MILLISECOND = 1_000_000  # nanoseconds
LONG_AGO = 946_684_800_000_000_000  # 2000-01-01 UTC in nanoseconds
KEY_BYTES = 16
READ_FILE = stat.S_IFREG | 0o444
READ_DIRECTORY = stat.S_IFDIR | 0o555
LINK = stat.S_IFLNK | 0o777


class Attr(NamedTuple):
    """What stat shows, except for the number (the table's) and the owner (the mount's).

    A directory's link count is 1: its subdirectories are not counted, and a count below
    2 tells find(1) not to draw conclusions from it.
    """

    mode: int
    size: int
    mtime_ns: int
    nlink: int = 1


def identity(data: bytes) -> bytes:
    """The key that stands for `data`."""
    return Hasher(data).digest(length=KEY_BYTES)


def below(key: bytes, name: bytes) -> bytes:
    """The key of the entry `name` in the directory with `key`."""
    return Hasher(key + name).digest(length=KEY_BYTES)


class Vnode:
    """`ino` is the number, and belongs to `casfs.fuse.inodes`."""

    __slots__ = ("ino", "key")
    live = False

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.ino = 0

    def attr(self) -> Attr:
        raise NotImplementedError

    def refresh(self) -> None:
        """Bring the attributes of a live vnode up to date."""

    @property
    def digest(self) -> str | None:
        """The hash of the blob or node that this vnode shows, if it is one."""
        return None


# -- files ------------------------------------------------------------------------------


class Extent(NamedTuple):
    """`size` bytes at `offset` of `owner`'s descriptor, which is open while `owner` lives."""

    fd: int
    offset: int
    size: int
    owner: object


class File(Vnode):
    """`grows`: it is live, and what was read once stays what it is: whoever has it open reads
    on behind that."""

    __slots__ = ()
    grows = False

    @property
    def ready(self) -> bool:
        """False while the first `read` would take long; then `prepare`, in any thread."""
        return True

    def prepare(self) -> None:
        """Do what makes `read` quick."""

    def read(self, offset: int, size: int) -> bytes:
        raise NotImplementedError

    def extent(self, offset: int, size: int) -> Extent | None:
        """The same bytes where they stand in an open file, if they do; only when `ready`."""
        return None

    def seek(self, offset: int, whence: int, size: int) -> int:
        """Where the next data (os.SEEK_DATA) or hole (os.SEEK_HOLE) is, from an offset inside
        the file's `size` on. Raises Denied (ENXIO: no data there)."""
        return offset if whence == os.SEEK_DATA else size


class Text(File):
    """Content that is held: only for what is short, or one of a kind."""

    __slots__ = ("_data", "_mtime_ns")

    def __init__(self, key: bytes, data: bytes, mtime_ns: int = LONG_AGO) -> None:
        super().__init__(key)
        self._data = data
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(READ_FILE, len(self._data), self._mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class Computed(File):
    """Content that is made again for every read; always the same, so the size is kept."""

    __slots__ = ("_make", "_mtime_ns", "_size")

    def __init__(self, key: bytes, make: Callable[[], bytes], mtime_ns: int = LONG_AGO) -> None:
        super().__init__(key)
        self._make = make
        self._size = len(make())
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(READ_FILE, self._size, self._mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._make()[offset : offset + size]


class Live(File):
    """Content that changes: `make` gives what it is now, and when it changed."""

    __slots__ = ("_make",)
    live = True

    def __init__(self, key: bytes, make: Callable[[], tuple[bytes, int]]) -> None:
        super().__init__(key)
        self._make = make

    def now(self) -> tuple[bytes, int]:
        """All of it, and when it changed (ns)."""
        return self._make()

    def attr(self) -> Attr:
        data, mtime_ns = self._make()
        return Attr(READ_FILE, len(data), mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._make()[0][offset : offset + size]


class Broken(File):
    """Stands in a listing for what could not be made; whoever reads it gets the reason."""

    __slots__ = ("_error",)
    live = True

    def __init__(self, key: bytes, error: CasfsError) -> None:
        super().__init__(key)
        self._error = error

    def attr(self) -> Attr:
        return Attr(READ_FILE, 0, LONG_AGO)

    def read(self, offset: int, size: int) -> NoReturn:
        raise type(self._error)(str(self._error))


class Link(Vnode):
    __slots__ = ("_mtime_ns", "target")

    def __init__(self, key: bytes, target: bytes, mtime_ns: int = LONG_AGO) -> None:
        super().__init__(key)
        self.target = target
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(LINK, len(self.target), self._mtime_ns)


# -- directories ------------------------------------------------------------------------

Maker = Callable[[bytes], Vnode]  # from the vnode's key


class Directory(Vnode):
    __slots__ = ()
    fixed = True
    watched = False

    def binds(self, name: bytes) -> bool:
        return self.fixed

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, LONG_AGO)

    def lookup(self, name: bytes) -> Vnode | None:
        """None when there is no such name. An error means: there is, and it is broken."""
        raise NotImplementedError

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        """All names, in an order that is the same at every call."""
        raise NotImplementedError

    def behind(self, count: int) -> Iterable[tuple[bytes, Vnode]]:
        """The same without the first `count`."""
        return islice(self.entries(), count, None)


class Composed(Directory):
    """A directory made on demand from a maker for each of its names."""

    __slots__ = ()

    def makers(self) -> Mapping[bytes, Maker]:
        raise NotImplementedError

    def lookup(self, name: bytes) -> Vnode | None:
        maker = self.makers().get(name)
        return None if maker is None else maker(below(self.key, name))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for name, maker in self.makers().items():
            key = below(self.key, name)
            try:
                vnode = maker(key)
            except CasfsError as error:
                vnode = Broken(key, error)
            yield name, vnode


class Static(Composed):
    """A few names that are always there."""

    __slots__ = ("_makers",)

    def __init__(self, key: bytes, makers: Mapping[bytes, Maker]) -> None:
        super().__init__(key)
        self._makers = makers

    def makers(self) -> Mapping[bytes, Maker]:
        return self._makers


class Changing(Composed):
    """Names that come and go; `changed` gives the mtime (ns) of the directory as it is."""

    __slots__ = ("_changed", "_find")
    live = True
    fixed = False

    def __init__(
        self, key: bytes, find: Callable[[], Mapping[bytes, Maker]], changed: Callable[[], int]
    ) -> None:
        super().__init__(key)
        self._find = find
        self._changed = changed

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._changed())

    def makers(self) -> Mapping[bytes, Maker]:
        return self._find()


class ByDigest(Directory):
    """Everything that `find` knows by its hash. Found by name only, the listing is empty:
    a store may hold millions."""

    __slots__ = ("_find",)
    fixed = False

    def __init__(self, key: bytes, find: Callable[[bytes, str], Vnode | None]) -> None:
        super().__init__(key)
        self._find = find

    def binds(self, name: bytes) -> bool:
        return True

    def lookup(self, name: bytes) -> Vnode | None:
        hash = parse_hash(name)
        return None if hash is None else self._find(below(self.key, name), hash)

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        return ()


def parse_hash(name: bytes) -> str | None:
    """The hash that a name is, or None."""
    text = name.decode("ascii", "replace")
    return text if is_hash(text) else None
