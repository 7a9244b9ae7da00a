"""Gives a copy of a linked work tree, or of a submodule, a repository of its own.

Their `.git` is a file that names the repository, which is elsewhere. Copied as it is, git in the
copy would move branches and the index of the person who works there. The repository that is made
here has the same HEAD, refs and index, and borrows the objects (`objects/info/alternates`); what is
committed in the copy stays in the copy. It is made without git, as `git_index` reads the index:
git runs programs that a repository's configuration names.

Format: Documentation/gitrepository-layout of git. Refs in a `reftable` are not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from casfs.digest import TreeDigest
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import dated, edit
from casfs.trees.git.index import GIT, pointed_to
from casfs.trees.recorded_state import RecordedState

HASH = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
SHA256 = re.compile(rb"^\s*objectformat\s*=\s*sha256\s*$", re.IGNORECASE | re.MULTILINE)
CONFIG = b"[core]\n\trepositoryformatversion = %d\n\tbare = false\n\tlogallrefupdates = true\n"
EXTENSIONS = b"[extensions]\n\tobjectformat = sha256\n"
COPIED = ("index", "sharedindex.*")  # from the work tree's own directory


def replaced(
    store: Store, batch: Batch, state: RecordedState, top: Path, git_files: Iterable[bytes]
) -> tuple[RecordedState, list[bytes]]:
    """Returns the state of the directory `top` with a repository in place of each of its `.git`
    files, which is not work; and those that are left out, since what they name cannot be read."""
    repositories: dict[bytes, Entry | None] = {}
    batch.begin_local()
    for path in git_files:
        repository = own_repository(store, batch, (top / os.fsdecode(path)).parent)
        repositories[path] = repository and Subdirectory(os.fsencode(GIT), repository)
    if not repositories:
        batch.settle(())
        return state, []
    batch.commit()
    gone: dict[bytes, Entry | None] = dict.fromkeys(repositories)
    work = edit.with_entries(store, batch, root=state.tree, changes=gone, keep_empty=True).hash
    full = edit.with_entries(
        store, batch, root=state.full, changes=repositories, keep_empty=True
    ).hash
    batch.commit()
    new_state = RecordedState(
        work,
        full,
        times=dated.times_for(store, batch, tree=work, source=state.work),
        local_times=dated.times_for(store, batch, tree=full, source=state.whole),
    )
    batch.settle(filter(None, new_state.work))
    return new_state, [path for path, entry in repositories.items() if entry is None]


def own_repository(store: Store, batch: Batch, work_tree: Path) -> TreeDigest | None:
    """Stores the directory that takes the place of the `.git` file of a work tree; None where what
    it names cannot be read."""
    try:
        private = pointed_to(work_tree / GIT)
        shared = _shared_directory(private)
        if (shared / "reftable").exists():
            return None
        objects = os.fsencode(os.path.realpath(shared / "objects"))
        if not os.path.isdir(objects) or b"\n" in objects:
            return None
        refs, symbolic = _refs(shared)
        lines = [b"%b %b\n" % (refs[name], name) for name in sorted(refs)]
        files = symbolic | {
            b"HEAD": (private / "HEAD").read_bytes(),
            b"config": _config(shared),
            b"objects/info/alternates": objects + b"\n",
            b"packed-refs": b"".join(lines),
        }
        if (shared / "shallow").exists():
            files[b"shallow"] = (shared / "shallow").read_bytes()
        digests = {path: batch.put(content) for path, content in files.items()}
        for path in (copied_path for pattern in COPIED for copied_path in private.glob(pattern)):
            with path.open("rb") as source:
                digests[os.fsencode(path.name)] = batch.put_stream(source)
    except (OSError, ValueError):
        return None
    entries: dict[bytes, Entry | None] = {
        path: File(path.rpartition(b"/")[2], digest, executable=False)
        for path, digest in digests.items()
    }
    if not symbolic:  # git wants the directory
        entries[b"refs"] = Subdirectory(b"refs", batch.put_directory(directory.encode([])))
    return edit.with_entries(store, batch, root=None, changes=entries)


def _shared_directory(private: Path) -> Path:
    """Returns what all work trees of the repository share. Raises OSError."""
    try:
        return private / os.fsdecode((private / "commondir").read_bytes().strip())
    except FileNotFoundError:  # a submodule
        return private


def _config(shared: Path) -> bytes:
    """Only what git needs to read it: the rest names programs, remotes and their passwords."""
    is_sha256 = SHA256.search((shared / "config").read_bytes()) is not None
    return CONFIG % is_sha256 + EXTENSIONS * is_sha256


def _refs(shared: Path) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Returns the hash of each ref, and the content of each symbolic one, by name. Raises OSError,
    ValueError."""
    refs: dict[bytes, bytes] = {}
    symbolic: dict[bytes, bytes] = {}
    if (shared / "packed-refs").exists():
        for line in (shared / "packed-refs").read_bytes().splitlines():
            if not line.startswith((b"#", b"^")):
                hash, name = line.split(b" ", 1)
                refs[name] = hash
    for path in (shared / "refs").rglob("*"):
        if path.is_file():
            name = os.fsencode(path.relative_to(shared))
            content = path.read_bytes()
            if HASH.fullmatch(content.strip()):
                refs[name] = content.strip()
            elif content.startswith(b"ref: "):
                symbolic[name] = content
    return refs, symbolic
