"""Trees by value for the EROFS writer, and what the kernel and erofs-utils should show of them."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from io import BytesIO
from pathlib import Path

from casfs.native.erofs import devices
from casfs.native.erofs.model import BLOCK, Attr, Device, Directory, Extent, File, Node, Symlink
from casfs.native.erofs.writer import write
from tests.support.native import Seen, fsck, look, mounted, overlaid
from tests.support.programs import present

EPOCH = 946_684_800
PLAIN = Attr(0o644, 0, 0, EPOCH)
FOLDER = Attr(0o755, 0, 0, EPOCH)
LINK = Attr(0o777, 0, 0, EPOCH)
ODD = Attr(0o4640, 70_000, 5, -7, 999_999_999)  # no compact inode can have it
METACOPY = (b"trusted.overlay.metacopy", b"")
DUMPED = 10  # paths of a tree that dump.erofs is asked for
DEVICE_BLOCKS = 24
DEVICES = {  # of any bytes, but for the zeros behind a file in `packed`
    Device(name, DEVICE_BLOCKS): random.Random(name).randbytes(DEVICE_BLOCKS * BLOCK)
    for name in ("one", "2" * 64, "another pack")
}
OBJECTS = {b"/ab/%d" % size: bytes(range(256)) * (size // 256 + 1) for size in (0, 1500, 70_000)}


def made(root: Directory, **options: object) -> bytes:
    out = BytesIO()
    options = {"epoch": EPOCH, "shared": [METACOPY]} | options
    write(out, root, **options)  # type: ignore[arg-type]  # as each test says
    return out.getvalue()


def folder(entries: dict[bytes, Node], attr: Attr = FOLDER) -> Directory:
    return Directory(attr, list(entries.items()))


def file(data: bytes, attr: Attr = PLAIN) -> File:
    return File(attr, len(data), data)


def redirected(target: bytes, attr: Attr = PLAIN) -> File:
    redirect = (b"trusted.overlay.redirect", target)
    return File(attr, len(OBJECTS[target]), None, (METACOPY, redirect))


def packed(device: Device, block: int, size: int, attr: Attr = PLAIN) -> File:
    return File(attr, size, Extent(device, block))


def expected(root: Directory, *, whole: bool) -> dict[bytes, Seen]:
    """What is to be seen of a tree: with an overlay (`whole`), or in the image alone."""
    found = {}
    stack: list[tuple[bytes, Node]] = [(b".", root)]
    while stack:
        path, node = stack.pop()
        xattrs = {
            os.fsdecode(name): value
            for name, value in node.xattrs
            if not (whole and name.startswith(b"trusted.overlay."))
        }
        nlink = 1
        content: bytes | str | Extent | frozenset[bytes] | int | None
        if isinstance(node, Directory):
            kind, entries = stat.S_IFDIR, list(node.entries)
            content = frozenset(name for name, _ in entries)
            nlink = 2 + sum(isinstance(below, Directory) for _, below in entries)
            base = b"" if path == b"." else path + b"/"
            stack += [(base + name, below) for name, below in entries]
        elif isinstance(node, Symlink):
            kind, content = stat.S_IFLNK, node.target
        else:
            kind, content = stat.S_IFREG, node.content
            redirect = dict(node.xattrs).get(b"trusted.overlay.redirect")
            if content is None and redirect is not None:
                content = OBJECTS[redirect] if whole else node.size
            elif content is None:
                content = bytes(node.size)
            elif isinstance(content, Extent):
                start = content.block * BLOCK
                content = DEVICES[content.device][start : start + node.size]
        mode, uid, gid, seconds, nanos = node.attr
        mtime_ns = seconds * 1_000_000_000 + nanos
        assert content is not None
        assert not isinstance(content, (str, Extent))
        found[path] = Seen(kind | mode, uid, gid, mtime_ns, nlink, content, xattrs)
    return found


def dump(image: Path, *arguments: str | bytes) -> bytes:
    """What dump.erofs says, with single spaces."""
    command = ["dump.erofs", *arguments, str(image)]
    done = subprocess.run(command, check=True, capture_output=True)
    assert done.stderr == b""
    return b" ".join(done.stdout.split())


def dumps(image: Path, tree: dict[bytes, Seen]) -> None:
    """Does dump.erofs count and read the same? Years of more than 31 bits end it by a signal."""
    if not present("dump.erofs"):
        return
    assert b"inode count: %d Filesystem created" % len(tree) in dump(image, "-s")
    datable = [pair for pair in sorted(tree.items()) if abs(pair[1].mtime_ns) >> 55 < 10**9]
    for path, one in datable[:DUMPED]:
        said = dump(image, b"--path=/" + (b"" if path == b"." else path))
        assert b"Links: %d " % (one.nlink or 0) in said
        assert b"Uid: %d Gid: %d Access: %04o/" % (one.uid, one.gid, one.mode & 0o777) in said
        if not isinstance(one.content, frozenset):
            size = one.content if isinstance(one.content, int) else len(one.content)
            assert b"Size: %d On-disk" % size in said


def compare(root: Directory, work: Path, **options: object) -> None:
    """Is a tree what the kernel shows of its image, alone and over the objects, and do the
    programs of erofs-utils read it?"""
    image = work / "image"
    image.write_bytes(made(root, **options))
    with image.open("rb") as opened:
        needed = [work / device.name for device in devices.read(opened)]
    for device, data in DEVICES.items():
        (work / device.name).write_bytes(data)
    fsck(image, needed)
    alone = expected(root, whole=False)
    if not needed:  # dump.erofs 1.5 takes no devices
        dumps(image, alone)
    with mounted(image, work / "lower", needed) as lower:
        assert look(lower, holes=True) == alone
        with overlaid(lower, work / "objects", work / "point") as point:
            assert look(point) == expected(root, whole=True)
