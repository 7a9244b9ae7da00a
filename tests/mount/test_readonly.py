"""Nothing changes what is shown, whoever tries; and what tells about a file tells the truth.

The same calls are made on a tmpfs that is mounted read-only: where POSIX says something else
before EROFS, that says it as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from casfs.digest import Digest
from tests.support.helpers import read_tree, write_tree
from tests.support.lasting import ROOT_ONLY, lasting, opened, read_only, record
from tests.support.mutations import (
    MUTATIONS,
    NOBODY,
    PLANTED,
    TOO_LONG_NAME,
    Call,
    called,
    opening,
    outcomes,
)
from tests.support.native import needs_native, shown_natively
from tests.support.programs import needs_pyfuse3
from tests.support.served import Mount
from tests.support.thread_example import make_thread

LEAST = 30  # calls that must fail with EROFS
HASH = "user.blake3"
STATX = struct.Struct("<IIQIIIHHQQQQ")  # up to the mask of attributes
BASIC, ATIME, BTIME = 0x7FF, 0x20, 0x800
NAMES = ["file", "other", "full", "full/inner", "empty", "link", "dangling", "none", "program", "."]


def plant(root: Path) -> Path:
    write_tree(root, PLANTED)
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("file")
    (root / "dangling").symlink_to("nowhere")
    for path in (root, root / "full", root / "empty"):
        path.chmod(0o755)
    return root


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("source") / "tree")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same tree in a file system that was mounted read-only."""
    with read_only(tmp_path_factory.mktemp("oracle"), plant) as point:
        yield point


OPTIONS = ("", "--allow-other", "--xattr")
NATIVE = "--native auto"
BUILTIN_CASES = [
    *[("builtin", options) for options in OPTIONS],
    pytest.param(("builtin", NATIVE), marks=needs_native),
]
PYFUSE3_CASES = [pytest.param(("libfuse", options), marks=needs_pyfuse3) for options in OPTIONS]


@pytest.fixture(
    scope="module",
    params=[*BUILTIN_CASES, *PYFUSE3_CASES],
    ids=lambda transport_options: "".join(transport_options),
)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Mount, str]]:
    transport, options = request.param
    with lasting(tmp_path_factory, transport, *options.split()) as mount:
        yield mount, options


@pytest.fixture(scope="module")
def mount(shared: tuple[Mount, str]) -> Mount:
    return shared[0]


@pytest.fixture(scope="module")
def users(shared: tuple[Mount, str]) -> list[int]:
    """Who may come in."""
    return [0, NOBODY] if shared[1] == "--allow-other" else [0]


@pytest.fixture(scope="module")
def tree(shared: tuple[Mount, str], source: Path) -> Path:
    mount, options = shared
    top = record(mount, source)
    if options == NATIVE:
        shown_natively(top)
    return top


# -- what would change something ----------------------------------------------------------


@ROOT_ONLY
def test_every_change_is_refused(tree: Path, oracle: Path, source: Path, users: list[int]) -> None:
    with opened(tree) as shown, opened(oracle) as other:
        for user in users:
            made = outcomes(shown, user, MUTATIONS)
            assert made == outcomes(other, user, MUTATIONS), user
            assert all(made.values()), made
            assert list(made.values()).count("EROFS") >= LEAST
    assert read_tree(tree) == read_tree(source)


@pytest.fixture(scope="module")
def thread(mount: Mount) -> str:
    return make_thread(mount.store).id


@ROOT_ONLY
def test_nothing_is_changed_outside_of_trees(mount: Mount, thread: str, users: list[int]) -> None:
    hash = mount.store.put(b"any bytes").hash
    files = [".casfs/stats.json", ".casfs/events", "README.txt", "threads.json", f"blobs/{hash}"]
    files += [f"threads/{thread}/{name}" for name in ("status", "input.md", "workflow")]
    folders = [".", "blobs", "trees", "threads", "nodes", "workflows", ".casfs", "history"]
    folders += [f"threads/{thread}", f"threads/{thread}/steps", "actions"]
    calls: dict[str, Call] = {}
    for name in files:
        calls[f"write {name}"] = opening(name, os.O_RDWR)
        calls[f"chmod {name}"] = partial(os.chmod, name, 0o777)
        calls[f"unlink {name}"] = partial(os.unlink, name)
    del calls[f"write threads/{thread}/workflow"]  # a directory
    for name in folders:
        calls[f"mkdir in {name}"] = partial(os.mkdir, f"{name}/new")
        calls[f"create in {name}"] = opening(f"{name}/new", os.O_CREAT | os.O_WRONLY)
        calls[f"symlink in {name}"] = partial(os.symlink, "x", f"{name}/new")
    with opened(mount.path) as fd:
        for user in users:
            assert outcomes(fd, user, calls) == dict.fromkeys(calls, "EROFS")


