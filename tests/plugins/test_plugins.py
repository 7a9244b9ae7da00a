"""Plugins: stored once from a directory, a git repository or a tarball."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.derived import total_stored
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.maintenance import gc
from casfs.plugins import registry, sources, transfer
from casfs.plugins.transfer import Synced
from casfs.store.store import Store
from casfs.system import zstd
from casfs.trees import tree
from tests.support.helpers import LARGE, Link, Program, read_tree, write_tree
from tests.support.maintenance import age
from tests.support.programs import needs

ENV = {"PATH": os.environ.get("PATH", os.defpath)}
CONTENT = {
    "README": b"what it is\n",
    "bin": {"run": Program(b"#!/bin/sh\n"), "again": Link(b"run")},
    "dist": {"big.js": LARGE},
}


def sync(store: Store, source: str | Path, version: str = "1.0", **more: Any) -> Synced:
    return transfer.sync(store, "linter", version, str(source), ENV, **more)


def content(store: Store, done: Synced, tmp_path: Path) -> dict[bytes, Any]:
    one = done.plugin
    target = tmp_path / f"out-{one.root[:8]}"
    transfer.materialize(store, one.name, one.version, target)
    return read_tree(target)


def as_bytes(literal: Mapping[Any, Any]) -> dict[bytes, Any]:
    return {
        os.fsencode(name): as_bytes(item) if isinstance(item, dict) else item
        for name, item in literal.items()
    }


# -- directories ------------------------------------------------------------------------------


def test_a_directory(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "plugin", {**CONTENT, ".git": {"HEAD": b"ref"}})
    done = sync(store, folder)
    one = done.plugin
    assert done.stored
    assert (one.name, one.version, one.source, one.commit) == ("linter", "1.0", str(folder), None)
    assert content(store, done, tmp_path) == as_bytes(CONTENT), "all but .git, and dist too"
    head = store.heads.get("plugins/linter/1.0")
    assert head is not None
    assert head.hash == head.record["root"] == one.root
    assert set(head.record) == {"root", "source", "commit", "syncedAt", "createdAt"}
    assert registry.listing(store) == [one] == registry.listing(store, "linter")
    assert registry.listing(store, "lint") == []


def test_what_is_stored_stays_until_a_refresh(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "plugin", CONTENT)
    first = sync(store, folder)
    (folder / "README").write_text("changed\n")
    again = sync(store, folder)
    assert (again.plugin, again.stored, again.warning) == (first.plugin, False, "")
    fresh = sync(store, folder, refresh=True)
    assert fresh.stored
    assert fresh.plugin.root != first.plugin.root
    assert content(store, fresh, tmp_path)[b"README"] == b"changed\n"
    head = store.heads.get("plugins/linter/1.0")
    assert head is not None
    assert head.record["createdAt"] <= head.record["syncedAt"]


def test_another_source_for_the_same_version_is_told(store: Store, tmp_path: Path) -> None:
    first = write_tree(tmp_path / "one", CONTENT)
    other = write_tree(tmp_path / "other", {"a": b""})
    kept = sync(store, first)
    again = sync(store, other)
    assert again.plugin == kept.plugin
    assert again.warning == f"it was stored from {first}; use --refresh to take the given source"


def test_equal_content_is_stored_once(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "plugin", CONTENT)
    sync(store, folder)
    before = sum(1 for _ in store.blobs.iterate())
    second = sync(store, folder, "1.1")
    assert sum(1 for _ in store.blobs.iterate()) == before
    assert [one.version for one in registry.listing(store)] == ["1.0", "1.1"]
    assert second.plugin.root == registry.find(store, "linter", "1.0").root


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "-x", "a b", "é", "a" * 65, "ab" * 32])
def test_names_and_versions(store: Store, tmp_path: Path, bad: str) -> None:
    for name, version in ((bad, "1.0"), ("linter", bad)):
        with pytest.raises(Invalid, match="invalid plugin "):
            transfer.sync(store, name, version, str(tmp_path), ENV)
    assert registry.listing(store) == []


def test_what_is_not_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a directory, a tarball or the URL"):
        sync(store, tmp_path / "none")
    with pytest.raises(NotFound, match=r"no plugin linter 1\.0"):
        transfer.materialize(store, "linter", "1.0", tmp_path / "out")


def test_materialize_overwrites_nothing(store: Store, tmp_path: Path) -> None:
    sync(store, write_tree(tmp_path / "plugin", CONTENT))
    mine = write_tree(tmp_path / "mine", {"README": b"mine"})
    with pytest.raises(Refused):
        transfer.materialize(store, "linter", "1.0", mine)
    assert read_tree(mine) == {b"README": b"mine"}


def test_a_plugin_is_cache_and_its_use_counts(disk_store: Store, tmp_path: Path) -> None:
    for version in ("1", "2"):
        folder = write_tree(tmp_path / version, {"f": version.encode() * 9000})
        sync(disk_store, folder, version)
    transfer.materialize(disk_store, "linter", "1", tmp_path / "out")
    age(disk_store)
    total = total_stored(disk_store.blobs)
    assert gc.collect(disk_store, grace=0).evicted == [], "without a limit it stays"
    done = gc.collect(disk_store, grace=0, limits=gc.Limits(max_bytes=total.bytes - 1))
    assert done.evicted == ["plugins/linter/2"]
    assert sync(disk_store, tmp_path / "2", "2").stored


# -- git --------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    argv = ["git", "-C", str(folder), *identity, *arguments]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with a tag v1 (annotated), a light tag v0, and branch main."""
    folder = write_tree(tmp_path / "upstream", CONTENT)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message=one")
    git(folder, "tag", "v0")
    git(folder, "tag", "--annotate", "--message=one", "v1")
    return folder


