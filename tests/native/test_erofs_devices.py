"""Images whose files lie in devices: the bytes, and what the kernel and erofs-utils read."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
from io import BytesIO
from pathlib import Path

import pytest

from casfs.errors import Corrupt, Failed, Invalid, NotFound
from casfs.native.erofs import devices, layout
from casfs.native.erofs.model import BLOCK, Device, Directory, Extent, File, Node
from casfs.system import mounts
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import OverlayLayers
from tests.support.erofs import (
    DEVICE_BLOCKS,
    DEVICES,
    ODD,
    PLAIN,
    compare,
    dump,
    file,
    folder,
    made,
    packed,
    redirected,
)
from tests.support.native import fsck, mounted, needs_native
from tests.support.programs import needs

FIRST, SECOND = list(DEVICES)[:2]
AT_TABLE = 1152


def image_of(entries: dict[bytes, Node], **options: object) -> bytes:
    return made(folder(entries), **options)


# -- the bytes ----------------------------------------------------------------------------


def test_the_table_and_the_index_byte_for_byte() -> None:
    image = image_of({b"a": packed(SECOND, 3, 5000), b"b": packed(FIRST, 0, 1)}, uuid=b"u" * 16)
    compatible, features, count, slot = (
        *struct.unpack_from("<I", image, 1024 + 8),
        *struct.unpack_from("<I", image, 1024 + 80),
        *struct.unpack_from("<HH", image, 1024 + 86),
    )
    assert (compatible, features, count, slot * 128) == (3, 4 | 8, 2, AT_TABLE)
    assert struct.unpack_from("<II", image, 1024 + 40) == (1, 1)  # inodes and xattrs: block 1
    assert image[AT_TABLE : AT_TABLE + 256] == b"".join(
        name.ljust(64, b"\0") + struct.pack("<I", DEVICE_BLOCKS) + bytes(60)
        for name in (b"2" * 64, b"one")
    )
    block = bytearray(image[1024:BLOCK])
    checksum = struct.unpack_from("<I", block, 4)[0]
    block[4:8] = bytes(4)
    assert checksum == layout.crc32c(block)
    root = struct.unpack_from("<H", image, 1024 + 14)[0]
    at = BLOCK + 32 * root
    inodes = {}
    while at + 40 < len(image):  # slots: an inode of 32 bytes, then its index of 8
        format, size = struct.unpack_from("<H6xI", image, at)
        if format == 4 << 1:
            chunk = struct.unpack_from("<HH", image, at + 16)[0]
            inodes[size] = (chunk, struct.unpack_from("<HHI", image, at + 32))
        at += 32
    assert inodes == {5000: (32 | 1, (0, 1, 3)), 1: (32, (0, 2, 0))}


def test_without_a_packed_file_there_is_no_table() -> None:
    image = image_of({b"f": file(b"x" * 5000), b"g": redirected(b"/ab/1500")})
    assert struct.unpack_from("<HH", image, 1024 + 86) == (0, 0)
    assert not struct.unpack_from("<I", image, 1024 + 80)[0] & 8
    assert devices.read(BytesIO(image)) == []


def test_a_packed_file_takes_64_bytes_and_an_entry() -> None:
    entries: dict[bytes, Node] = {b"%04d" % one: packed(FIRST, 1, BLOCK) for one in range(1000)}
    assert len(image_of(entries)) < 1000 * (64 + 12 + 4) + 4 * BLOCK


def test_the_uuid_says_where_the_files_are() -> None:
    """An upper layer refers to inodes of a lower one by its uuid and their numbers."""
    entries: list[dict[bytes, Node]] = [
        {b"a": packed(FIRST, 0, 10), b"b": packed(FIRST, 1, 10)},
        {b"a": packed(FIRST, 1, 10), b"b": packed(FIRST, 0, 10)},
        {b"a": packed(FIRST, 0, 10), b"b": redirected(b"/ab/1500")},
        {b"a": packed(SECOND, 0, 10), b"b": packed(FIRST, 1, 10)},
    ]
    made_of = [image_of(one, uuid=b"u" * 16)[1024 + 48 : 1024 + 64] for one in entries]
    assert len({b"u" * 16, *made_of}) == 5
    assert made_of[0] == image_of(entries[0], uuid=b"u" * 16)[1024 + 48 : 1024 + 64]


def test_any_size_has_one_index() -> None:
    huge = Device("huge", 1 << 31)
    sizes = [1, BLOCK, BLOCK + 1, 1 << 20, (1 << 43) - 1]
    entries: dict[bytes, Node] = {b"%d" % size: packed(huge, 0, size) for size in sizes}
    assert len(image_of(entries)) == 2 * BLOCK
    assert layout.chunk_map((1 << 43) + 1, 1, 7) == (
        32 | 31,
        struct.pack("<HHIHHI", 0, 1, 7, 0, 1, 7 + (1 << 31)),
    )


@pytest.mark.parametrize(
    "node",
    [
        packed(FIRST, DEVICE_BLOCKS, 1),
        packed(FIRST, DEVICE_BLOCKS - 1, BLOCK + 1),
        packed(FIRST, -1, 1),
        packed(Device("", 1), 0, 1),
        packed(Device("n" * 65, 1), 0, 1),
        packed(Device("n", (1 << 33)), 0, 1),
    ],
)
def test_what_no_device_can_hold_is_refused(node: File) -> None:
    with pytest.raises(Invalid):
        image_of({b"f": node})


def test_what_is_no_image_has_no_devices(tmp_path: Path) -> None:
    image = image_of({b"%03d" % one: packed(Device(f"{one}", 1), 0, 1) for one in range(40)})
    assert [int(one.name) for one in devices.read(BytesIO(image))] == list(range(40))
    broken = tmp_path / "broken"
    for data in (b"", b"x" * 2000, bytes(4096), image[: AT_TABLE + 200]):
        broken.write_bytes(data)
        with broken.open("rb") as opened, pytest.raises(Corrupt, match="broken"):
            devices.read(opened)


# -- what is read -------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "objects").mkdir()
    return tmp_path


@needs_native
def test_sizes_around_every_block(work: Path) -> None:
    entries: dict[bytes, Node] = {}
    for blocks in (1, 2, 3, 16):
        for more in (-2, -1, 0, 1, 2):
            size = blocks * BLOCK + more
            for attr in (PLAIN, ODD):
                entries[b"%d-%d" % (size, attr.uid)] = packed(SECOND, blocks % 5, size, attr)
    entries[b"inline"] = file(b"i" * 500)
    entries[b"blocks"] = file(b"b" * 9000)
    compare(folder(entries), work)


@needs_native
def test_what_is_mapped_ends_with_zeros(work: Path) -> None:
    """Behind the end of a file its last page is what the device has there."""
    pack, image = work / "pack", work / "image"
    data = b"x" * (BLOCK + 100)
    pack.write_bytes(bytes(BLOCK) + data + bytes(-len(data) % BLOCK))
    device = Device("pack", 3)
    image.write_bytes(image_of({b"f": packed(device, 1, len(data))}))
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with mounted(image, work / "lower", [pack]) as lower, (lower / "f").open("rb") as opened:
        fd = opened.fileno()
        where = library.mmap(None, 2 * BLOCK, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        assert where != ctypes.c_void_p(-1).value
        try:
            assert ctypes.string_at(where, 2 * BLOCK) == data + bytes(BLOCK - 100)
        finally:
            library.munmap(where, 2 * BLOCK)


@needs("fsck.erofs")
@needs("dump.erofs")
def test_erofs_utils_read_the_same(tmp_path: Path) -> None:
    entries: dict[bytes, Node] = {
        b"a": packed(FIRST, 1, 5000),
        b"b": packed(SECOND, 0, 3 * BLOCK),
        b"c": packed(FIRST, 7, 1),
    }
    image, out = tmp_path / "image", tmp_path / "out"
    image.write_bytes(image_of(entries))
    paths = []
    for device in (FIRST, SECOND):
        paths.append(tmp_path / device.name)
        paths[-1].write_bytes(DEVICES[device])
    fsck(image, paths)
    given = [f"--device={path}" for path in paths]
    command = ["fsck.erofs", *given, f"--extract={out}", str(image)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    for name, node in entries.items():
        assert isinstance(node, File)
        assert isinstance(node.content, Extent)
        start = node.content.block * BLOCK
        data = DEVICES[node.content.device][start : start + node.size]
        assert (out / os.fsdecode(name)).read_bytes() == data
    about = dump(image, *given, "-s")
    assert b"chunked_file device_table" in about


# -- as the product mounts it -------------------------------------------------------------


def layers(work: Path, root: Directory, blocks: dict[Device, bytes]) -> OverlayLayers:
    """A place for an overlay over the image of a tree, beside its packs and no objects."""
    image = work / "images/image"
    for name in ("images", "objects", "packs", "point"):
        (work / name).mkdir(exist_ok=True, mode=0o700)
    for device, data in blocks.items():
        path = work / f"packs/{device.name}.pack"
        path.write_bytes(data)
        path.chmod(0o444)
    image.write_bytes(made(root))
    return OverlayLayers(image, work / "upper", work / "work", work / "point", True)


def hashed(number: int, blocks: int = 1) -> Device:
    return Device(f"{number:064x}", blocks)


@needs_native
def test_more_packs_than_the_options_of_a_mount_can_name(tmp_path: Path) -> None:
    """And in a folder whose name has what would need escaping."""
    work = tmp_path / "a,b:c\\d"
    work.mkdir()
    blocks = {hashed(one): b"%d" % one + bytes(BLOCK - len(b"%d" % one)) for one in range(300)}
    root = folder({b"%d" % one: packed(hashed(one), 0, len(b"%d" % one)) for one in range(300)})
    found = layers(work, root, blocks)
    image_mount.mount(found)
    try:
        for path in sorted((work / "packs").iterdir()):
            path.unlink()  # the kernel has them open
        for one in range(300):
            assert (found.point / str(one)).read_text() == str(one)
    finally:
        mounts.unmount(found.point)
    assert not list(work.glob("lower*"))


@needs_native
def test_a_pack_that_is_gone_asks_for_another_image(tmp_path: Path) -> None:
    found = layers(tmp_path, folder({b"f": packed(hashed(1), 0, 10)}), {})
    with pytest.raises(NotFound, match="has been removed"):
        image_mount.mount(found)
    (tmp_path / "packs").rmdir()
    with pytest.raises(NotFound, match="has been removed"):
        image_mount.mount(found)
    assert mounts.mounted_below(tmp_path) == []


@needs_native
@pytest.mark.parametrize("wrong", ["short", "writable", "link", "another user's", "folder"])
def test_a_pack_that_others_could_write_is_refused(tmp_path: Path, wrong: str) -> None:
    device = hashed(1, 2)
    found = layers(tmp_path, folder({b"f": packed(device, 0, 5000)}), {device: bytes(2 * BLOCK)})
    path = tmp_path / f"packs/{device.name}.pack"
    if wrong == "short":
        os.truncate(path, BLOCK)
    elif wrong == "writable":
        path.chmod(0o644)
    elif wrong == "link":
        path.symlink_to(path.rename(tmp_path / "elsewhere"))
    elif wrong == "another user's":
        os.chown(path, 65534, 65534)
    else:
        path.parent.chmod(0o777)
    with pytest.raises(Failed, match="packs"):
        image_mount.mount(found)
    assert mounts.mounted_below(tmp_path) == []