# -- what tells about a file --------------------------------------------------------------


@ROOT_ONLY
def test_access(tree: Path, oracle: Path, users: list[int]) -> None:
    calls: dict[str, Call] = {}
    for name in [
        *NAMES,
        "file/",
        "file/x",
        "none/x",
        "full/none",
        TOO_LONG_NAME,
        TOO_LONG_NAME[1:],
        "",
    ]:
        for mode in range(8):
            calls[f"access {name} {mode}"] = partial(called, "access", name, mode)
        calls[f"through {name}"] = partial(os.stat, f"{name}/.")
    with opened(tree) as shown, opened(oracle) as other:
        for user in users:
            assert outcomes(shown, user, calls) == outcomes(other, user, calls), user


def test_where_links_lead(tree: Path, oracle: Path) -> None:
    for name in NAMES:
        made = []
        for root in (tree, oracle):
            try:
                made.append(os.readlink(root / name))
            except OSError as error:
                made.append(errno.errorcode[error.errno or 0])
        assert made[0] == made[1], name


def test_the_space(shared: tuple[Mount, str], tree: Path) -> None:
    mount, options = shared
    for path in (mount.path, *([tree, tree / "file"] if options != NATIVE else [])):
        answer = os.statvfs(path)
        assert answer.f_namemax == 255
        assert answer.f_bsize == answer.f_frsize == 4096
        assert answer.f_bfree == answer.f_bavail == answer.f_ffree == answer.f_favail == 0
        disk = os.statvfs(mount.store.root)
        assert 0 < answer.f_blocks * 4096 <= disk.f_blocks * disk.f_frsize
        assert 0 < answer.f_files <= disk.f_files
        assert answer.f_flag & (os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV) == 1 | 2 | 4


def test_statx(shared: tuple[Mount, str], tree: Path, oracle: Path) -> None:
    """In full, but for the time of birth, which is not recorded; natively also that of access."""
    native = shared[1] == NATIVE
    asked = BASIC & ~ATIME if native else BASIC
    for name in NAMES:
        if name == "none":
            continue
        shown, other = statx(tree / name), statx(oracle / name)
        assert shown[0] & asked == asked, name
        assert not shown[0] & BTIME, name
        mode, ino, size = shown[6], shown[8], shown[9]
        assert (mode, shown[4], shown[5]) == (other[6], other[4], other[5]), name
        assert ino == os.lstat(tree / name).st_ino
        if not (tree / name).is_dir() or (tree / name).is_symlink():
            assert size == other[9], name
            assert shown[3] == other[3] == 1, name
            assert native or shown[10] == -(-size // 512), name


def statx(path: Path) -> tuple[int, ...]:
    buffer = ctypes.create_string_buffer(256)
    called("statx", -100, str(path), 0x100, BASIC | BTIME, buffer)
    return STATX.unpack_from(buffer)


# -- extended attributes ------------------------------------------------------------------


def test_a_hash_is_got_and_never_listed(shared: tuple[Mount, str], tree: Path) -> None:
    mount, options = shared
    if options != "--xattr":
        for name in (HASH, "user.other"):
            with pytest.raises(OSError, match=r"not supported|No data available"):
                os.getxattr(tree / "file", name)
        return
    expected = Digest.of((tree / "file").read_bytes()).hash.encode()
    found = mount.store.heads.get(f"checkpoints/ws/{tree.name}")
    assert found is not None
    assert os.getxattr(tree / "file", HASH) == os.getxattr(tree / "link", HASH) == expected
    assert os.getxattr(tree, HASH).decode() == found.record["root"]
    assert os.getxattr(mount.path / "blobs" / expected.decode(), HASH) == expected
    for path in (tree / "file", tree, tree / "link", mount.path):
        assert os.listxattr(path) == []
    for path, name in ((tree / "file", "user.other"), (mount.path, HASH), (tree / "file", "user.")):
        with pytest.raises(OSError, match=r"No data available|Invalid argument"):
            os.getxattr(path, name)
    buffer = ctypes.create_string_buffer(63)
    with pytest.raises(OSError, match="getxattr") as caught:
        called("getxattr", str(tree / "file"), HASH, buffer, 63)
    assert caught.value.errno == errno.ERANGE
