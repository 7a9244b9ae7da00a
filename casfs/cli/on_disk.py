"""Paths on disk that stand for what the newest checkpoint of their directory has there."""

from __future__ import annotations

import os
from pathlib import Path

from casfs.checkpoints.checkpoint import head_name
from casfs.checkpoints.revisions import resolve_entry
from casfs.cli.output import warn
from casfs.digest import hash_stream
from casfs.errors import CasfsError, NotFound
from casfs.history.versions import Place, find
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.threads import sessions
from casfs.trees.restore.target import Target, absolute


def find_place(store: Store, text: str) -> tuple[Place, bytes]:
    """As `find`; where that names nothing, `text` may be a path on disk."""
    try:
        return find(store, text)
    except NotFound as error:
        return find(store, revision(store, text, error, may_be_gone=True))


def revision(store: Store, text: str, error: CasfsError, *, may_be_gone: bool = False) -> str:
    """Returns the REV:PATH of a path in a tracked directory, and warns if the file there differs.
    Raises NotFound if no tracked directory has it; `error` if the path does not exist, unless it
    may be gone from such a directory."""
    path = absolute(Path(text))
    # What has a colon is meant as REV:PATH.
    if not os.path.lexists(path) and (":" in text or not may_be_gone):
        raise error
    for above in filter(os.path.isdir, (path, *path.parents)):
        name = Target(store, above).recorded_as()
        if name:
            bare_name, _, id = name.partition("@")
            if store.heads.get(head_name(bare_name, id)) is None:
                name = bare_name  # that checkpoint was removed: the newest of its name is nearest
            rev_path = f"{name}:{path.relative_to(above)}"
            _warn_if_changed(store, text, path, rev_path)
            return rev_path
        # Of an attached agent: its last session in a directory above has the newest tree.
        if (thread := sessions.last_in(store, str(above))) is not None:
            rev_path = f"{thread.id}:{path.relative_to(above)}"
            _warn_if_changed(store, text, path, rev_path)
            return rev_path
    if not os.path.lexists(path):
        raise error
    raise NotFound(f"{text} is in no directory that has a checkpoint; give REV:PATH") from None


def _warn_if_changed(store: Store, text: str, path: Path, rev_path: str) -> None:
    if not os.path.lexists(path):
        return
    name = rev_path.partition(":")[0]
    entry = resolve_entry(store, rev_path)[2]
    if isinstance(entry, File) and _hash(path) != entry.digest.hash:
        warn(f"{text} was changed since {name}, which is shown")


def _hash(path: Path) -> str | None:
    """Returns the hash of a file, None of what cannot be read as one."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as source:
            return hash_stream(source).hash
    except OSError:
        return None