def advance(upstream: Path, text: str) -> str:
    (upstream / "README").write_text(text)
    git(upstream, "commit", "--quiet", "--all", "--message=more")
    return git(upstream, "rev-parse", "HEAD")


def url(upstream: Path) -> str:
    return f"file://{upstream}"


def test_a_tag_a_branch_and_a_commit(store: Store, upstream: Path, tmp_path: Path) -> None:
    first = git(upstream, "rev-parse", "HEAD")
    second = advance(upstream, "second\n")
    for version, commit in (("v0", first), ("v1", first), ("main", second), (first, first)):
        done = sync(store, url(upstream), version)
        assert (done.stored, done.plugin.commit) == (True, commit), version
        found = content(store, done, tmp_path / version)
        assert found[b"README"] == (b"second\n" if commit == second else b"what it is\n")
        assert set(found) == {b"README", b"bin", b"dist"}, "no .git"
        assert sync(store, url(upstream), version).warning == ""
    assert len({one.root for one in registry.listing(store)}) == 2
    assert sync(store, upstream / ".git", "v1").plugin.commit == first, "a bare repository"
    assert not sources.is_git(str(upstream)), "what is in it may not be committed yet"


def test_a_moved_tag_is_reported_and_what_is_stored_stays(store: Store, upstream: Path) -> None:
    first = sync(store, url(upstream), "v1").plugin
    now = advance(upstream, "moved\n")
    assert sync(store, url(upstream), "v1").warning == "", "the branch moved, not the tag"
    git(upstream, "tag", "--force", "v1")
    again = sync(store, url(upstream), "v1")
    assert (again.plugin, again.stored) == (first, False)
    assert again.warning == (f"it has moved: was {first.commit}, is {now}; use --refresh to update")
    fresh = sync(store, url(upstream), "v1", refresh=True)
    assert (fresh.plugin.commit, fresh.warning) == (now, "")
    assert sync(store, url(upstream), "v1").warning == ""


def test_a_tag_that_is_gone_is_reported(store: Store, upstream: Path) -> None:
    first = sync(store, url(upstream), "v1").plugin
    git(upstream, "tag", "--delete", "v1")
    again = sync(store, url(upstream), "v1")
    assert (again.plugin, again.stored) == (first, False)
    assert again.warning.startswith("it no longer exists upstream: ")


