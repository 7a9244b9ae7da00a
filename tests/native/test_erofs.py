"""EROFS images: what is put in is what the kernel shows, and what it would refuse is not made."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.errors import Corrupt, Invalid
from casfs.native.erofs import layout
from casfs.native.erofs.model import BLOCK, Attr, Directory, Extent, File, Node, Symlink
from tests.support.erofs import (
    DEVICE_BLOCKS,
    DEVICES,
    EPOCH,
    FOLDER,
    LINK,
    METACOPY,
    OBJECTS,
    ODD,
    PLAIN,
    compare,
    expected,
    file,
    folder,
    made,
    redirected,
)
from tests.support.native import fsck, look, mounted, needs_native


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
PACKED = st.builds(  # of sizes where a block ends
    lambda device, block, blocks, less, attr, xattrs: File(
        attr, blocks * BLOCK - less, Extent(device, block), xattrs
    ),
    st.sampled_from(sorted(DEVICES)),
    st.integers(0, DEVICE_BLOCKS // 2),
    st.integers(1, DEVICE_BLOCKS // 2),
    st.sampled_from([0, 1, 2, BLOCK // 2, BLOCK - 2, BLOCK - 1]),
    ATTRS,
    XATTRS,
)
LEAVES = FILES | REDIRECTED | HOLES | PACKED | LINKS


def folders(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Directory]:
    entries = st.dictionaries(GOOD, below, max_size=30).map(lambda one: list(one.items()))
    return st.builds(Directory, ATTRS, entries, XATTRS)


TREES = folders(st.recursive(LEAVES, folders, max_leaves=40))


@needs_native
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


@needs_native
def test_an_empty_tree(work: Path) -> None:
    compare(folder({}), work)


@needs_native
def test_data_of_every_size_around_a_block(work: Path) -> None:
    sizes = [*range(BLOCK - 70, BLOCK + 3), 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1]
    entries: dict[bytes, Node] = {}
    for size in sizes:
        entries[b"plain %d" % size] = file(b"x" * size)
        entries[b"odd %d" % size] = file(b"y" * size, ODD)
        entries[b"small %d" % size] = file(b"z")
    compare(folder(entries), work)


@needs_native
@pytest.mark.parametrize("length", [3936, 3937, 4000, 4095])
def test_an_empty_file_behind_a_long_link(work: Path, length: int) -> None:
    for link, attr in product((LINK, ODD), (PLAIN, ODD)):
        compare(folder({b"a": Symlink(link, b"t" * length), b"b": file(b"", attr)}), work)


@needs_native
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


@needs_native
def test_attributes_where_the_form_of_an_inode_changes(work: Path) -> None:
    attributes = [
        *(Attr(0o644, owner, 0, EPOCH) for owner in (65_535, 65_536)),
        *(Attr(0o644, 0, owner, EPOCH) for owner in (65_535, 65_536)),
        *(Attr(0o644, 0, 0, EPOCH + seconds) for seconds in (-1, 1)),
        *(Attr(0o644, 0, 0, EPOCH, nanos) for nanos in (1, 999_999_999)),
        *(Attr(0o644, 0, 0, seconds) for seconds in (-(1 << 62), -1, 0, 1 << 32, 1 << 62)),
    ]
    compare(folder({b"%d" % number: file(b"", one) for number, one in enumerate(attributes)}), work)


@needs_native
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


@needs_native
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


@needs_native
def test_70000_subdirectories_are_counted(work: Path) -> None:
    image = work / "image"
    image.write_bytes(made(folder({b"%d" % number: folder({}) for number in range(70_000)})))
    with mounted(image, work / "lower") as lower:
        assert os.lstat(lower).st_nlink == 70_002
        assert (lower / "69999/..").samefile(lower)


@needs_native
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


@needs_native
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


@needs_native
def test_many_extended_attributes(work: Path) -> None:
    shared = [(b"user.s%d" % number, b"v" * number) for number in range(255)]
    mine = tuple((b"user.own%d" % number, bytes(number)) for number in range(300))
    root = Directory(FOLDER, [(b"f", File(ODD, 3, b"abc", (*shared, *mine)))], (shared[7],))
    image = work / "image"
    image.write_bytes(made(root, shared=shared))
    with mounted(image, work / "lower") as lower:
        assert look(lower) == expected(root, whole=False)


@needs_native
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


@needs_native
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
    most = layout.MAX_BLOCKS - 1  # the first one has the inodes

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
