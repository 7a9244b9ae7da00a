"""A real mount beside the files that it shows. These fail, not skip, where /dev/fuse is."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.checkpoints import create as recording
from casfs.digest import Digest
from casfs.store.store import Store
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from tests.support.lasting import drop_caches
from tests.support.programs import needs_device
from tests.support.served import Mount
from tests.support.thread_example import make_thread

pytestmark = needs_device
FILES = 3_000
MIB = 1 << 20


def make_source(root: Path) -> None:
    """Part of the standard library, and everything that a tree must keep."""
    root.mkdir()
    copied = 0
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*")):
        inner = path.relative_to(library)
        if "site-packages" in inner.parts or not path.is_file() or path.stat().st_size > MIB:
            continue
        target = root / "lib" / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        copied += 1
        if copied == FILES:
            break
    for number in range(copied, FILES):  # a machine with a small library
        (root / f"more-{number}").write_bytes(b"%d\n" % number * number)
    (root / "empty").mkdir()
    (root / "deep" / "er").mkdir(parents=True)
    (root / "big").write_bytes(bytes(range(256)) * (4 * MIB // 256) + b"end")
    (root / "program").write_text("#!/bin/sh\necho it runs\n")
    (root / "program").chmod(0o755)
    (root / "empty-file").touch()
    os.symlink("lib", root / "link")
    os.symlink("nowhere/at/all", root / "dangling")
    os.symlink(b"\xff", os.fsencode(root / "deep" / "byte-link"))
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe byte name")).write_text("bytes\n")
    (root / "deep" / ("n" * 255)).write_text("long\n")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "tree"
    make_source(root)
    return root


@pytest.fixture
def tree(mount: Mount, source: Path) -> Path:
    """The checkpoint of `source` in the mount."""
    made = recording.create(
        mount.store, "ws", source, options=recording.CreateOptions(defaults=False)
    ).checkpoint
    return mount.path / "trees" / "ws" / made.id


def run(*command: str | Path, cwd: Path | None = None, ok: int = 0) -> bytes:
    done = subprocess.run(
        [os.fspath(part) for part in command],
        cwd=cwd,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
    )
    assert done.returncode == ok, done.stderr
    return done.stdout


SORTED = {
    "find": ["find", ".", "-printf", "%y %m %l %P\\n"],
    "sizes": ["find", ".", "-type", "f", "-printf", "%s %P\\n"],
    "grep": ["grep", "-rn", "def __init__", "."],
    "sha256sum": ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"],
}
TAR = ["tar", "c", "--sort=name", "--owner=0", "--group=0", "--mtime=@0", "."]


def same(source: Path, tree: Path) -> None:
    for name, command in SORTED.items():
        expected = sorted(run(*command, cwd=source).splitlines())
        assert sorted(run(*command, cwd=tree).splitlines()) == expected, name
        assert expected, name
    archives = [hashlib.sha256(run(*TAR, cwd=root)).hexdigest() for root in (source, tree)]
    assert archives[0] == archives[1]
    assert run("diff", "-r", "--no-dereference", source, tree) == b""


def test_a_tree_is_the_tree_it_was_made_from(mount: Mount, source: Path, tree: Path) -> None:
    normalise(source)
    count = len(run("find", tree, "-type", "f").splitlines())
    assert count >= FILES
    same(source, tree)
    drop_caches()
    same(source, tree)


def normalise(source: Path) -> None:
    """The modes that a tree has: 0644 or 0755."""
    for top, _, files in os.walk(source):
        os.chmod(top, 0o755)
        for name in files:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


def test_cp_gives_the_tree_back(mount: Mount, source: Path, tree: Path, tmp_path: Path) -> None:
    normalise(source)
    copy = tmp_path / "copy"
    run("cp", "-a", tree, copy)
    same(source, copy)
    drop_caches()
    assert run("diff", "-r", "--no-dereference", copy, tree) == b""
    with mount.store.batch() as batch:
        again = walker.snapshot(batch, copy, IgnoreRules.of(copy, defaults=False))
    made = checkpoint.latest(mount.store, "ws")
    assert made is not None
    assert again.node.hash == made.root


def test_attributes(mount: Mount, source: Path, tree: Path) -> None:
    for name in (".", "big", "program", "dangling"):
        shown = os.lstat(tree / name)
        assert (shown.st_uid, shown.st_gid) == (os.getuid(), os.getgid())
        assert shown.st_mtime_ns == os.lstat(source / name).st_mtime_ns
    assert os.lstat(mount.path).st_mtime_ns == 946_684_800 * 10**9
    assert (tree / "big").stat().st_size == 4 * MIB + 3
    assert (tree / "big").stat().st_blocks == 4 * MIB // 512 + 1
    assert os.readlink(tree / "dangling") == "nowhere/at/all"
    assert run(tree / "program") == b"it runs\n"
    assert os.statvfs(mount.path).f_namemax == 255
    assert os.access(tree / "big", os.R_OK)
    assert not os.access(tree / "big", os.X_OK) or os.geteuid() == 0
    assert not os.access(tree / "big", os.W_OK)


def test_inode_numbers(mount: Mount, source: Path, tree: Path) -> None:
    def numbers(root: Path) -> dict[str, tuple[int, bool]]:
        found = {}
        for top, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = os.path.join(top, name)
                found[os.path.relpath(path, root)] = os.lstat(path).st_ino, name in directories
        return found

    before = numbers(tree)
    second = recording.create(
        mount.store, "other", source, options=recording.CreateOptions(defaults=False)
    ).checkpoint
    after = numbers(mount.path / "trees" / "other" / second.id)
    assert before.keys() == after.keys()
    all_numbers = [ino for ino, _ in before.values()]
    assert len(set(all_numbers)) == len(all_numbers)
    assert all(1 < ino < 2**60 for ino in all_numbers)
    for path, (ino, is_directory) in before.items():
        is_directory = is_directory and not os.path.islink(tree / path)
        assert (after[path][0] == ino) is not is_directory, path


def test_a_big_file_is_read_right_everywhere(mount: Mount, source: Path, tree: Path) -> None:
    data = (source / "big").read_bytes()
    with (tree / "big").open("rb", buffering=0) as big:
        for offset in (0, 1, 4095, 4096, MIB - 1, 4 * MIB - 1, 4 * MIB + 2, 4 * MIB + 3, 9 * MIB):
            big.seek(offset)
            assert big.read(10_000) == data[offset : offset + 10_000]
    drop_caches()
    script = "import mmap,sys;f=open(sys.argv[1],'rb');m=mmap.mmap(f.fileno(),0,prot=1);"
    script += "print(len(m),m[-3:].decode())"
    assert run(sys.executable, "-c", script, tree / "big") == b"4194307 end\n"


def test_a_large_directory_survives_small_buffers_and_seeks(mount: Mount, tmp_path: Path) -> None:
    source = tmp_path / "many"
    source.mkdir()
    for number in range(3_000):
        (source / f"{number:0200d}").touch()
    made = recording.create(mount.store, "many", source).checkpoint
    where = mount.path / "trees" / "many" / made.id
    assert sorted(os.listdir(where)) == sorted(os.listdir(source))
    script = (
        "import ctypes,os,sys;c=ctypes.CDLL(None);"
        "c.opendir.restype=c.readdir.restype=ctypes.c_void_p;c.telldir.restype=ctypes.c_long;"
        "c.opendir.argtypes=[ctypes.c_char_p];"
        "c.readdir.argtypes=c.telldir.argtypes=c.closedir.argtypes=[ctypes.c_void_p];"
        "c.seekdir.argtypes=[ctypes.c_void_p,ctypes.c_long];"
        "d=c.opendir(os.fsencode(sys.argv[1]));"
        "name=lambda e: ctypes.string_at(e+19) if e else b'';"
        "seen=[];\n"
        "while True:\n"
        "  at=c.telldir(d);n=name(c.readdir(d))\n"
        "  if not n: break\n"
        "  seen.append((at,n))\n"
        "assert len({n for _,n in seen})==len(seen)>=3000,len(seen)\n"
        "for at,n in seen[::-97]:\n"
        "  c.seekdir(d,at);assert name(c.readdir(d))==n\n"
        "c.closedir(d)\n"
    )
    run(sys.executable, "-c", script, where)


# -- what changes while it is mounted -----------------------------------------------------


def test_a_checkpoint_made_while_mounted_is_there_at_once(mount: Mount, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert os.listdir(mount.path / "trees") == []
    latest = mount.path / "trees" / "ws" / "latest"
    assert not latest.exists()
    for count in range(1, 4):
        (work / "file").write_text(f"version {count}\n")
        made = recording.create(mount.store, "ws", work).checkpoint
        assert os.listdir(mount.path / "trees") == ["ws"]
        assert len(os.listdir(mount.path / "trees" / "ws")) == count + 1
        assert os.readlink(latest) == made.id
        assert (latest / "file").read_text() == f"version {count}\n"


def test_a_step_written_while_mounted_is_there_at_once(mount: Mount) -> None:
    assert os.listdir(mount.path / "threads") == []
    thread = make_thread(mount.store)
    where = mount.path / "threads" / thread.id
    assert os.listdir(mount.path / "threads") == [thread.id]
    assert (where / "status").read_text() == "running\n"
    for count in range(1, 4):
        name = f"00000{count}-planner"
        assert not (where / "steps" / name).exists()
        thread.step("planner", f"this is step {count}\n")
        assert name in os.listdir(where / "steps")
        assert (where / "steps" / name / "output.md").read_text() == f"this is step {count}\n"
        assert (where / "steps" / name / "workspace" / "hello.txt").read_text() == "hello\n"
    assert not (where / "end.json").exists()
    thread.end()
    assert (where / "status").read_text() == "succeeded\n"
    assert (where / "end.json").exists()
    found = run("grep", "-rn", "this is step 2", where / "steps").decode().splitlines()
    assert {line.split("steps/")[1] for line in found} >= {
        "000002-planner/output.md:1:this is step 2",
        "000002-planner/detail/text:1:this is step 2",
    }
    assert (where / "workflow" / "name").read_text() == "demo"
    assert (mount.path / "workflows" / "demo" / ".type").read_text() == "workflow\n"


def test_every_size_in_stat_is_true(mount: Mount) -> None:
    thread = make_thread(mount.store)
    thread.step("planner", "text", artifacts=[mount.store.put(b"artifact").hash])
    thread.end()
    count = 0
    for top, _, files in os.walk(mount.path / "threads"):
        for name in files:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                assert os.stat(path).st_size == len(Path(path).read_bytes()), path
                count += 1
    assert count > 12


# -- what is not there, damaged, or forbidden ---------------------------------------------


def test_unknown_names(mount: Mount, tree: Path) -> None:
    thread = make_thread(mount.store)
    for path in (
        "nothing", "blobs/nothing", f"blobs/{'0' * 64}", "trees/nothing", f"trees/{'0' * 64}",
        "threads/nothing", f"threads/{thread.id}/nothing", f"threads/{thread.id}/steps/000001-x",
        f"nodes/{'0' * 64}", "workflows/nothing", ".casfs/nothing", f"{tree}/nothing",
        "blobs/\udcff\udcfe",
    ):  # fmt: skip
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                os.lstat(mount.path / path)
    with pytest.raises(NotADirectoryError):
        os.lstat(tree / "big" / "inside")
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(tree / ("n" * 256))


def test_a_name_that_was_not_there_is_found_once_it_is(mount: Mount) -> None:
    data = b"put after somebody looked for it" * 100
    expected = mount.store.put(b"").hash
    assert (mount.path / "blobs" / expected).read_bytes() == b""
    blob = mount.path / "blobs" / Digest.of(data).hash
    assert not blob.exists()
    mount.store.put(data)
    assert blob.read_bytes() == data


def object_of(store: Store, source: Path) -> Path:
    hash = Digest.of(source.read_bytes()).hash
    return store.root / "objects" / hash[:2] / hash[2:]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_blob_is_an_error_on_that_file_only(
    mount: Mount, tmp_path: Path, damage: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, size in (("small", 5_000), ("large", 3 * MIB), ("good", 5_001)):
        (work / name).write_bytes(os.urandom(size))
    made = recording.create(mount.store, "ws", work).checkpoint
    where = mount.path / "trees" / "ws" / made.id
    for name in ("small", "large"):
        stored = object_of(mount.store, work / name)
        data = bytearray(stored.read_bytes())
        stored.unlink()
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        if damage == "truncated":
            data = data[: len(data) // 2]
        if damage != "missing":
            stored.write_bytes(data)
    for name in ("small", "large"):
        with pytest.raises(OSError, match="Input/output error"):
            (where / name).read_bytes()
    assert (where / "good").read_bytes() == (work / "good").read_bytes()
    assert sorted(os.listdir(where)) == ["good", "large", "small"]
    assert mount.state().starts == 1


def test_an_error_that_nobody_expected_ends_one_request(mount: Mount) -> None:
    earlier = mount.store.put_node("content", {"text": "", "artifacts": []}).hash
    intent = {"role": "planner", "index": 1, "turns": [], "earlier": earlier}  # no turnCount
    thread = make_thread(mount.store, intent=intent)
    where = mount.path / "threads" / thread.id
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            os.listdir(where / "running" / "turns")
        with pytest.raises(OSError, match="Input/output error"):
            os.lstat(where / "running" / "turns" / "x")
    assert (where / "status").read_text() == "running\n"
    assert mount.state().starts == 1


def test_many_readers_at_once(mount: Mount, tmp_path: Path) -> None:
    """The first read of a large blob leaves the serving thread; others may want it too."""
    work = tmp_path / "work"
    work.mkdir()
    for number in range(4):
        (work / f"{number}").write_bytes(os.urandom(3 * MIB + number))
    made = recording.create(mount.store, "ws", work).checkpoint
    where = mount.path / "trees" / "ws" / made.id
    readers = [
        subprocess.Popen(["cmp", work / f"{number % 4}", where / f"{number % 4}"])
        for number in range(64)
    ]
    assert [reader.wait() for reader in readers] == [0] * 64


def create(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


MUTATIONS: dict[str, Callable[[Path], object]] = {
    "create": lambda tree: create(tree / "new"),
    "open for writing": lambda tree: os.open(tree / "big", os.O_WRONLY),
    "open for appending": lambda tree: os.open(tree / "big", os.O_RDWR | os.O_APPEND),
    "truncate": lambda tree: os.truncate(tree / "big", 0),
    "mkdir": lambda tree: os.mkdir(tree / "new"),
    "rmdir": lambda tree: os.rmdir(tree / "empty"),
    "unlink": lambda tree: os.unlink(tree / "big"),
    "rename": lambda tree: os.rename(tree / "big", tree / "new"),
    "link": lambda tree: os.link(tree / "big", tree / "new"),
    "symlink": lambda tree: os.symlink("big", tree / "new"),
    "mkfifo": lambda tree: os.mkfifo(tree / "new"),
    "chmod": lambda tree: os.chmod(tree / "big", 0o600),
    "chown": lambda tree: os.chown(tree / "big", 0, 0),
    "utime": lambda tree: os.utime(tree / "big"),
    "setxattr": lambda tree: os.setxattr(tree / "big", "user.x", b"1"),
    "removexattr": lambda tree: os.removexattr(tree / "big", "user.x"),
}


def test_every_change_is_refused(mount: Mount, source: Path, tree: Path) -> None:
    for name, change in MUTATIONS.items():
        with pytest.raises(OSError, match="Read-only file system") as caught:
            change(tree)
        assert caught.value.errno == errno.EROFS, name
    assert (tree / "big").read_bytes() == (source / "big").read_bytes()


def test_no_attributes_unless_asked_for(mount: Mount, tree: Path) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="not supported"):
            os.getxattr(tree / "big", "user.blake3")
    with pytest.raises(OSError, match="not supported"):
        os.listxattr(tree)
    before = mount.requests()
    run("ls", "-l", tree)
    after = mount.requests()
    assert after.get("getxattr", 0) == before.get("getxattr", 0) <= 1


def test_a_blobs_hash_is_an_attribute_when_asked_for(xattr_mount: Mount, source: Path) -> None:
    made = recording.create(
        xattr_mount.store, "ws", source, options=recording.CreateOptions(defaults=False)
    ).checkpoint
    tree = xattr_mount.path / "trees" / "ws" / made.id
    stored = object_of(xattr_mount.store, source / "big")
    assert os.getxattr(tree / "big", "user.blake3").decode() == stored.parent.name + stored.name
    assert os.getxattr(tree, "user.blake3").decode() == made.root
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(tree / "big", "user.other")
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(xattr_mount.path, "user.blake3")


@pytest.fixture(autouse=True)
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