def test_without_the_remote_what_is_stored_is_still_there(store: Store, upstream: Path) -> None:
    first = sync(store, url(upstream), "v1").plugin
    where = url(upstream)
    upstream.rename(upstream.with_name("gone"))
    again = sync(store, where, "v1")
    assert again.plugin == first
    assert again.warning.startswith("cannot check upstream: git: ")
    with pytest.raises(Failed, match=r"^git: "):
        sync(store, where, "v1", refresh=True)
    with pytest.raises(Failed, match=r"^git: "):
        sync(store, where, "v0")
    assert registry.listing(store) == [first]


def test_a_version_that_the_repository_does_not_have(store: Store, upstream: Path) -> None:
    with pytest.raises(NotFound, match="has no tag or branch 'v9'"):
        sync(store, url(upstream), "v9")
    with pytest.raises(Failed, match=r"^git: "):
        sync(store, url(upstream), "12" * 20)
    assert registry.listing(store) == []


def test_git_runs_no_hook_and_reads_no_repository_of_its_caller(
    store: Store, upstream: Path, tmp_path: Path
) -> None:
    template = write_tree(
        tmp_path / "template",
        {"hooks": {"post-checkout": Program(b"#!/bin/sh\ntouch %s/ran\n" % bytes(tmp_path))}},
    )
    env = {**ENV, "GIT_TEMPLATE_DIR": str(template), "GIT_DIR": str(tmp_path / "nowhere")}
    assert transfer.sync(store, "linter", "v1", url(upstream), env).stored
    assert not (tmp_path / "ran").exists()


def test_without_git(store: Store, upstream: Path) -> None:
    with pytest.raises(Failed, match="git is not installed"):
        transfer.sync(store, "linter", "v1", url(upstream), {"PATH": "/nonexistent"})


def test_a_warning_of_git_is_not_the_reason(store: Store, tmp_path: Path) -> None:
    said = b"warning: redirecting to x\nssh: no such host\nfatal: Could not read"
    script = b"#!/bin/sh\necho '%b' >&2; exit 1" % said
    folder = write_tree(tmp_path / "bin", {"git": Program(script)})
    with pytest.raises(Failed, match=r"^git: ssh: no such host$"):
        transfer.sync(store, "linter", "v1", "https://127.0.0.1:1/x.git", {"PATH": str(folder)})


def test_a_password_is_neither_kept_nor_told(store: Store) -> None:
    address = "https://user:s3cret@127.0.0.1:1/x.git"
    assert sources.without_credentials(address) == "https://127.0.0.1:1/x.git"
    assert sources.without_credentials("git@host:x.git") == "git@host:x.git"
    with pytest.raises(Failed) as caught:
        sync(store, address, "v1")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("source", ["https://h/x", "ssh://h/x", "file:///x", "git@h:x", "h:x.git"])
def test_what_is_a_remote(source: str) -> None:
    assert sources.is_git(source)


@pytest.mark.parametrize("source", [".", "./a:b", "/a/b", "a/b.tar.gz"])
def test_what_is_no_remote(source: str) -> None:
    assert not sources.is_git(source)


# -- tarballs ---------------------------------------------------------------------------------


