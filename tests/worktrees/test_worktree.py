"""Worktrees of real projects in git: what they begin with, what stays apart, what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.workspaces import overlay_mount, registry
from tests.support.engine import Cli
from tests.support.strategies import able
from tests.worktrees.conftest import add, age, git, make_project, write

BACKENDS = [able("erofs-overlay"), able("overlay"), able("fuse-overlayfs"), able("copy")]
STATUS = ("status", "--porcelain", "--ignored", "-uall")


def holding(directory: Path) -> dict[str, tuple[int, int, str]]:
    """The mode, time and content of each file and link, but for git's."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if name.parts[0] != ".git" and (path.is_symlink() or not path.is_dir()):
            status = path.lstat()
            text = os.readlink(path) if path.is_symlink() else path.read_text()
            files[str(name)] = (status.st_mode, status.st_mtime_ns, text)
    return files


def own_state(project: Path) -> tuple[object, ...]:
    """What nothing in a worktree may change."""
    return (
        (project / ".git/index").read_bytes(),
        (project / ".git/HEAD").read_text(),
        git(project, "rev-parse", "main"),
        holding(project),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_as_the_project(cli: Cli, project: Path, backend: str) -> None:
    before = own_state(project)
    worktree = add(cli, "try", "--backend", backend)
    assert worktree == project.parent / "project.worktrees/try"
    assert holding(worktree) == holding(project)
    assert git(worktree, *STATUS) == git(project, *STATUS)
    assert git(worktree, "branch", "--show-current") == "try"
    # What is committed, added and deleted in it is seen in it, and in the repository.
    write(worktree, {"src/b.py": "changed\n", ".env": "KEY=other\n", "node_modules/x.js": "x"})
    git(worktree, "commit", "-qam", "second")
    git(worktree, "stash", "-u")
    git(worktree, "reset", "-q", "--hard", "HEAD~1")
    git(worktree, "clean", "-fdxq")
    git(worktree, "rebase", "-q", "main")
    assert not (worktree / "node_modules").exists()
    assert own_state(project) == before
    assert git(project, "fsck") == ""
    assert git(project, "stash", "list") != ""  # of all worktrees, as the docs say
    cli("worktree", "rm", "try", "--force")
    assert not worktree.parent.exists()
    assert git(project, "worktree", "list").count("\n") == 0
    assert git(project, "branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize(
    "prepare",
    [
        ("status",),
        ("update-index", "--index-version", "4"),
        ("update-index", "--untracked-cache"),
        ("update-index", "--split-index"),
        ("update-index", "--assume-unchanged", "src/b.py"),
        ("add", "-N", "src/new.py"),
    ],
    ids=lambda prepare: " ".join(prepare),
)
def test_git_reads_no_file_again(cli: Cli, project: Path, prepare: tuple[str, ...]) -> None:
    """`diff-files` trusts the stats of the index alone."""
    age(project)
    git(project, "status")
    git(project, *prepare)
    worktree = add(cli, "try")
    assert git(worktree, "diff-files", "--name-only") == git(project, "diff-files", "--name-only")
    assert git(worktree, *STATUS) == git(project, *STATUS)
    write(worktree, {"src/b.py": "B\n"})
    assert "src/b.py" in git(worktree, "ls-files", "-m") or "assume" in prepare[1]
    git(worktree, "fsck")


def test_a_repository_of_sha256(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path / "wide", "--object-format=sha256")
    age(project)
    git(project, "status")
    monkeypatch.chdir(project)
    worktree = add(cli, "try")
    assert git(worktree, "diff-files", "--name-only") == git(project, "diff-files", "--name-only")
    assert git(worktree, *STATUS) == git(project, *STATUS)


def test_a_file_that_was_changed_unseen_is_read(cli: Cli, project: Path) -> None:
    """With its size and time of before only the time of its change tells."""
    path = project / "src/b.py"
    status = path.stat()
    path.write_text("c\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    worktree = add(cli, "try")
    assert " M src/b.py" in git(worktree, "status", "--porcelain")


def test_a_merge_that_has_begun(cli: Cli, project: Path) -> None:
    git(project, "stash", "-u")
    git(project, "switch", "-qc", "other")
    write(project, {"src/b.py": "theirs\n"})
    git(project, "commit", "-qam", "theirs")
    git(project, "switch", "-q", "main")
    write(project, {"src/b.py": "ours\n"})
    git(project, "commit", "-qam", "ours")
    git(project, "merge", "other", code=1)
    worktree = add(cli, "try")
    assert git(worktree, *STATUS) == git(project, *STATUS)
    write(worktree, {"src/b.py": "both\n"})
    git(worktree, "commit", "-qam", "merged")
    assert git(worktree, "log", "--format=%P", "-1").count(" ") == 1
    assert (project / ".git/MERGE_HEAD").exists()


def test_submodules_and_nested_repositories_stay_apart(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    library = make_project(tmp_path / "library")
    allow = ("-c", "protocol.file.allow=always")
    git(project, *allow, "submodule", "add", "-q", str(library), "lib")
    git(project, "commit", "-qam", "with a submodule")
    make_project(project / "nested")
    worktree = add(cli, "try")
    assert git(worktree, "status", "--porcelain") == git(project, "status", "--porcelain")
    for name in ("lib", "nested"):
        before = git(project / name, "rev-parse", "HEAD")
        write(worktree / name, {"src/b.py": "changed\n"})
        git(worktree / name, "commit", "-qam", "in the worktree")
        assert git(project / name, "rev-parse", "HEAD") == before
        assert git(project / name, "log", "--all", "--format=%s") == "first"


def test_a_linked_work_tree_is_a_project(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = project.parent / "linked"
    git(project, "worktree", "add", "-q", str(linked))
    monkeypatch.chdir(linked)
    write(linked, {"src/b.py": "linked\n"})
    worktree = add(cli, "try")
    assert git(worktree, "status", "--porcelain") == " M src/b.py"
    git(worktree, "commit", "-qam", "second")
    assert git(linked, "rev-parse", "linked") == git(project, "rev-parse", "main")


def test_branches(cli: Cli, project: Path) -> None:
    git(project, "branch", "there")
    assert git(add(cli, "a", "--branch", "there"), "branch", "--show-current") == "there"
    assert (
        git(add(cli, "b", "--branch", "feature/new"), "branch", "--show-current") == "feature/new"
    )
    worktrees = git(project, "worktree", "list")
    for branch, reason in (("main", "already checked out"), ("there", "already checked out")):
        answer = cli("worktree", "add", "c", "--branch", branch, code=4)
        assert reason in answer.err
    git(project, "switch", "-qc", "old", "main")
    git(project, "commit", "-qam", "more")
    git(project, "switch", "-q", "main")
    write(project, {"src/a.py": "not committed\n"})
    answer = cli("worktree", "add", "c", "--branch", "old", code=4)
    assert "branch old cannot be checked out: Your local changes" in answer.err
    assert (
        "is not a valid branch name" in cli("worktree", "add", "c", "--branch", "a..b", code=1).err
    )
    # Nothing is left of what was refused.
    assert git(project, "worktree", "list") == worktrees
    assert not (project.parent / "project.worktrees/c").exists()
    assert cli("worktree", "rm", "a").out.decode() == "a removed; branch there stays\n"


def test_bad_names_and_places(cli: Cli, project: Path, tmp_path: Path) -> None:
    for name in ("", "a/b", "..", ".a", "a.lock", "-x", "a" * 65, "é"):
        assert "name" in cli.refused("worktree", "add", "--", name, code=4)
    add(cli, "try")
    assert "has a worktree 'try'" in cli.refused("worktree", "add", "try", code=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    listed = git(project, "worktree", "list")
    answer = cli("worktree", "add", "b", "--path", tmp_path / "full", code=1)
    assert "already exists" in answer.err
    assert git(project, "worktree", "list") == listed
    assert "no worktree 'b'" in cli.refused("worktree", "rm", "b", code=3)


def test_a_repository_without_a_commit(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    monkeypatch.chdir(tmp_path / "empty")
    assert "has no commit yet" in cli("worktree", "add", "try", code=4).err


def test_a_directory_without_git(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain"
    write(plain, {"a": "1", ".env": "KEY=value-of-mine\n"})
    monkeypatch.chdir(plain)
    worktree = add(cli, "try")
    assert holding(worktree) == holding(plain)
    write(worktree, {"a": "2", "b": "3"})
    assert "a, b" in cli("worktree", "rm", "try", code=4).err
    cli("worktree", "apply", "try")
    assert holding(plain).keys() == {"a", "b", ".env"}
    cli("worktree", "rm", "try")


def test_what_would_be_lost_is_not_removed(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    assert cli("worktree", "list", "--json").json[0]["state"] == "open"
    write(worktree, {"src/b.py": "changed\n", "later.txt": "1", "build/out.o": "built again"})
    error = cli("worktree", "rm", "try", code=4).err
    assert "later.txt, src/b.py; " in error
    git(worktree, "commit", "-qam", "second")
    assert "later.txt; " in cli("worktree", "rm", "try", code=4).err
    write(worktree, {".env": "KEY=another\n", "build/deep/out.o": "", "made.log": "ignored"})
    assert ".env, later.txt; " in cli("worktree", "rm", "try", code=4).err
    git(worktree, "add", "later.txt")
    git(worktree, "commit", "-qm", "third")
    git(worktree, "checkout", "-q", "--detach")
    git(worktree, "commit", "-q", "--allow-empty", "-m", "fourth")
    (worktree / ".env").write_text("KEY=value-of-mine\n")
    assert "on no branch" in cli("worktree", "rm", "try", code=4).err
    git(worktree, "switch", "-q", "try")
    assert cli("worktree", "rm", "try").out.decode() == "try removed; branch try stays\n"


def test_what_git_has_taken_out_of_the_project_is_not_removed(cli: Cli, project: Path) -> None:
    """The project had a change of its own that was not committed, so the file is not as before the
    apply either."""
    file = project / "src/b.py"
    committed = file.read_text()
    file.write_text(f"mine\n{committed}")
    worktree = add(cli, "try")
    (worktree / "src/b.py").write_text(f"mine\n{committed}agent\n")
    cli("worktree", "apply", "try")
    git(project, "checkout", "-q", ".")
    assert file.read_text() == committed
    assert "src/b.py; " in cli("worktree", "rm", "try", code=4).err
    cli("worktree", "rm", "try", "--force")


def test_one_in_use_is_not_removed(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], cwd=worktree, stdin=subprocess.PIPE
    ) as user:
        assert "busy" in cli("worktree", "rm", "try", code=4).err
        user.communicate(b"\n")
    cli("worktree", "rm", "try")


def test_keep_and_go_on(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "changed\n", ".env": "KEY=another\n"})
    kept = cli("worktree", "rm", "try", "--keep", "--json").json["checkpoint"]
    again = add(cli, "again", "--from", kept)
    assert (again / "src/b.py").read_text() == "changed\n"
    assert (again / ".env").read_text() == "KEY=another\n"
    assert (again / "node_modules/left/pad.js").read_text() == "pad"


def test_apply(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/a.py": "one\n2\nthree\nfour\n", ".env": "KEY=another\n", "x/y": "1"})
    write(worktree, {"made.log": "made"})
    git(worktree, "rm", "-qf", "src/b.py")
    git(worktree, "commit", "-qam", "second")
    write(project, {"src/a.py": "zero\none\n2\nthree\n"})
    branch = git(project, "rev-parse", "main")
    checked = cli("worktree", "apply", "try", "--check", "--json").json["changes"]
    answer = cli("worktree", "apply", "try", "--json").json
    assert answer["changes"] == checked
    assert (project / "src/a.py").read_text() == "zero\none\n2\nthree\nfour\n"
    assert (project / ".env").read_text() == "KEY=value-of-mine\n"
    assert not (project / "made.log").exists()
    assert not (project / "src/b.py").exists()
    assert git(project, "rev-parse", "HEAD") == branch
    cli("undo", project)
    assert (project / "src/a.py").read_text() == "zero\none\n2\nthree\n"
    cli("worktree", "apply", "try", "--ignored")
    assert (project / ".env").read_text() == "KEY=another\n"
    assert (project / "made.log").read_text() == "made"
    cli("worktree", "rm", "try")


def test_a_conflict_is_named(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/a.py": "1\n2\nthree\n"})
    write(project, {"src/a.py": "eins\n2\nthree\n"})
    answer = cli("worktree", "apply", "try", code=1)
    assert "conflict: src/a.py" in answer.out.decode()
    text = (project / "src/a.py").read_text()
    assert "eins" in text
    assert ">>>>>>> worktree try" in text


def test_one_is_applied_to_another(cli: Cli, project: Path) -> None:
    first, second = add(cli, "a"), add(cli, "b")
    write(first, {"a.txt": "1"})
    cli("worktree", "apply", "a", "--to", second)
    assert (second / "a.txt").read_text() == "1"
    assert not (project / "a.txt").exists()


@pytest.mark.parametrize("backend", [able("erofs-overlay"), able("overlay")])
def test_after_a_reboot(cli: Cli, project: Path, backend: str) -> None:
    worktree = add(cli, "try", "--backend", backend)
    write(worktree, {"src/b.py": "changed\n"})
    overlay_mount.unmount(worktree)
    assert list(worktree.iterdir()) == []
    git(project, "worktree", "prune")
    assert "not mounted" in cli("worktree", "apply", "try", code=4).err
    assert cli("worktree", "list", "--json").json[0]["state"] == "open"
    assert git(worktree, "status", "--porcelain", "src/b.py") == " M src/b.py"


@pytest.mark.parametrize("backend", [able("erofs-overlay")])
def test_another_one_shares_the_image(cli: Cli, project: Path, backend: str) -> None:
    first = add(cli, "a", "--backend", backend)
    write(project, {"src/b.py": "later\n", "node_modules/new.js": "new"})
    (project / "package.json").unlink()
    second = add(cli, "b", "--backend", backend)
    assert holding(second) == holding(project)
    with Store.open(cli.root) as store:
        first_stack, second_stack = (workspace.stack for workspace in registry.listing(store))
    assert second_stack.similar == first_stack.lower
    assert len(list((cli.root / "images").iterdir())) == 1
    write(second, {"src/b.py": "mine\n"})
    git(first, "commit", "-qam", "all")
    cli("worktree", "rm", "a", "--force")
    cli("gc", "--grace", "0")
    overlay_mount.unmount(second)
    cli("worktree", "list")
    expected = holding(project)
    assert holding(second).keys() == expected.keys()
    assert (second / "src/b.py").read_text() == "mine\n"


def test_programs_in_it(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worktree = add(cli, "try")
    environment = {**os.environ, "CASFS_STORE": str(cli.root), "SHELL": "/bin/pwd"}
    script = "import json, os; print(json.dumps([os.getcwd(), os.environ['CASFS_WORKTREE']]))"
    argv = [sys.executable, "-m", "casfs", "worktree"]
    run = [*argv, "run", "try", "--", sys.executable, "-c", script]
    output = subprocess.run(run, env=environment, check=True, capture_output=True).stdout
    assert json.loads(output) == [str(worktree), "try"]
    shell = [*argv, "shell", "try"]
    output = subprocess.run(shell, env=environment, check=True, capture_output=True).stdout
    assert output.decode().strip() == str(worktree)
    assert cli("worktree", "path", "try").out.decode().strip() == str(worktree)
    # In the worktree the names are those of its project.
    monkeypatch.chdir(worktree)
    assert cli("worktree", "list", "--json").json[0]["name"] == "try"
    assert cli("worktree", "add", "--json").json["project"] == str(project)


def test_what_git_shares(cli: Cli, project: Path) -> None:
    """As in every linked work tree: refs, configuration and hooks."""
    worktree = add(cli, "try")
    hook = project / ".git/hooks/pre-commit"
    hook.write_text('#!/bin/sh\npwd >>"$GIT_DIR/../../hooked"\n')
    hook.chmod(0o755)
    write(worktree, {"src/b.py": "changed\n"})
    git(worktree, "commit", "-qam", "second")
    assert (project / ".git/hooked").read_text() == f"{worktree}\n"
    git(worktree, "config", "app.setting", "value")
    assert git(project, "config", "app.setting") == "value"
    git(worktree, "branch", "made-there")
    git(worktree, "tag", "tagged-there")
    assert (
        git(project, "rev-parse", "made-there", "tagged-there", "try")
        .split("\n")
        .count(git(worktree, "rev-parse", "HEAD"))
        == 3
    )


def test_files_that_git_keeps_otherwise(cli: Cli, project: Path) -> None:
    """By a filter, as Git LFS does: what is in the directory is not what git has."""
    git(project, "config", "filter.upper.clean", "tr a-z A-Z")
    git(project, "config", "filter.upper.smudge", "tr A-Z a-z")
    write(project, {".gitattributes": "*.big filter=upper\n", "x.big": "content\n"})
    git(project, "add", ".gitattributes", "x.big")
    git(project, "commit", "-qm", "filtered")
    git(project, "branch", "other")
    age(project)
    git(project, "status")
    worktree = add(cli, "try")
    assert (worktree / "x.big").read_text() == "content\n"
    assert git(worktree, "diff-files", "--name-only") == git(project, "diff-files", "--name-only")
    write(worktree, {"x.big": "changed\n"})
    git(worktree, "commit", "-qam", "second")
    assert git(project, "show", "try:x.big") == "CHANGED"
    assert (add(cli, "second", "--branch", "other") / "x.big").read_text() == "content\n"
