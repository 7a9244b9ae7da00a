"""EROFS images: what is put in is what the kernel shows, and what it would refuse is not made."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.errors import Corrupt, Invalid
from casfs.native.erofs import layout
from casfs.native.erofs.model import BLOCK, Attr, Directory, File, Node, Symlink
from casfs.native.erofs.writer import write
from tests.support.native import Seen, fsck, look, mounted, not_mountable, overlaid
from tests.support.programs import needs, present

EPOCH = 946_684_800
PLAIN = Attr(0o644, 0, 0, EPOCH)
FOLDER = Attr(0o755, 0, 0, EPOCH)
LINK = Attr(0o777, 0, 0, EPOCH)
ODD = Attr(0o4640, 70_000, 5, -7, 999_999_999)  # no compact inode can have it
METACOPY = (b"trusted.overlay.metacopy", b"")
DUMPED = 10  # paths of a tree that dump.erofs is asked for
OBJECTS = {b"/ab/%d" % size: bytes(range(256)) * (size // 256 + 1) for size in (0, 1500, 70_000)}

needs_kernel = pytest.mark.skipif(not_mountable() is not None, reason=str(not_mountable()))


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
        content: bytes | str | frozenset[bytes] | int | None
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
        mode, uid, gid, seconds, nanos = node.attr
        mtime_ns = seconds * 1_000_000_000 + nanos
        assert content is not None
        assert not isinstance(content, str)
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
    fsck(image)
    alone = expected(root, whole=False)
    dumps(image, alone)
    with mounted(image, work / "lower") as lower:
        assert look(lower, holes=True) == alone
        with overlaid(lower, work / "objects", work / "point") as point:
            assert look(point) == expected(root, whole=True)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with objects in it."""
    for name, data in OBJECTS.items():
        path = tmp_path / "objects" / os.fsdecode(name[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


# -- any tree -----------------------------------------------------------------------------

NEAR = st.one_of(  # sizes where something changes
    st.integers(0, 200), st.integers(3900, 4200), st.integers(8100, 8300), st.just(20_000)
)
NAMES = st.binary(min_size=1, max_size=12) | st.integers(1, 255).map(lambda size: b"n" * size)
GOOD = NAMES.filter(lambda name: name not in (b".", b"..") and not set(name) & {0, 0x2F})
TIMES = st.just((EPOCH, 0)) | st.tuples(st.integers(-(1 << 40), 1 << 40), st.integers(0, 10**9 - 1))
OWNERS = st.sampled_from([0, 1000, 65_535, 65_536, (1 << 32) - 2])
MODES = st.sampled_from([0o644, 0o755, 0, 0o7777, 0o1700])
ATTRS = st.tuples(MODES, OWNERS, OWNERS, TIMES).map(lambda one: Attr(*one[:3], *one[3]))
SHARED = [(b"user.shared", b"y" * 100), (b"trusted.too", b""), METACOPY]
OWN = st.tuples(
    st.sampled_from([b"user.a", b"user." + b"b" * 250, b"trusted.c", b"security.d"]),
    st.binary(max_size=40) | st.integers(0, 5000).map(bytes),
)
XATTRS = st.lists(
    st.sampled_from(SHARED[:2]) | OWN, max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
DATA = NEAR.map(lambda size: random.Random(size).randbytes(size))
FILES = st.builds(
    lambda attr, data, xattrs: File(attr, len(data), data, xattrs), ATTRS, DATA, XATTRS
)
REDIRECTED = st.builds(redirected, st.sampled_from(sorted(OBJECTS)), ATTRS)
HOLES = st.builds(lambda attr, size: File(attr, size, None), ATTRS, NEAR)
LINKS = st.builds(
    Symlink,
    ATTRS,
    st.sampled_from([1, 60, 4030, 4031, 4032, 4033, 4064, 4065, 4095]).map(
        lambda size: b"t" * size
    ),
    st.sampled_from([(), ((b"trusted.c", b"v"),), (SHARED[1],)]),
)
LEAVES = FILES | REDIRECTED | HOLES | LINKS


def folders(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Directory]:
    entries = st.dictionaries(GOOD, below, max_size=30).map(lambda one: list(one.items()))
    return st.builds(Directory, ATTRS, entries, XATTRS)


TREES = folders(st.recursive(LEAVES, folders, max_leaves=40))


@needs_kernel
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(root=TREES)
def test_the_kernel_shows_what_was_put_in(work: Path, root: Directory) -> None:
    compare(root, work, shared=SHARED)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(root=TREES, seed=st.integers())
def test_equal_trees_give_equal_bytes(root: Directory, seed: int) -> None:
    def shuffled(node: Node) -> Node:
        if not isinstance(node, Directory):
            return node
        entries = [(name, shuffled(below)) for name, below in node.entries]
        random.Random(seed).shuffle(entries)
        return node._replace(entries=iter(entries))

    again = shuffled(root)
    assert isinstance(again, Directory)
    assert made(again, shared=SHARED) == made(root, shared=SHARED)


# -- what is at its limit -----------------------------------------------------------------


@needs_kernel
def test_an_empty_tree(work: Path) -> None:
    compare(folder({}), work)


@needs_kernel
def test_data_of_every_size_around_a_block(work: Path) -> None:
    sizes = [*range(BLOCK - 70, BLOCK + 3), 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1]
    entries: dict[bytes, Node] = {}
    for size in sizes:
        entries[b"plain %d" % size] = file(b"x" * size)
        entries[b"odd %d" % size] = file(b"y" * size, ODD)
        entries[b"small %d" % size] = file(b"z")
    compare(folder(entries), work)


@needs_kernel
def test_directories_of_every_size_around_a_block(work: Path) -> None:
    """15 names of 255 bytes, the dots, and one more: it has its place in blocks, and is to be
    found again behind another that is not full."""

    def sized(size: int) -> Directory:
        fixed = [b"%02d" % number + b"n" * 253 for number in range(15)]
        rest = size - sum(12 + len(name) for name in (b".", b"..", *fixed)) - 12
        return folder(
            {b"z" * rest: folder({b"in": file(b"%d" % size)}), **dict.fromkeys(fixed, file(b""))}
        )

    sizes = range(BLOCK - 50, BLOCK + 50)
    compare(folder({b"%d" % size: sized(size) for size in sizes}), work)
    image = work / "image"
    with mounted(image, work / "lower") as lower:
        assert {(lower / f"{size}").stat().st_size - size for size in sizes if size <= BLOCK} == {0}


@needs_kernel
def test_attributes_where_the_form_of_an_inode_changes(work: Path) -> None:
    attributes = [
        *(Attr(0o644, owner, 0, EPOCH) for owner in (65_535, 65_536)),
        *(Attr(0o644, 0, owner, EPOCH) for owner in (65_535, 65_536)),
        *(Attr(0o644, 0, 0, EPOCH + seconds) for seconds in (-1, 1)),
        *(Attr(0o644, 0, 0, EPOCH, nanos) for nanos in (1, 999_999_999)),
        *(Attr(0o644, 0, 0, seconds) for seconds in (-(1 << 62), -1, 0, 1 << 32, 1 << 62)),
    ]
    compare(folder({b"%d" % number: file(b"", one) for number, one in enumerate(attributes)}), work)


@needs_kernel
def test_names_before_the_dots_and_long_ones(work: Path) -> None:
    names = [
        b"\x01",
        b"!",
        b"-",
        b"-.",
        b".-",
        b"...",
        b"..a",
        b".a",
        b"/"[:0] + b"0",
        b"\xff" * 255,
    ]
    compare(folder({name: file(name) for name in names}), work)


@needs_kernel
def test_a_directory_of_65000(work: Path) -> None:
    names = [b"%05d-%s" % (number, b"x" * (number % 40)) for number in range(65_000)]
    random.Random(1).shuffle(names)
    entries: dict[bytes, Node] = {name: file(name) for name in names}
    entries[b"30000-folder"] = folder({b"in": file(b"it")})
    image = work / "image"
    image.write_bytes(made(folder({b"many": folder(entries)})))
    fsck(image)
    with mounted(image, work / "lower") as lower:
        many = os.fsencode(lower / "many")
        assert set(os.listdir(many)) == entries.keys()
        for name in random.Random(2).sample(names, 500):
            assert Path(os.fsdecode(many + b"/" + name)).read_bytes() == name
            assert not os.path.lexists(many + b"/" + name + b"0")
        assert os.lstat(many).st_nlink == 3
        assert (lower / "many/30000-folder/in").read_bytes() == b"it"
        assert (lower / "many/30000-folder/../..").samefile(lower)


@needs_kernel
def test_70000_subdirectories_are_counted(work: Path) -> None:
    image = work / "image"
    image.write_bytes(made(folder({b"%d" % number: folder({}) for number in range(70_000)})))
    with mounted(image, work / "lower") as lower:
        assert os.lstat(lower).st_nlink == 70_002
        assert (lower / "69999/..").samefile(lower)


@needs_kernel
def test_a_tree_that_is_200_deep(work: Path) -> None:
    root = folder({b"bottom": file(b"here"), b"far": redirected(b"/ab/1500")})
    for number in range(200):
        root = folder({b"%d" % number: root, b"beside": Symlink(LINK, b"..")})
    compare(root, work)


def test_depth_has_no_limit() -> None:
    root = folder({})
    for _ in range(5000):
        root = folder({b"d": root})
    assert len(made(root)) > 5000 * 64


@needs_kernel
@pytest.mark.parametrize(
    "size", [1, BLOCK, BLOCK + 1, (1 << 32) - 1, 1 << 32, (1 << 43) + 1, (1 << 63) - 1]
)
def test_a_file_without_data_of_any_size(work: Path, size: int) -> None:
    root = folder({b"hole": File(PLAIN, size, None), b"next": file(b"to it")})
    image = work / "image"
    image.write_bytes(made(root))
    with mounted(image, work / "lower") as lower:
        assert os.lstat(lower / "hole").st_size == size
        with (lower / "hole").open("rb", buffering=0) as hole:
            for at in {0, max(0, size - 100)}:
                hole.seek(at)
                assert hole.read(min(4096, size - at)) == bytes(min(4096, size - at))
        assert (lower / "next").read_bytes() == b"to it"


@needs_kernel
def test_many_extended_attributes(work: Path) -> None:
    shared = [(b"user.s%d" % number, b"v" * number) for number in range(255)]
    mine = tuple((b"user.own%d" % number, bytes(number)) for number in range(300))
    root = Directory(FOLDER, [(b"f", File(ODD, 3, b"abc", (*shared, *mine)))], (shared[7],))
    image = work / "image"
    image.write_bytes(made(root, shared=shared))
    with mounted(image, work / "lower") as lower:
        assert look(lower) == expected(root, whole=False)


@needs_kernel
def test_as_many_names_of_attributes_as_can_be_listed(work: Path) -> None:
    """One byte more, and the kernel would show the file but never list them."""
    names = [b"user.%03d" % number + b"n" * 247 for number in range(255)]
    last = b"user." + b"z" * 250
    root = folder({b"f": File(PLAIN, 0, b"", tuple((one, b"") for one in (*names, last)))})
    image = work / "image"
    image.write_bytes(made(root))
    with mounted(image, work / "lower") as lower:
        assert len(os.listxattr(lower / "f")) == 256
    more = ((last[:-2], b""), (b"user.y", b""))  # 8 bytes instead of 2
    for shared in ([], [(one, b"") for one in names[:200]]):
        xattrs = (*((one, b"") for one in names), *more)
        with pytest.raises(Invalid, match="too much to list"):
            made(folder({b"f": File(PLAIN, 0, b"", xattrs)}), shared=shared)


@needs_kernel
def test_contents_that_are_fetched(work: Path) -> None:
    sizes = {"small": 10, "again": 10, "large": 10_000, "larger": 100_000, "none": 0}
    asked: list[str] = []

    def fetch(keys: list[str]) -> Iterator[bytes]:
        asked.extend(keys)
        return (key[:1].encode() * sizes[key] for key in keys)

    entries = {key.encode(): File(PLAIN, size, key) for key, size in sizes.items()}
    image = work / "image"
    image.write_bytes(made(folder({**entries, b"known": file(b"k" * 9000)}), fetch=fetch))
    with mounted(image, work / "lower") as lower:
        for key, size in sizes.items():
            assert (lower / key).read_bytes() == key[:1].encode() * size
        assert (lower / "known").read_bytes() == b"k" * 9000
    assert sorted(asked) == sorted(sizes)


def test_a_content_of_another_size_is_refused() -> None:
    for size in (3, 9000):
        with pytest.raises(Corrupt, match="key"):
            made(folder({b"f": File(PLAIN, size, "key")}), fetch=lambda keys: [b"four"] * len(keys))
        with pytest.raises(Corrupt):
            made(folder({b"f": File(PLAIN, size, b"four")}))


TWICE = ((b"user.a", b"1"), (b"user.a", b"2"))


@pytest.mark.parametrize(
    "node",
    [
        *(folder({name: file(b"")}) for name in (b"", b".", b"..", b"a/b", b"a\0", b"n" * 256)),
        Directory(FOLDER, [(b"a", file(b"")), (b"a", folder({}))]),
        *(Symlink(LINK, target) for target in (b"", b"a\0", b"t" * 4096)),
        *(File(PLAIN, size, None) for size in (-1, 1 << 63)),
        *(
            file(b"", PLAIN._replace(**{key: value}))
            for key, value in [
                *(("mode", 0o10000), ("uid", -1), ("uid", (1 << 32) - 1), ("gid", 1 << 32)),
                *(("seconds", 1 << 63), ("nanos", -1), ("nanos", 10**9)),
            ]
        ),
        *(
            File(PLAIN, 0, b"", xattrs)
            for xattrs in [
                *(((name, b""),) for name in (b"user.", b"system.posix_acl_access", b"none")),
                *(((b"user." + b"n" * 251, b""),), ((b"user.v", bytes(65_536)),), TWICE),
                tuple((b"user.%d" % number, bytes(65_000)) for number in range(5)),
            ]
        ),
    ],
    ids=lambda node: repr(node)[:60],
)
def test_what_no_image_can_hold_is_refused_in_one_line(node: Node) -> None:
    with pytest.raises(Invalid) as refused:
        made(folder({b"it": node}))
    assert "\n" not in str(refused.value)


def test_more_shared_attributes_than_an_inode_can_have() -> None:
    shared = [(b"user.s%d" % number, b"") for number in range(256)]
    with pytest.raises(Invalid):
        made(folder({b"f": File(PLAIN, 0, b"", tuple(shared))}), shared=shared)


def test_an_image_of_more_blocks_than_can_be_counted() -> None:
    """The last number of a block stands for a hole; contents are not fetched before."""
    most = layout.MOST_BLOCKS - 1  # the first one has the inodes

    def fetch(keys: list[str]) -> list[bytes]:
        asked.append(keys)
        return [b""] * len(keys)

    asked: list[list[str]] = []
    with pytest.raises(Invalid, match="too large"):
        made(folder({b"f": File(PLAIN, most * BLOCK + 1, "key")}), fetch=fetch)
    assert asked == [[]]
    with pytest.raises(Corrupt, match="key"):  # it was asked for
        made(folder({b"f": File(PLAIN, most * BLOCK, "key")}), fetch=fetch)
    assert asked[1:] == [[], ["key"]]


def test_the_root_has_to_stay_near_the_beginning() -> None:
    with pytest.raises(Invalid, match="shared"):
        made(folder({}), shared=[(b"user.%d" % number, bytes(65_000)) for number in range(40)])


# -- the bytes ----------------------------------------------------------------------------


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


@needs("dump.erofs")
def test_dump_reads_the_same(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(made(folder({b"f": redirected(b"/ab/1500", ODD)}), uuid=bytes(range(16))))

    about = dump(image, "-s")
    assert b"Filesystem inode count: 2 " in about
    assert b"00010203-0405-0607-0809-0a0b0c0d0e0f" in about
    assert b"features: sb_csum mtime chunked_file" in about
    assert b"Uid: 70000 Gid: 5 Access: 0640" in dump(image, "--path=/f")