def member(name: str, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(info, key, value)
    return info


def make_tar(path: Path, *members: tarfile.TarInfo, data: bytes = b"data") -> Path:
    """A tarball; every regular member holds `data`."""
    with tarfile.open(path, "w") as tar:
        for one in members:
            one.size = len(data) if one.isreg() else 0
            tar.addfile(one, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "ending",
    [
        "tar",
        "tar.gz",
        pytest.param("tar.bz2", marks=needs("bzip2")),
        pytest.param("tar.xz", marks=needs("xz")),
        pytest.param("tar.zst", marks=needs("zstd")),
    ],
)
@pytest.mark.parametrize("top", ["", "linter-1.0"])
def test_a_tarball(store: Store, tmp_path: Path, ending: str, top: str) -> None:
    folder = write_tree(tmp_path / "linter-1.0", {**CONTENT, "empty": {}, b"\xff": b"bytes"})
    path = tmp_path / f"plugin.{ending}"
    inner = ["linter-1.0"] if top else os.listdir(os.fsencode(folder))
    argv: list[Any] = [
        "tar",
        "--auto-compress",
        "-cf",
        path,
        "-C",
        folder.parent if top else folder,
    ]
    subprocess.run([*argv, *inner], check=True)
    done = sync(store, path)
    assert content(store, done, tmp_path) == read_tree(folder)
    by_directory = sync(store, folder, "2.0")
    assert by_directory.plugin.root == done.plugin.root


def test_dots_hard_links_and_later_members(store: Store, tmp_path: Path) -> None:
    path = make_tar(
        tmp_path / "x.tar",
        member("./"),
        member("./a", mode=0o755),
        member("./b", type=tarfile.LNKTYPE, linkname="./a"),
        member("./d/c"),
        member("./d", type=tarfile.DIRTYPE),
        member("./d/l", type=tarfile.SYMTYPE, linkname="../a"),
    )
    done = sync(store, path)
    assert content(store, done, tmp_path) == {
        b"a": Program(b"data"), b"b": Program(b"data"), b"d": {b"c": b"data", b"l": Link(b"../a")},
    }  # fmt: skip


BAD = {
    "parent": [member("../evil")],
    "inner parent": [member("a/../../evil")],
    "absolute": [member("/evil")],
    "link out": [member("l", type=tarfile.SYMTYPE, linkname="../../evil")],
    "link out of a directory": [member("d/l", type=tarfile.SYMTYPE, linkname="../../evil")],
    "absolute hard link": [member("h", type=tarfile.LNKTYPE, linkname="/good")],
    "absolute link": [member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "through a link": [member("l", type=tarfile.SYMTYPE, linkname="d"), member("l/evil")],
    "through a file": [member("f"), member("f/evil")],
    "hard link out": [member("h", type=tarfile.LNKTYPE, linkname="../evil")],
    "hard link to an empty name": [member("h", type=tarfile.LNKTYPE, linkname="")],
    "a directory and a file": [member("d/f"), member("d")],
    "hard link to nothing": [member("h", type=tarfile.LNKTYPE, linkname="none")],
    "device": [member("dev", type=tarfile.CHRTYPE)],
    "fifo": [member("fifo", type=tarfile.FIFOTYPE)],
    "too deep": [member("d/" * 300 + "f")],
}


@pytest.mark.parametrize("what", BAD)
def test_what_leads_out_is_refused(store: Store, tmp_path: Path, what: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = make_tar(tmp_path / "a" / "b" / "bad.tar", member("good"), *BAD[what])
    with pytest.raises(Invalid, match=r"bad\.tar: .*; nothing was stored"):
        sync(store, path)
    assert registry.listing(store) == []
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/evil").exists()


@pytest.mark.parametrize("cut", [0, 1, 300, 5000])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_what_is_no_whole_tarball(store: Store, tmp_path: Path, cut: int, mode: Any) -> None:
    path = tmp_path / "cut.tar"
    with tarfile.open(path, mode) as tar:
        info = member("a")
        info.size = 20_000
        tar.addfile(info, io.BytesIO(os.urandom(20_000)))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises((Invalid, Failed)) as caught:
        sync(store, path)
    assert "cut.tar" in str(caught.value)
    assert registry.listing(store) == []


def test_each_cut_of_a_zstd_tarball_is_found(store: Store, tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "x.tar", *(member(f"f{n}") for n in range(20))).read_bytes()
    path = tmp_path / "cut.tar.zst"
    with path.open("wb") as out, zstd.compressed(out) as stream:
        stream.write(whole)
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises((Invalid, Failed), match=r"cut\.tar\.zst"):
            sync(store, path)
    assert registry.listing(store) == []
    path.write_bytes(data)
    assert sync(store, path).stored


def test_an_empty_tarball_is_an_empty_tree(store: Store, tmp_path: Path) -> None:
    done = sync(store, make_tar(tmp_path / "x.tar"))
    assert tree.load(store, done.plugin.root) == {}


def test_a_tarball_is_stored_without_its_git_directories(store: Store, tmp_path: Path) -> None:
    held = write_tree(tmp_path / "held", {"f": b"1", ".git": {"HEAD": b"x"}, "sub": {".git": b"y"}})
    path = tmp_path / "plugin.tar"
    with tarfile.open(path, "w") as tar:
        for one in sorted(held.iterdir()):
            tar.add(one, one.name)
    restored = content(store, sync(store, path), tmp_path)
    assert restored == {b"f": b"1", b"sub": {b".git": b"y"}}
