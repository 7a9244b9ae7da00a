"""Regressions: work that was lost, and files outside of a worktree that were changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.workspaces import overlay_mount
from casfs.worktrees import environment, relocation
from tests.support.engine import Cli, daemon
from tests.support.strategies import able
from tests.worktrees.conftest import add, git, make_project, write


def test_a_link_in_place_of_a_copy(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = add(cli, "try", "--backend", "copy")
    worktree.rename(worktree.with_name("away"))
    worktree.symlink_to(project)
    before = sorted(path.name for path in project.iterdir())
    monkeypatch.chdir("/")
    for options in ((), ("--force",), ("--keep",)):
        assert "is a link" in cli("worktree", "rm", worktree, *options, code=4).err
    assert "is a link" in cli("worktree", "apply", worktree, code=4).err
    assert sorted(path.name for path in project.iterdir()) == before


def test_a_git_that_does_not_work_is_no_damage(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "changed\n"})
    git(worktree, "commit", "-qam", "second")
    git(worktree, "switch", "-qc", "other")
    tip = git(project, "rev-parse", "try")
    overlay_mount.unmount(worktree)
    with monkeypatch.context() as patch:
        (tmp_path / ".gitconfig").write_text("[broken\n")
        patch.setenv("HOME", str(tmp_path))
        assert "git" in cli("worktree", "list", code=1).err
    cli("worktree", "list")
    assert git(project, "rev-parse", "try") == tip
    assert git(worktree, "branch", "--show-current") == "other"


def test_a_branch_without_a_commit_stays(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    git(worktree, "stash", "-u")
    git(worktree, "switch", "-q", "--orphan", "fresh")
    overlay_mount.unmount(worktree)
    cli("worktree", "list")
    assert git(worktree, "branch", "--show-current") == "fresh"


def test_an_undone_apply_beside_a_change_of_ones_own(cli: Cli, project: Path) -> None:
    lines = [f"{number}\n" for number in range(20)]
    write(project, {"long.txt": "".join(lines)})
    worktree = add(cli, "try")
    write(worktree, {"long.txt": "".join([*lines[:-1], "theirs\n"])})
    mine = "".join(["mine\n", *lines[1:]])
    write(project, {"long.txt": mine})
    cli("worktree", "apply", "try")
    assert "theirs" in (project / "long.txt").read_text()
    cli("undo", project)
    assert (project / "long.txt").read_text() == mine
    assert "long.txt; " in cli("worktree", "rm", "try", code=4).err
    assert cli("worktree", "apply", "try", "--check").out.decode() == "M long.txt\n"


def test_relocation_follows_no_link(cli: Cli, project: Path, tmp_path: Path) -> None:
    for name, directory in (("tools", project), ("outside", tmp_path)):
        write(directory, {f"{name}/tool": f"#!{project}/.venv/bin/python\n"})
    write(project, {".venv/pyvenv.cfg": f"command = python -m venv {project}/.venv\n"})
    (project / ".venv/bin").symlink_to(project / "tools")
    (project / ".venv/lib").symlink_to(tmp_path / "outside")
    git(project, "add", "tools")
    worktree = add(cli, "try", "--relocate")
    assert str(worktree) in (worktree / ".venv/pyvenv.cfg").read_text()
    for path in (project / "tools/tool", tmp_path / "outside/tool"):
        assert path.read_text() == f"#!{project}/.venv/bin/python\n"


@pytest.mark.parametrize(
    ("text", "is_moved"),
    [
        ("/a/p", True),
        ("-I/a/p/include", True),
        ("-Wl,-rpath,/a/p/lib", True),
        ("file:///a/p", True),
        ("x='/a/p'", True),
        ("/a/p:/usr", True),
        ("/a/p+old", False),
        ("/a/p-old", False),
        ("/a/p.worktrees/x", False),
        ("/a/pé", False),
        ("/b/a/p", False),
        ("x-I/a/p", False),
        ("é/a/p", False),
    ],
)
def test_which_paths_are_the_projects(tmp_path: Path, text: str, is_moved: bool) -> None:
    write(tmp_path, {"b/CMakeCache.txt": text})
    relocation.relocate(tmp_path, b"b", Path("/a/p"))
    moved = (tmp_path / "b/CMakeCache.txt").read_text() == text.replace("/a/p", str(tmp_path))
    assert moved == is_moved


def test_a_path_with_a_blank(tmp_path: Path) -> None:
    """In an address it is quoted, elsewhere not."""
    worktree = tmp_path / "a b"
    text = "X=/a/p/x y=file:///a/p/y z=/a/p"
    write(worktree, {"b/CMakeCache.txt": text})
    relocation.relocate(worktree, b"b", Path("/a/p"))
    quoted = f"{tmp_path}/a%20b"
    expected = f"X={worktree}/x y=file://{quoted}/y z={worktree}"
    assert (worktree / "b/CMakeCache.txt").read_text() == expected
    assert [path.name for path in (worktree / "b").iterdir()] == ["CMakeCache.txt"]


def test_a_copy_after_a_power_cut(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try", "--backend", "copy")
    (project / ".git/worktrees/try/HEAD").write_text("")
    assert "do not know one another" in cli("doctor", code=1).out.decode()
    cli("worktree", "list")
    assert git(worktree, "branch", "--show-current") == "try"


def test_a_lost_branch_gets_its_own_commit(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "changed\n"})
    git(worktree, "commit", "-qam", "second")
    git(worktree, "switch", "-qc", "other", "main")
    overlay_mount.unmount(worktree)
    for name in ("worktrees/try/HEAD", "refs/heads/try"):
        (project / ".git" / name).write_text("")
    cli("worktree", "list")
    assert git(project, "log", "-1", "--format=%s", "try") == "second"


@pytest.mark.parametrize("backend", [able("erofs-overlay")])
def test_what_another_store_has_mounted_stays(
    cli: Cli, project: Path, tmp_path: Path, backend: str
) -> None:
    worktree = add(cli, "try", "--backend", backend)
    overlay_mount.unmount(worktree)
    other = tmp_path / "other"
    other.mkdir()
    (other / "theirs").write_text("")
    subprocess.run(["mount", "--bind", other, worktree], check=True)
    try:
        assert cli("worktree", "list", "--json", code=1).json[0]["state"] == "unmounted"
        cli("worktree", "rm", "try", "--force", code=4)
        assert (worktree / "theirs").exists()
    finally:
        subprocess.run(["umount", worktree], check=True)


def test_a_branch_that_was_renamed_is_not_pruned(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    git(worktree, "stash", "-u")
    git(worktree, "commit", "-q", "--allow-empty", "-m", "second")
    git(worktree, "branch", "-m", "better")
    assert "has commits of its own" in cli("worktree", "prune").out.decode()
    assert cli("worktree", "rm", "try").out.decode() == "try removed; branch better stays\n"


def test_other_work_trees_with_bytes_of_their_own(cli: Cli, project: Path) -> None:
    own = project.parent / os.fsdecode(b"\xff")
    git(project, "worktree", "add", "-q", "-b", "own", "--lock", str(own))
    (project / ".git/worktrees").joinpath(os.fsdecode(b"\xff"), "locked").write_bytes(b"\xfe")
    add(cli, "try")
    assert cli("doctor").out == b"nothing is stale\n"


def test_a_directory_of_git_that_is_anothers_now(cli: Cli, project: Path, tmp_path: Path) -> None:
    add(cli, "fix")
    shutil.rmtree(project / ".git/worktrees/fix")
    own = tmp_path / "other/fix"
    git(project, "worktree", "add", "-q", "-b", "mine", str(own))
    assert (project / ".git/worktrees/fix/gitdir").read_text() == f"{own}/.git\n"
    write(own, {"src/b.py": "mine\n"})
    git(own, "add", "-A")
    assert "another work tree" in cli("worktree", "list", code=1).err
    cli("worktree", "rm", "fix", "--force")
    assert git(own, "status", "--porcelain") == "M  src/b.py"


@pytest.mark.parametrize("backend", [able("erofs-overlay")])
def test_a_path_that_another_has(cli: Cli, project: Path, backend: str) -> None:
    path = project.parent / "there"
    first = add(cli, "a", "--path", str(path), "--backend", backend)
    write(first, {"src/b.py": "staged\n"})
    git(first, "add", "-A")
    overlay_mount.unmount(first)
    path.rmdir()
    assert "is a workspace already" in cli("worktree", "add", "b", "--path", path, code=4).err
    cli("worktree", "list")  # and makes the directory again
    assert "M  src/b.py" in git(first, "status", "--porcelain")
    assert git(project, "branch", "--list", "b") == ""


def test_what_another_store_has_is_left_alone(cli: Cli, project: Path, tmp_path: Path) -> None:
    worktree = add(cli, "try")
    overlay_mount.unmount(worktree)
    worktree.rmdir()  # as it is in a container that sees the repository alone
    casfs = [sys.executable, "-m", "casfs", "--store", str(tmp_path / "second")]
    subprocess.run([*casfs, "init"], check=True, capture_output=True)
    done = subprocess.run([*casfs, "worktree", "add", "try"], capture_output=True, text=True)
    assert done.returncode != 0
    cli("worktree", "list")
    assert git(worktree, "status", "--porcelain") == git(project, "status", "--porcelain")


def test_what_is_staged_alone(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "staged\n"})
    git(worktree, "add", "src/b.py")
    write(worktree, {"src/b.py": "b\n"})
    assert git(worktree, "status", "--porcelain", "src/b.py") == "MM src/b.py"
    assert "src/b.py; " in cli("worktree", "rm", "try", code=4).err
    git(worktree, "reset", "-q", "src/b.py")
    cli("worktree", "rm", "try")


def test_what_is_staged_in_the_project_is_not_lost(cli: Cli, project: Path) -> None:
    write(project, {"src/b.py": "staged\n"})
    git(project, "add", "src/b.py")
    write(project, {"src/b.py": "b\n"})
    add(cli, "try")
    cli("worktree", "rm", "try")


def test_worktreeinclude_with_a_submodule(cli: Cli, project: Path, tmp_path: Path) -> None:
    library = make_project(tmp_path / "library")
    allow = ("-c", "protocol.file.allow=always")
    git(project, *allow, "submodule", "add", "-q", str(library), "lib")
    write(project, {".worktreeinclude": ".env\n", "other.log": "1", "lib/made.log": "1"})
    worktree = add(cli, "try")
    assert not (worktree / "other.log").exists()
    assert (worktree / "lib/made.log").exists()
    assert (worktree / ".env").exists()


@pytest.mark.parametrize(
    ("text", "overlay", "expected"),
    [
        ("A=1\fB=2\n", "C=3\n", "A=1\fB=2\nC=3\n"),
        ("A=1\r\nB=2\r\n", "A=3\n", "A=3\nB=2\r\n"),
        ('KEY="a\nPORT=no\n"\nPORT=1\n', "PORT=2\n", 'KEY="a\nPORT=no\n"\nPORT=2\n'),
        ("KEY='a\nb'\nX=1\n", "KEY=c\n", "KEY=c\nX=1\n"),
        ('A="x\\"y"\nB=1\n', "B=2\n", 'A="x\\"y"\nB=2\n'),
        ("A=1", "B=2", "A=1\nB=2\n"),
        ('A="open\nB=1\n', "C=1\n", 'A="open\nB=1\nC=1\n'),
        ("export A=1\n# A=2\n", "A=3\n", "A=3\n# A=2\n"),
    ],
)
def test_the_merge_of_an_env(text: str, overlay: str, expected: str) -> None:
    assert environment.merged(text, overlay) == expected


@pytest.mark.parametrize("kind", ["fifo", "link", "repository"])
def test_what_is_put_in_place_of_its_git_file(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    worktree = add(cli, "try")
    (worktree / ".git").unlink()
    if kind == "fifo":
        os.mkfifo(worktree / ".git")
    elif kind == "link":
        (worktree / ".git").symlink_to("/dev/zero")
    else:
        git(worktree, "init", "-q")
    monkeypatch.chdir(worktree)
    assert "leads to another repository" in cli("worktree", "add", "second", code=4).err
    monkeypatch.chdir(project)
    (item,) = cli("doctor", "--json", code=1).json["stale"]
    assert "do not know one another" in item["problem"]
    if kind == "repository":
        assert "Is a directory" in cli("worktree", "list", code=1).err
    else:
        cli("worktree", "list")
        assert git(worktree, "branch", "--show-current") == "try"


@pytest.mark.parametrize("backend", [able("erofs-overlay")])
def test_an_environment_that_is_not_utf8(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", os.fsdecode(b"\xe9"))
    with daemon(cli.root):
        assert (add(cli, "try") / "src/b.py").exists()


def test_what_a_daemon_says_of_git_is_said(cli: Cli, project: Path) -> None:
    with daemon(cli.root):
        error = cli("worktree", "add", "c", "--branch", "a..b", code=1).err
    assert "is not a valid branch name" in error
    assert re.match(r"casfs: git: ", error)
