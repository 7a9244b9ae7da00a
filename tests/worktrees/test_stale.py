"""`casfs doctor`: what is stale, and that what it says mends it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casfs.cli import implicit_mount
from casfs.store.store import Store
from casfs.workspaces import overlay_mount, registry
from tests.support.engine import Cli
from tests.support.strategies import able
from tests.worktrees.conftest import add, git, kill_servers, write


def stale(cli: Cli) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = cli("doctor", "--json", code=1).json["stale"]
    return listed


def mended(cli: Cli, remedy: str) -> None:
    if remedy.startswith("casfs "):
        cli(*shlex.split(remedy)[1:])
    else:
        subprocess.run(["sh", "-c", remedy], check=True)
    assert cli("doctor").out.decode() == "nothing is stale\n"


@pytest.mark.parametrize("backend", [able("erofs-overlay"), able("fuse-overlayfs")])
def test_an_unmounted_one(cli: Cli, project: Path, backend: str) -> None:
    worktree = add(cli, "try", "--backend", backend)
    assert cli("doctor", "--json").json == {"stale": []}
    overlay_mount.unmount(worktree)
    (item,) = stale(cli)
    assert (item["kind"], item["path"], item["problem"]) == (
        "worktree",
        str(worktree),
        "not mounted",
    )
    mended(cli, item["remedy"])
    assert (worktree / "src/b.py").exists()


def test_a_project_that_is_gone(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(cli, "try")
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(project)
    (item,) = stale(cli)
    assert "is gone" in item["problem"]
    mended(cli, item["remedy"])
    assert not (tmp_path / "project.worktrees").exists()


def test_git_does_not_know_it(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "mine\n"})
    git(worktree, "commit", "-qam", "second")
    write(worktree, {"later.txt": "1"})
    git(project, "worktree", "unlock", str(worktree))
    shutil.rmtree(project / ".git/worktrees/try")
    (item,) = stale(cli)
    assert "do not know one another" in item["problem"]
    mended(cli, item["remedy"])
    assert git(worktree, "status", "--porcelain") == "?? later.txt\n?? src/new.py"
    assert git(worktree, "log", "--format=%s", "try") == "second\nfirst"


def test_what_a_power_cut_leaves_empty(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    overlay_mount.unmount(worktree)
    for path in (project / ".git/worktrees/try").iterdir():
        if path.is_file():
            path.write_text("")
    (project / ".git/refs/heads/try").write_text("")
    said = cli("worktree", "list").err
    assert "is on branch try" in said
    assert "staged" in said
    assert git(worktree, "log", "--format=%s", "try") == "first"
    assert " M src/a.py" in git(worktree, "status", "--porcelain")
    assert git(project, "fsck") == ""
    assert cli("worktree", "list").err == ""


def test_a_git_file_that_leads_elsewhere(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    (worktree / ".git").write_text("gitdir: /nowhere\n")
    (item,) = stale(cli)
    mended(cli, item["remedy"])
    assert git(worktree, "branch", "--show-current") == "try"


@pytest.mark.parametrize("backend", [able("erofs-overlay")])
def test_a_folder_of_the_store_that_is_gone(cli: Cli, project: Path, backend: str) -> None:
    worktree = add(cli, "try", "--backend", backend)
    overlay_mount.unmount(worktree)
    shutil.rmtree(cli.root / "workspaces")
    (item,) = stale(cli)
    assert item["problem"] == "what was written in it is gone from the store"
    mended(cli, item["remedy"])


def test_what_git_alone_has(cli: Cli, project: Path) -> None:
    first, second = add(cli, "a"), add(cli, "b")
    overlay_mount.unmount(first)
    # As a store is that was made again from an earlier copy.
    with Store.open(cli.root) as store:
        workspace = registry.find(store, first)
        registry.swap(store, workspace.id, old=workspace.head, new=None)
    (item,) = stale(cli)
    assert (item["kind"], item["path"]) == ("git", os.fspath(first))
    mended(cli, item["remedy"])
    assert "project.worktrees/a" not in git(project, "worktree", "list")
    assert git(second, "status", "--porcelain") == git(project, "status", "--porcelain")


@pytest.mark.parametrize("backend", [able("erofs-overlay"), able("overlay")])
def test_a_plain_workspace_and_a_dead_mount(
    cli: Cli, project: Path, tmp_path: Path, backend: str
) -> None:
    cli("checkpoint", "create", "work", project)
    directory = tmp_path / "a space"
    cli("workspace", "open", "work", directory, "--backend", backend)
    write(directory, {"later.txt": "1"})
    if backend == "overlay":
        kill_servers(implicit_mount.mount_point(cli.root, os.environ))
        kinds = [item["kind"] for item in stale(cli)]
        assert kinds == ["mount", "workspace"]
        cli(*shlex.split(stale(cli)[0]["remedy"])[1:])
    else:
        overlay_mount.unmount(directory)
    (item,) = stale(cli)
    mended(cli, item["remedy"])
    assert (directory / "later.txt").read_text() == "1"
