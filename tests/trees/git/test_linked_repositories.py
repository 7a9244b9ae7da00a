"""A copy of a linked work tree, or of a submodule, has a repository of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git import linked_repositories
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import restore
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport
from tests.support.engine import Cli

WHO = {f"GIT_{who}_{what}": "me@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(place: Path, *words: str) -> str:
    env = {**os.environ, **WHO, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nowhere"}
    command = ["git", "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def repository(place: Path, *options: str) -> Path:
    place.mkdir()
    git(place, "init", "-q", "-b", "main", *options)
    for name in ("a", "b"):
        (place / name).write_text(f"{name}\n")
        git(place, "add", ".")
        git(place, "commit", "-qm", name)
    git(place, "tag", "v1")
    return place


def changed(place: Path) -> Path:
    """With a staged file, a changed one and a new one."""
    (place / "a").write_text("staged\n")
    git(place, "add", "a")
    (place / "b").write_text("changed\n")
    (place / "new").write_text("new\n")
    return place


@pytest.fixture(params=["sha1", "sha256", "packed", "detached", "submodule"])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A work tree whose `.git` is a file."""
    options = ["--object-format=sha256"] if request.param == "sha256" else []
    main = repository(tmp_path / "main", *options)
    if request.param == "submodule":
        above = repository(tmp_path / "above")
        git(above, "submodule", "add", "-q", str(main), "sub")
        return changed(above / "sub")
    if request.param == "packed":
        git(main, "pack-refs", "--all")
        git(main, "gc", "-q")
    made = tmp_path / "linked"
    how = ["--detach"] if request.param == "detached" else ["-b", "side"]
    git(main, "worktree", "add", "-q", *how, str(made))
    return changed(made)


def copied(store: Store, place: Path, target: Path) -> RecordedState:
    """The state of `place` as a thread takes it, restored."""
    report = SnapshotReport()
    with store.batch() as batch:
        full = walker.snapshot(batch, place, IgnoreRules(), report).dated
        batch.commit()
        state = RecordedState.of_tree(full)
        state, left_out = linked_repositories.replaced(store, batch, state, place, report.git_files)
    assert left_out == []
    restore(store, state, target)
    return state


def test_it_is_as_the_work_tree_is(disk_store: Store, linked: Path, tmp_path: Path) -> None:
    state = copied(disk_store, linked, tmp_path / "copy")
    assert tree.find(disk_store, TreeHash(state.tree), b".git") is None
    for words in (
        ["status", "--porcelain=v2", "--untracked-files"],
        ["log", "--format=%H %D", "--all"],
        ["diff"],
        ["diff", "--cached"],
        ["show-ref"],
    ):
        assert git(tmp_path / "copy", *words) == git(linked, *words), words
    git(tmp_path / "copy", "fsck", "--strict")


def test_what_is_done_in_it_stays_in_it(disk_store: Store, linked: Path, tmp_path: Path) -> None:
    copied(disk_store, linked, tmp_path / "copy")
    asked = (["show-ref", "--head"], ["status", "--porcelain=v2"], ["stash", "list"])
    before = [git(linked, *words) for words in asked]
    copy = tmp_path / "copy"
    git(copy, "commit", "-qam", "of the copy")
    git(copy, "tag", "mine")
    (copy / "a").write_text("more\n")
    git(copy, "stash", "-q")
    git(copy, "checkout", "-qb", "another")
    git(copy, "gc", "-q", "--prune=now")
    assert [git(linked, *words) for words in asked] == before
    git(linked, "fsck")


def test_one_that_cannot_be_read_is_left_out(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    place.mkdir()
    for pointer in ("gitdir: /nowhere/at/all\n", "", "gitdir:\n", "x" * 9000):
        (place / ".git").write_text(pointer)
        report = SnapshotReport()
        with disk_store.batch() as batch:
            full = walker.snapshot(batch, place, IgnoreRules(), report).dated
            batch.commit()
            state = RecordedState.of_tree(full)
            found, left_out = linked_repositories.replaced(
                disk_store, batch, state, place, report.git_files
            )
        assert left_out == [b".git"]
        assert tree.find(disk_store, found.full, b".git") is None


def test_a_run_moves_no_branch_of_the_person(cli: Cli, tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    before = git(main, "show-ref")
    script = tmp_path / "agent.sh"
    script.write_text(
        "echo more >>a; git -c user.name=x -c user.email=x@x commit -qam agent && git log --oneline"
    )
    try:
        said = cli("run", "--apply", f"command:sh {script}", "Commit.", tmp_path / "linked").text
    finally:
        cli("daemon", "stop")
    assert "agent" in said
    assert git(main, "show-ref") == before
    assert (tmp_path / "linked/a").read_text() == "a\nmore\n"
    assert git(tmp_path / "linked", "status", "--porcelain") == " M a\n"
