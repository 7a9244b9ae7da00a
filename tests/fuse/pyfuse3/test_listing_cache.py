"""What was told of a directory is told again, as long as it cannot have changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from casfs.fuse.session import Session
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.vnode import Live, Maker, Static, Text, below, identity
from casfs.system.log import silent
from tests.support.programs import require_pyfuse3

require_pyfuse3()

from casfs.fuse.pyfuse3.listing_cache import Listings  # noqa: E402
from casfs.fuse.pyfuse3.operations import Operations  # noqa: E402

NAMES = [b"a", b"b", b"c", b"d"]
DOTS = [b".", b".."]


def files(*names: bytes) -> dict[bytes, Maker]:
    return {name: partial(Text, data=name) for name in names}


def session(makers: Mapping[bytes, Maker]) -> Session:
    return Session(
        Static(identity(b"/"), makers), Stats(), silent, store=None, xattr=False, handles=True
    )


@pytest.fixture
def folders() -> Session:
    """Two directories of files, beside each other."""
    inner = {name: partial(Static, makers=files(*NAMES)) for name in (b"one", b"two")}
    return session(inner)


def tell(asked: Session, kept: Listings[str], ino: int, count: int = 100, offset: int = 0) -> int:
    """List a directory as a transport does, at most so many names; where to go on."""
    listing = asked.listing(ino, offset)
    for item in listing:
        if count == 0:
            listing.back(item)
            asked.leave(listing)
            return listing.offset
        count -= 1
        entry = asked.listed(listing, item)
        asked.hold(listing, item)
        kept.add(listing, item, entry, item.name.decode())
    kept.end(listing)
    return listing.offset


def names(kept: Listings[str], ino: int) -> list[bytes]:
    return [told.name for told in kept.begun(ino)]


def test_a_listing_is_kept_as_far_as_it_was_told(folders: Session) -> None:
    kept: Listings[str] = Listings(100)
    ino = folders.lookup(1, b"one").ino
    assert names(kept, ino) == []
    offset = tell(folders, kept, ino, 3)
    assert (names(kept, ino), kept.complete(ino)) == ([*DOTS, b"a"], False)
    tell(folders, kept, ino, 2)
    assert names(kept, ino) == [*DOTS, b"a"], "no name twice"
    tell(folders, kept, ino, offset=5)
    assert names(kept, ino) == [*DOTS, b"a"], "nothing is left out"
    tell(folders, kept, ino, offset=offset)
    assert (names(kept, ino), kept.complete(ino)) == ([*DOTS, *NAMES], True)
    for told in kept.begun(ino):
        held = told.name not in DOTS
        assert told.entry == told.name.decode()
        assert (told.check is not None) is held
        assert not held or folders.inodes.table.check(told.ino) == told.check
    kept.drop(ino)
    assert (names(kept, ino), kept.complete(ino)) == ([], False)


def test_what_can_change_is_never_kept() -> None:
    asked = session({**files(b"a"), b"live": partial(Live, make=lambda: (b"", 0)), **files(b"z")})
    kept: Listings[str] = Listings(100)
    tell(asked, kept, 1)
    assert (names(kept, 1), kept.complete(1)) == ([*DOTS, b"a"], False)


def test_a_number_that_was_taken_is_never_kept() -> None:
    key = below(identity(b"/"), b"b")
    taken = partial(lambda _, data: Text(key[:8] + bytes(8), data), data=b"")
    asked = session({b"a": taken, **files(b"b")})
    kept: Listings[str] = Listings(100)
    tell(asked, kept, 1)
    assert (names(kept, 1), kept.complete(1)) == ([*DOTS, b"a"], False)


def test_the_oldest_make_room(folders: Session) -> None:
    kept: Listings[str] = Listings(len(DOTS + NAMES) + 1)
    one, two = (folders.lookup(1, name).ino for name in (b"one", b"two"))
    tell(folders, kept, one)
    tell(folders, kept, two)
    assert (names(kept, one), kept.complete(one)) == ([], False)
    assert kept.complete(two)
    small: Listings[str] = Listings(3)
    tell(folders, small, one)
    assert (names(small, one), small.complete(one)) == ([], False)


async def test_what_the_kernel_forgets_is_not_kept(folders: Session) -> None:
    served = Operations(folders)
    ino = folders.lookup(1, b"one").ino
    listing = folders.listing(ino, 0)
    for item in listing:
        entry = folders.listed(listing, item)
        folders.hold(listing, item)
        served._told.add(listing, item, entry, served._encoded(entry))
    served._told.end(listing)
    assert served._tell_again(ino, len(DOTS + NAMES), None) is None
    await served.forget([(ino, 1)])
    assert not served._told.complete(ino)
    assert served._tell_again(ino, 4, None) == 4


async def test_a_number_that_is_anothers_by_now_is_not_told(folders: Session) -> None:
    served = Operations(folders)
    ino = folders.lookup(1, b"one").ino
    listing = folders.listing(ino, 0)
    for item in listing:
        entry = folders.listed(listing, item)
        served._told.add(listing, item, entry, served._encoded(entry))
    served._told.end(listing)
    last = served._told.begun(ino)[-1]
    assert last.check is not None
    folders.inodes.table.hold(last.ino, last.check + 1, 1, b"another")
    assert served._tell_again(ino, len(DOTS + NAMES) - 1, None) == len(DOTS + NAMES) - 1
    assert not served._told.complete(ino)
