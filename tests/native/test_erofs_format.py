"""The bytes of an EROFS image, and how the programs of erofs-utils read them."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from pathlib import Path

from casfs.native.erofs import layout
from casfs.native.erofs.model import BLOCK, MAX_TARGET, File, Node, Symlink
from tests.support.erofs import (
    EPOCH,
    LINK,
    METACOPY,
    ODD,
    PLAIN,
    dump,
    file,
    folder,
    made,
    redirected,
)
from tests.support.native import fsck
from tests.support.programs import needs


def test_the_checksum_is_castagnoli() -> None:
    assert layout.crc32c(b"123456789") ^ 0xFFFF_FFFF == 0xE306_9283


def test_the_superblock() -> None:
    image = made(folder({b"f": redirected(b"/ab/1500"), b"g": file(b"x" * 9000)}), uuid=b"u" * 16)
    block = bytearray(image[1024:BLOCK])
    magic, checksum, compatible, bits, _, root = struct.unpack_from("<IIIBBH", block)
    assert (magic, compatible, bits) == (0xE0F5E1E2, 3, 12)
    block[4:8] = bytes(4)
    assert checksum == layout.crc32c(block)
    inodes, epoch, _, blocks = struct.unpack_from("<QQII", block, 16)
    assert (inodes, epoch, blocks * BLOCK) == (3, EPOCH, len(image))
    assert bytes(block[48:64]) == b"u" * 16
    assert struct.unpack_from("<I", block, 80) == (4,)
    assert struct.unpack_from("<HHH", image, root * 32)[2] == stat.S_IFDIR | 0o755
    assert not struct.unpack_from("<I", made(folder({})), 1024 + 80)[0]


def test_a_redirected_file_takes_160_bytes_and_an_entry() -> None:
    target = b"/ab/" + b"c" * 62
    entries: dict[bytes, Node] = {
        b"%04d" % number: File(PLAIN, 1, None, (METACOPY, (b"trusted.overlay.redirect", target)))
        for number in range(1000)
    }
    assert len(made(folder(entries))) < 1000 * (160 + 12 + 4) + 3 * BLOCK


@needs("fsck.erofs")
def test_fsck_extracts_the_same(tmp_path: Path) -> None:
    entries: dict[bytes, Node] = {
        b"small": file(b"abc"),
        b"large": file(bytes(range(256)) * 100),
        b"link": Symlink(LINK, b"t" * 1000),
        **{b"%d" % number: file(b"%d" % number) for number in range(500)},
    }
    image, out = tmp_path / "image", tmp_path / "out"
    image.write_bytes(made(folder({b"d": folder(entries)})))
    command = ["fsck.erofs", f"--extract={out}", str(image)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert set(os.listdir(os.fsencode(out / "d"))) == entries.keys()
    for name, node in entries.items():
        path = Path(os.fsdecode(os.fsencode(out / "d") + b"/" + name))
        if isinstance(node, Symlink):
            assert os.fsencode(path.readlink()) == node.target
        elif isinstance(node, File):
            assert path.read_bytes() == node.content


@needs("fsck.erofs")
def test_fsck_reads_an_inode_that_ends_with_its_block(tmp_path: Path) -> None:
    """It reads an xattr header behind each inode, which has to be in the image, too."""
    image = tmp_path / "image"
    for length in range(3900, MAX_TARGET + 1, 5):
        for link in (LINK, ODD):
            for attr in (PLAIN, ODD):
                tree = folder({b"a": Symlink(link, b"t" * length), b"b": file(b"", attr)})
                image.write_bytes(made(tree))
                fsck(image)
    for count in range(50, 70):
        image.write_bytes(made(folder({b"%04d" % number: file(b"") for number in range(count)})))
        fsck(image)


@needs("dump.erofs")
def test_dump_reads_the_same(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(made(folder({b"f": redirected(b"/ab/1500", ODD)}), uuid=bytes(range(16))))

    about = dump(image, "-s")
    assert b"Filesystem inode count: 2 " in about
    assert b"00010203-0405-0607-0809-0a0b0c0d0e0f" in about
    assert b"features: sb_csum mtime chunked_file" in about
    assert b"Uid: 70000 Gid: 5 Access: 0640" in dump(image, "--path=/f")
