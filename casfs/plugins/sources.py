"""Stores the tree of a plugin's source: a directory, a git repository or a tarball.

A directory is stored whole, except `.git`. Git is the system's own: one commit is fetched
without its history, without hooks, submodules or prompts. A tarball never touches
the file system: its members become nodes, checked by the rules of tarfile's `data` filter (no
absolute names, no path that leads out, no devices), which Debian 12's Python lacks, and again as
every tree is.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit, urlunsplit

from casfs.digest import TreeDigest, TreeHash
from casfs.errors import Corrupt, Failed, Invalid, NotFound
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import tarballs, zstd
from casfs.system.git_program import QUERY_TIMEOUT_S, git
from casfs.trees import tree
from casfs.trees.snapshot import policy, walker, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.properties import mode_properties
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

GIT_FOLDER = b".git"
WITHOUT_GIT = IgnoreRules(GIT_FOLDER + b"/")
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z0-9._-]+(@[A-Za-z0-9._-]+)?:(?!/?/)")
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
GIT_UMASK = 0o022  # a commit is the same tree on every machine
GIT_FETCH_TIMEOUT_S = 1800.0
SAFE_SETTINGS = ("core.autocrlf=false", "advice.detachedHead=false")
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
OWN = b""  # no name: the properties of a directory itself
Level = dict[bytes, "Entry | Level | Properties | None"]


def is_git(source: str) -> bool:
    """Is a source a URL, host:path or bare repository? A directory with a `.git` is not."""
    path = Path(source)
    bare = all((path / name).exists() for name in ("HEAD", "objects", "refs"))
    return bare or (REMOTE.match(source) is not None and not path.exists())


def store_source(
    store: Store, batch: Batch, source: Path, options: SnapshotOptions, report: SnapshotReport
) -> TreeHash:
    """Stores a directory, without what is private in it, or a tarball; returns its tree, once the
    batch is committed. Raises NotFound, Invalid, Failed."""
    if source.is_dir():
        options.scanner = policy.load(store).scanner()
        full = walker.snapshot(batch, source, rules=WITHOUT_GIT, report=report, options=options)
        return working_tree.divide(
            store, batch, full=full.dated, directory=source, report=report
        ).tree
    if not source.exists():
        raise NotFound(f"{source} is not a directory, a tarball or the URL of a git repository")
    return _tarball(batch, source).hash


def without_credentials(source: str) -> str:
    """Returns a source without the user name and password of its URL, as it is recorded."""
    parts = urlsplit(source) if "://" in source else None
    if parts is None or "@" not in parts.netloc:
        return source
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# -- git --------------------------------------------------------------------------------------


def upstream(url: str, version: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Returns (ref to fetch, its commit) for a tag, a branch or a full commit hash. Raises NotFound
    where the repository has no such version, Failed on git errors."""
    tag = f"refs/tags/{version}"
    branch = f"refs/heads/{version}"
    output = _git(["ls-remote", "--", url, tag, f"{tag}^{{}}", branch], env, QUERY_TIMEOUT_S)
    refs = {name: commit for commit, name in (line.split("\t") for line in output.splitlines())}
    if tag in refs:
        return tag, refs.get(f"{tag}^{{}}", refs[tag])
    if branch in refs:
        return branch, refs[branch]
    if COMMIT.match(version):
        return version, version
    raise NotFound(f"{without_credentials(url)} has no tag or branch {version!r}")


@contextmanager
def checkout(url: str, ref: str, env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Checks out `ref`; yields (a temporary directory, the commit). Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="casfs-git-") as private:
        folder = os.path.join(private, "tree")  # whose mode is the ordinary one
        os.mkdir(folder)
        os.chmod(folder, 0o755)
        folder_options = ["-C", folder]
        _git([*folder_options, "init", "--quiet", "--template="], env, QUERY_TIMEOUT_S)
        fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules"]
        _git([*folder_options, *fetch, "--", url, ref], env, GIT_FETCH_TIMEOUT_S)
        _git(
            [*folder_options, "checkout", "--quiet", "--detach", "FETCH_HEAD"],
            env,
            GIT_FETCH_TIMEOUT_S,
        )
        yield (
            Path(folder),
            _git([*folder_options, "rev-parse", "HEAD"], env, QUERY_TIMEOUT_S).strip(),
        )


def _git(arguments: list[str], env: Mapping[str, str], timeout: float) -> str:
    try:
        return git(arguments, env, settings=SAFE_SETTINGS, timeout=timeout, umask=GIT_UMASK)
    except Failed as error:
        line = str(error)
        for argument in arguments:  # hide passwords in URLs
            line = line.replace(argument, without_credentials(argument))
        raise Failed(line) from None


