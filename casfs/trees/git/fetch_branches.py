"""Fetches the branches on which a thread has committed into a repository of the person.

They get names of their own, by `git fetch` from a temporary repository that has the recorded
objects, and a configuration of ours: the recorded one may name programs. What the person has
checked out is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from casfs.digest import TreeHash
from casfs.errors import NotFound, Refused
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system.files import os_errors
from casfs.system.git_program import git
from casfs.trees import recorded_state, tree
from casfs.trees.git import repository_state
from casfs.trees.git.objects import CONFIG, FORMATS
from casfs.trees.git.repository_state import BRANCHES, GIT, HEAD, OBJECT_ID
from casfs.trees.recorded_state import RecordedState

FETCH_TIMEOUT_S = 600.0
DETACHED = b"HEAD"  # the name of a branch for commits that are on none
# A name from a repository of an agent becomes part of a command and of a file of lines.
PLAIN_NAME = re.compile(rb"[^\x00-\x20\x7f~^:?*\[\\]+\Z")
SHALLOW = b"shallow"
FETCH = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc",
    "--no-recurse-submodules", "--update-shallow",
)  # fmt: skip


class FetchedBranch(NamedTuple):
    """`name`: in the repository of the person; `commits`: that no branch there had, None where it
    was only asked what would be fetched; `private`: paths in its last commit that are private in
    the thread."""

    name: str
    tip: str
    commits: int | None
    private: list[str]


def fetch(
    store: Store,
    old: RecordedState,
    new: RecordedState,
    directory: Path,
    prefix: str,
    env: Mapping[str, str],
    *,
    check: bool = False,
) -> list[FetchedBranch]:
    """Fetches the branches of the repository in `new` that are not as in `old` to the repository
    `directory`, each as PREFIX/BRANCH. `check`: change nothing. Raises NotFound, Refused, Failed
    with git's own reason, as where such a branch has commits of the person."""
    if repository_state.read(store, new.full, GIT) is None:
        raise NotFound("nothing of a git repository is recorded of it")
    if not (directory / os.fsdecode(GIT)).exists():
        raise Refused(f"{directory} is not a git repository; run `git init` there first")
    changed = _changed_tips(store, old, new)
    names = {name: f"{prefix}/{os.fsdecode(name)}" for name in sorted(changed)}
    if check:
        return [FetchedBranch(names[name], changed[name].decode(), None, []) for name in names]

    def run(command: Sequence[str], settings: Sequence[str] = ()) -> str:
        arguments = ["-C", str(directory), *command]
        return git(arguments, env, settings=settings, timeout=FETCH_TIMEOUT_S)

    if changed:
        objects = run(["rev-parse", "--path-format=absolute", "--git-path", "objects"])
        with tempfile.TemporaryDirectory(prefix="casfs-git-") as folder:
            _write_repository(
                store, new.full, Path(folder), tips=changed, objects=objects.rstrip("\n")
            )
            refs = [f"refs/heads/{os.fsdecode(name)}:refs/heads/{names[name]}" for name in names]
            run([*FETCH, folder, *refs], settings=["fetch.fsckObjects=true"])
    private = {os.fsdecode(path) for path in recorded_state.private_files(store, new)}
    fetched = []
    for name, branch in names.items():
        tip = changed[name].decode()
        new_to_person = ["--not", f"--exclude={prefix}/*", "--branches"]
        commits = int(run(["rev-list", "--count", tip, *new_to_person]))
        files = run(["ls-tree", "-r", "-z", "--name-only", tip]).split("\0")
        fetched.append(FetchedBranch(branch, tip, commits, sorted(private.intersection(files))))
    return fetched


def has_new(store: Store, old: RecordedState, new: RecordedState) -> bool:
    """Whether there is something for `fetch`. Raises NotFound, Corrupt."""
    sides = [tree.find(store, state.full, GIT) for state in (old, new)]
    return sides[0] != sides[1] and bool(_changed_tips(store, old, new))


def _changed_tips(store: Store, old: RecordedState, new: RecordedState) -> dict[bytes, bytes]:
    return dict(_tips(store, new.full).items() - _tips(store, old.full).items())


def _tips(store: Store, root: TreeHash) -> dict[bytes, bytes]:
    """Returns the commit of each branch of the recorded repository, and of a detached HEAD."""
    state = repository_state.read(store, root, GIT)
    if state is None:
        return {}
    tips = {}
    for ref, value in state.refs.items():
        name = DETACHED if ref == HEAD else ref.removeprefix(BRANCHES)
        is_branch = ref == HEAD or ref.startswith(BRANCHES)
        if is_branch and OBJECT_ID.match(value) and PLAIN_NAME.match(name):
            tips[name] = value
    return tips


def _write_repository(
    store: Store, root: TreeHash, folder: Path, tips: Mapping[bytes, bytes], objects: str
) -> None:
    """Writes a bare repository with the recorded objects and these branches. What `objects`, the
    directory of the repository that fetches, has already is not written."""
    id_bytes = len(next(iter(tips.values()))) // 2
    recorded = repository_state.object_files(store, root, GIT)
    with os_errors(f"cannot write {folder}"):
        (folder / "refs").mkdir()
        (folder / "objects" / "info").mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/none\n")
        (folder / "config").write_text(CONFIG.format(FORMATS[id_bytes]))
        lines = [b"%b refs/heads/%b\n" % (tips[name], name) for name in sorted(tips)]
        (folder / "packed-refs").write_bytes(b"".join(lines))
        # Instead of the recorded one, which an agent may have written. A linked work tree's leads
        # to the same objects.
        alternates = folder / "objects" / "info" / "alternates"
        alternates.write_text(f"{objects}\n", errors="surrogateescape")
        for path, entry in recorded.items():
            name = os.fsdecode(path.removeprefix(GIT + b"/"))
            is_info = name.startswith("objects/info/") or not name.startswith("objects/")
            is_known = os.path.exists(os.path.join(objects, name.removeprefix("objects/")))
            if is_info or is_known or not isinstance(entry, File):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with closing(store.blobs.open(entry.digest.hash)) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        shallow = tree.find(store, root, GIT + b"/" + SHALLOW)
        if isinstance(shallow, File):
            (folder / "shallow").write_bytes(store.get(shallow.digest.hash))
