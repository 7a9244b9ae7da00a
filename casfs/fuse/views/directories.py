"""Vnodes of directories: composed from a factory for each name, or found by hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from casfs.digest import is_hash
from casfs.errors import CasfsError
from casfs.fuse.views.files import BrokenFile
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import READ_DIRECTORY, Attr, Directory, Vnode, child_key

VnodeFactory = Callable[[bytes], Vnode]  # from the vnode's key


class ComposedDirectory(Directory):
    """Makes each entry on demand, by the factory for its name."""

    __slots__ = ()

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        raise NotImplementedError

    def lookup(self, name: bytes) -> Vnode | None:
        factory = self.factories().get(name)
        return None if factory is None else factory(child_key(self.key, name))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for name, factory in self.factories().items():
            key = child_key(self.key, name)
            try:
                vnode = factory(key)
            except CasfsError as error:
                vnode = BrokenFile(key, error)
            yield name, vnode


class StaticDirectory(ComposedDirectory):
    """A few names that never change."""

    __slots__ = ("_factories",)

    def __init__(self, key: bytes, factories: Mapping[bytes, VnodeFactory]) -> None:
        super().__init__(key)
        self._factories = factories

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        return self._factories


class LiveDirectory(ComposedDirectory):
    """Names are added and removed; `changed` returns the directory's current mtime (ns)."""

    __slots__ = ("_changed", "_find")
    live = True
    fixed = False

    def __init__(
        self,
        key: bytes,
        find: Callable[[], Mapping[bytes, VnodeFactory]],
        changed: Callable[[], int],
    ) -> None:
        super().__init__(key)
        self._find = find
        self._changed = changed

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._changed())

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        return self._find()


class StoreDirectory(Directory):
    """Names are added and removed as heads of the store are; each is bound for good, unless
    `binds` says otherwise."""

    __slots__ = ("_reader",)
    live = True
    fixed = False

    def __init__(self, key: bytes, reader: StoreReader) -> None:
        super().__init__(key)
        self._reader = reader

    def binds(self, name: bytes) -> bool:
        return True


class HashDirectory(Directory):
    """Entries that `find` returns for a hash. They are found by name only, the listing is
    empty: a store may hold millions. `prefix`: what precedes the names in the hashes."""

    __slots__ = ("_find", "_prefix")
    fixed = False

    def __init__(
        self, key: bytes, find: Callable[[bytes, str], Vnode | None], prefix: bytes = b""
    ) -> None:
        super().__init__(key)
        self._find = find
        self._prefix = prefix

    def binds(self, name: bytes) -> bool:
        return True

    def lookup(self, name: bytes) -> Vnode | None:
        hash = parse_hash(self._prefix + name)
        return None if hash is None else self._find(child_key(self.key, name), hash)

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        return ()


def parse_hash(name: bytes) -> str | None:
    """Returns the name as a hash; None if it is not a valid one."""
    text = name.decode("ascii", "replace")
    return text if is_hash(text) else None