# -- tarballs ---------------------------------------------------------------------------------


def _tarball(batch: Batch, path: Path) -> TreeDigest:
    top: Level = {}
    try:
        with _opened(path) as tar:
            for member in tar:
                _add(batch, tar, member=member, top=top)
            tarballs.read_to_end(tar)
    except Invalid as error:
        raise Invalid(f"{path}: {error}; nothing was stored") from None
    except DAMAGED as error:
        raise Invalid(
            f"{path}: not a complete tarball (tar, gz, bz2, xz or zst): {error}"
        ) from None
    except Corrupt as error:
        raise Invalid(f"not a complete tarball: {error}") from None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror or error}") from None
    names = [name for name in top if name != OWN]
    inner = top[names[0]] if len(names) == 1 else None
    return _encode(batch, inner if isinstance(inner, dict) else top)


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tarball: zstd as a stream, else with the compression that tarfile detects."""
    with zstd.opened(path) as stream:
        mode: Any = "r:*" if isinstance(stream, io.BufferedReader) else "r|"
        with tarfile.open(
            fileobj=stream,
            mode=mode,
            encoding="utf-8",
            errors="surrogateescape",
            tarinfo=tarballs.Member,
        ) as tar:
            yield tar


def _add(batch: Batch, tar: tarfile.TarFile, member: tarfile.TarInfo, top: Level) -> None:
    _check(member)
    parts = tree.split_path(os.fsencode(member.name))
    if not parts and member.isdir():
        top[OWN] = mode_properties(stat.S_IFDIR | member.mode)
    if not parts or GIT_FOLDER in (parts if member.isdir() else parts[:-1]):
        return
    if len(parts) > walker.MAX_DEPTH:
        raise Invalid(f"{parts[0]!r} is more than {walker.MAX_DEPTH} directories deep")
    level = _level(top, parts[:-1])
    if member.isdir():
        inner = _level(level, parts[-1:])
        inner[OWN] = mode_properties(stat.S_IFDIR | member.mode)
    elif isinstance(level.get(parts[-1]), dict):
        raise Invalid(f"{parts[-1]!r} is a directory and something else")
    elif member.issym():
        level[parts[-1]] = Symlink(parts[-1], os.fsencode(member.linkname))
    elif member.islnk():
        level[parts[-1]] = _linked(top, member, parts[-1])
    else:
        content = tar.extractfile(member)
        assert content is not None
        digest = batch.put_stream(cast(BinaryIO, content))
        own = mode_properties(stat.S_IFREG | member.mode)
        level[parts[-1]] = File(
            parts[-1], digest, executable=bool(member.mode & 0o100), properties=own
        )


def _check(member: tarfile.TarInfo) -> None:
    """Raises Invalid where extracting the member could write outside the directory, or make
    something else than a file, a directory or a link."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise Invalid(f"the member {member.name!r} is a device, a pipe or of unknown type")
    paths = [member.name]
    if member.issym():
        paths.append(os.path.join(os.path.dirname(member.name), member.linkname))
    elif member.islnk():
        paths.append(member.linkname)
    for path in paths:
        if os.path.isabs(path):
            raise Invalid(f"the member {member.name!r} has an absolute path")
        if os.path.normpath(path).split("/")[0] == "..":
            raise Invalid(f"the member {member.name!r} leads outside the tarball")


def _level(top: Level, parts: list[bytes]) -> Level:
    for part in parts:
        below = top.setdefault(part, {})
        if not isinstance(below, dict):
            raise Invalid(f"{part!r} is a directory and something else")
        top = below
    return top


def _linked(top: Level, member: tarfile.TarInfo, name: bytes) -> Entry:
    """Returns an entry for a hard link, which must name an earlier file."""
    target = tree.split_path(os.fsencode(member.linkname))
    entry = _level(top, target[:-1]).get(target[-1]) if target else None
    if not isinstance(entry, File):
        raise Invalid(
            f"the member {member.name!r} links to {member.linkname!r}, which is not an earlier file"
        )
    return File(name, entry.digest, executable=entry.executable, properties=entry.properties)


def _encode(batch: Batch, level: Level) -> TreeDigest:
    own = level.pop(OWN, None)
    assert own is None or isinstance(own, Properties)
    entries = [
        Subdirectory(name, _encode(batch, item)) if isinstance(item, dict) else item
        for name, item in level.items()
        if item is not None and not isinstance(item, Properties)
    ]
    return batch.put_directory(directory.encode(entries, own))
