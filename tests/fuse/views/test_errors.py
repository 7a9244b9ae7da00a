"""Each of our errors has its errno; an unexpected exception is EIO."""

from __future__ import annotations

import errno

from casfs.errors import CasfsError, CorruptBlob, NotFound
from casfs.fuse.views.errors import ERRNO, errno_of


def kinds(base: type[CasfsError]) -> set[type[CasfsError]]:
    return {base}.union(*(kinds(kind) for kind in base.__subclasses__()))


def test_each_error_has_its_row() -> None:
    ours = {kind for kind in kinds(CasfsError) if kind.__module__ == "casfs.errors"}
    assert set(ERRNO) == ours


def test_errno_of() -> None:
    assert errno_of(NotFound("x")) == errno.ENOENT
    assert errno_of(CorruptBlob("x")) == errno.EIO
    assert errno_of(ZeroDivisionError()) == errno.EIO
