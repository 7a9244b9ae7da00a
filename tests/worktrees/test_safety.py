"""What must not be lost by a worktree, or happen to its project: found by a reader."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.cli import implicit_mount
from casfs.workspaces import overlay_mount
from casfs.worktrees.git_link import Lock
from tests.support.engine import Cli, daemon
from tests.support.strategies import able
from tests.worktrees.conftest import add, age, git, kill_servers, make_project, write


def test_work_in_inner_repositories(cli: Cli, project: Path, tmp_path: Path) -> None:
    library = make_project(tmp_path / "library")
    allow = ("-c", "protocol.file.allow=always")
    git(project, *allow, "submodule", "add", "-q", str(library), "lib")
    git(project, "commit", "-qm", "with a submodule")
    make_project(project / "nested")
    worktree = add(cli, "try")
    write(worktree, {"lib/src/b.py": "edited\n", "nested/src/new.py": "edited\n"})
    error = cli("worktree", "rm", "try", code=4).err
    assert "lib/src/b.py, nested/src/new.py;" in error
    # A commit in them alone, too.
    write(worktree, {"lib/src/b.py": "b\n", "nested/src/new.py": "new\n"})
    git(worktree / "nested", "commit", "-q", "--allow-empty", "-m", "mine")
    assert "committed: nested;" in cli("worktree", "rm", "try", code=4).err
    assert "nested" in cli("worktree", "prune").out.decode()
    kept = cli("worktree", "rm", "try", "--keep", "--json").json["checkpoint"]
    cli("checkpoint", "restore", kept, tmp_path / "back")
    assert git(tmp_path / "back/nested", "log", "-1", "--format=%s") == "mine"


def test_what_was_not_applied_is_not_taken_for_applied(cli: Cli, project: Path) -> None:
    worktree, other = add(cli, "try"), add(cli, "other")
    (worktree / "logo").write_bytes(b"\0\1")
    (project / "logo").write_bytes(b"\0\2")
    assert "conflict: logo" in cli("worktree", "apply", "try", code=1).out.decode()
    assert "logo;" in cli("worktree", "rm", "try", code=4).err
    cli("worktree", "apply", "try", "--to", other)
    assert "logo;" in cli("worktree", "rm", "try", code=4).err


@pytest.mark.parametrize("resolved", ["mine\n2\nthree\n", "both\n2\nthree\n"])
def test_a_conflict_is_named_once_and_then_resolved(cli: Cli, project: Path, resolved: str) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/a.py": "theirs\n2\nthree\n"})
    write(project, {"src/a.py": "mine\n2\nthree\n"})
    cli("worktree", "apply", "try", code=1)
    write(project, {"src/a.py": resolved})
    assert cli("worktree", "apply", "try").out == b"nothing to apply\n"
    write(worktree, {"src/fresh.py": "1\n"})
    assert cli("worktree", "apply", "try").out.startswith(b"A src/fresh.py\n")
    assert (project / "src/a.py").read_text() == resolved
    cli("worktree", "rm", "try")


def test_a_conflict_that_is_not_marked(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    (worktree / "logo").write_bytes(b"\0\1")
    (project / "logo").write_bytes(b"\0\2")
    cli("worktree", "apply", "try", code=1)
    assert cli("worktree", "apply", "try").out == b"nothing to apply\n"
    assert "logo;" in cli("worktree", "rm", "try", code=4).err, "its only copy"
    for number in range(15):  # of so many applies the oldest are noted as one
        write(worktree, {"more": f"{number}\n"})
        cli("worktree", "apply", "try")
    assert "logo;" in cli("worktree", "rm", "try", code=4).err, "its only copy"
    (project / "logo").write_bytes(b"\0\1")
    cli("worktree", "rm", "try")


def test_what_was_put_back_after_an_apply_stays(cli: Cli, project: Path) -> None:
    lines = [f"{number}\n" for number in range(9)]
    write(project, {"long.txt": "".join(lines)})
    worktree = add(cli, "try")
    write(worktree, {"long.txt": "".join(["changed\n", *lines[1:8]]), "other.txt": "1\n"})
    cli("worktree", "apply", "try")
    put_back = "".join(["changed\n", *lines[1:]])
    write(project, {"long.txt": put_back})
    write(worktree, {"other.txt": "2\n"})
    assert cli("worktree", "apply", "try").out.startswith(b"M other.txt\n")
    assert (project / "long.txt").read_text() == put_back
    cli("worktree", "rm", "try")


def test_the_second_of_two_applies_is_taken_back(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    for text in ("one\n2\nthird\n", "one\n2\nfourth\n"):
        write(worktree, {"src/a.py": text})
        cli("worktree", "apply", "try")
    cli("undo", project)
    assert (project / "src/a.py").read_text() == "one\n2\nthird\n"
    assert "src/a.py;" in cli("worktree", "rm", "try", code=4).err
    cli("worktree", "apply", "try")
    assert (project / "src/a.py").read_text() == "one\n2\nfourth\n"
    cli("undo", project)
    cli("undo", project)
    cli("worktree", "apply", "try")
    assert (project / "src/a.py").read_text() == "one\n2\nfourth\n"
    cli("worktree", "rm", "try")


def test_many_applies_with_many_conflicts(cli: Cli, project: Path) -> None:
    """What is noted of them has a limit: older ones are one."""
    names = [f"src/a/rather/long/path/of/a/module/number_{number}.py" for number in range(120)]
    write(project, dict.fromkeys(names, "1\n2\n3\n"))
    worktree = add(cli, "try")
    write(worktree, dict.fromkeys(names, "theirs\n2\n3\n"))
    write(project, dict.fromkeys(names, "mine\n2\n3\n"))
    cli("worktree", "apply", "try", code=1)
    write(project, dict.fromkeys(names, "resolved\n2\n3\n"))
    for number in range(25):
        write(worktree, {f"n{number}": f"{number}\n"})
        assert cli("worktree", "apply", "try").out.startswith(b"A n%d\n" % number)
    assert (project / names[0]).read_text() == "resolved\n2\n3\n"
    cli("undo", project)
    assert "n24;" in cli("worktree", "rm", "try", code=4).err


@pytest.mark.parametrize("becomes", ["file", "link"])
@pytest.mark.parametrize("has_mine", [False, True])
def test_a_directory_becomes_something_else(
    cli: Cli, project: Path, becomes: str, has_mine: bool
) -> None:
    write(project, {"d/x": "x\n", "d/y": "y\n"})
    worktree = add(cli, "try")
    shutil.rmtree(worktree / "d")
    if becomes == "file":
        write(worktree, {"d": "a file\n"})
    else:
        (worktree / "d").symlink_to("src")
    if has_mine:
        write(project, {"d/mine.log": "mine\n"})
    answer = cli("worktree", "apply", "try", code=int(has_mine)).text
    if has_mine:
        assert "conflict: d: a directory here, a file in worktree try" in answer
        assert (project / "d/x").read_text() == "x\n"
    elif becomes == "file":
        assert (project / "d").read_text() == "a file\n"
    else:
        assert (project / "d").is_symlink()
    if not has_mine:
        cli("undo", project)
    assert (project / "d/y").read_text() == "y\n"


def test_a_second_apply_brings_what_is_new(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    for text in ("one\n2\nthird\n", "one\n2\nfourth\n", "one\n2\nthree\n"):
        write(worktree, {"src/a.py": text, "new.txt": text})
        cli("worktree", "apply", "try")
        assert (project / "src/a.py").read_text() == text
        assert (project / "new.txt").read_text() == text


@pytest.mark.parametrize("verb", ["commit", "discard", "close"])
def test_it_is_no_plain_workspace(cli: Cli, project: Path, verb: str) -> None:
    worktree = add(cli, "try")
    write(worktree, {"mine.txt": "1"})
    force = ["--force"] if verb == "close" else []
    assert "is a worktree" in cli("workspace", verb, worktree, *force, code=4).err
    assert (worktree / "mine.txt").exists()


def test_what_git_is_told_to_ignore_is_not_lost(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    git(worktree, "update-index", "--skip-worktree", "src/b.py")
    write(worktree, {"src/b.py": "mine\n"})
    assert "src/b.py;" in cli("worktree", "rm", "try", code=4).err


def test_a_repository_in_its_place_is_not_believed(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "mine\n"})
    (worktree / ".git").unlink()
    git(worktree, "init", "-q")
    git(worktree, "add", "-A")
    git(worktree, "commit", "-qm", "elsewhere")
    assert "src/b.py" in cli("worktree", "rm", "try", code=4).err


def test_commits_on_no_branch_are_not_kept_by_a_checkpoint(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    git(worktree, "switch", "-q", "--detach")
    git(worktree, "commit", "-qam", "mine")
    assert "on no branch" in cli("worktree", "rm", "try", "--keep", code=4).err


def test_variables_of_another_repository(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    head = git(project, "rev-parse", "HEAD")
    env = {**os.environ, "CASFS_STORE": str(cli.root), "GIT_DIR": str(project / ".git")}
    commit = "git -c user.name=T -c user.email=t@example.org commit -qam mine"
    argv = [sys.executable, "-m", "casfs", "worktree", "run", "try", "--", "sh", "-c", commit]
    subprocess.run(argv, env=env, check=True)
    assert git(project, "rev-parse", "HEAD") == head
    assert git(worktree, "log", "-1", "--format=%s") == "mine"


def test_files_in_an_unmounted_directory(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    overlay_mount.unmount(worktree)
    write(worktree, {"mine.txt": "1"})
    assert "has files that it would hide" in cli("worktree", "list", code=1).err
    assert (worktree / "mine.txt").read_text() == "1"
    (worktree / "mine.txt").unlink()
    cli("worktree", "list")
    assert (worktree / "src/new.py").exists()


def test_a_time_that_proves_nothing(cli: Cli, project: Path) -> None:
    """With these settings git compares seconds and sizes alone."""
    git(project, "config", "core.checkStat", "minimal")
    git(project, "config", "core.trustctime", "false")
    age(project)
    write(project, {"src/b.py": "c\n"})
    git(project, "add", "src/b.py")
    write(project, {"src/b.py": "d\n"})
    worktree = add(cli, "try")
    assert "MM src/b.py" in git(worktree, "status", "--porcelain")


def test_a_branch_that_is_there_must_be_named(cli: Cli, project: Path) -> None:
    git(project, "branch", "there")
    git(project, "branch", "w1")
    assert "take it by --branch" in cli("worktree", "add", "there", code=4).err
    assert cli("worktree", "add", "--json").json["branch"] == "w2"
    # One of a person's stays whatever becomes of the worktree.
    add(cli, "a", "--branch", "there")
    assert "a removed" in cli("worktree", "prune").out.decode()
    assert git(project, "branch", "--list", "there") == "  there"


def test_directories_that_are_not_taken(cli: Cli, project: Path, tmp_path: Path) -> None:
    assert "is inside of" in cli("worktree", "add", "a", "--path", project / "x/a", code=4).err
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert "is a link" in cli("worktree", "add", "a", "--path", tmp_path / "link", code=4).err
    (tmp_path / "file").write_text("")
    cli("worktree", "add", "a", "--path", tmp_path / "file/a", code=1)
    assert git(project, "branch", "--format=%(refname:short)") == "main"
    add(cli, "a")


def test_a_work_tree_of_git_at_the_same_path(cli: Cli, project: Path, tmp_path: Path) -> None:
    """A person's own, locked or not, whatever is in its directory."""
    own = tmp_path / "own"
    git(project, "worktree", "add", "-q", "-b", "own", str(own))
    write(own, {"src/b.py": "staged\n"})
    git(own, "add", "-A")
    cli("worktree", "add", "try", "--path", own, code=1)
    assert git(own, "status", "--porcelain") == "M  src/b.py"
    git(project, "worktree", "lock", str(own))
    own.rename(tmp_path / "away")
    cli("worktree", "add", "try", "--path", own, code=1)
    (tmp_path / "away").rename(own)
    assert git(own, "status", "--porcelain") == "M  src/b.py"
    assert git(project, "branch", "--format=%(refname:short)") == "main\nown"


@pytest.mark.parametrize("moment", ["before the mount", "before the link"])
def test_an_add_that_was_killed(cli: Cli, project: Path, moment: str) -> None:
    if moment == "before the mount":
        path = project.parent / "project.worktrees/try"
        adding = ("worktree", "add", "-q", "--lock", "--no-checkout", "-b", "try")
        git(project, *adding, str(path))
        (project / ".git/worktrees/try/locked").write_text(Lock(cli.root, "try").text)
        (path / ".git").unlink()
        path.rmdir()
        worktree = add(cli, "try")
    else:
        worktree = add(cli, "try")
        (worktree / ".git").unlink()
        (project / ".git/worktrees/try/index").unlink()
        overlay_mount.unmount(worktree)
        cli("worktree", "list")
    assert git(worktree, "diff", "--name-only", "HEAD") == "gone.txt\nsrc/a.py" or (
        git(worktree, "diff", "--name-only", "HEAD") == "gone.txt\nsrc/a.py\nstaged.txt"
    )
    cli("worktree", "rm", "try", "--force")
    assert git(project, "worktree", "list").count("\n") == 0


def test_git_that_means_another_directory(cli: Cli, project: Path, tmp_path: Path) -> None:
    inner = project / "inner"
    (inner / ".git").mkdir(parents=True)
    os.chdir(inner)
    assert "git takes" in cli("worktree", "add", "try", code=4).err
    assert git(project, "worktree", "list").count("\n") == 0


def test_the_mode_of_an_env(cli: Cli, project: Path) -> None:
    write(project, {".env.worktree": "PORT={port}\n"})
    (project / ".env").chmod(0o600)
    assert (add(cli, "a") / ".env").stat().st_mode & 0o777 == 0o600
    (project / ".env").unlink()
    assert (add(cli, "b") / ".env").stat().st_mode & 0o777 == 0o600
    (project / ".env").symlink_to("package.json")
    assert ".env: not a file" in cli("worktree", "add", "c", code=4).err


@pytest.mark.parametrize("backend", [able("erofs-overlay"), able("copy")])
def test_a_daemon_that_follows_the_project(cli: Cli, project: Path, backend: str) -> None:
    with daemon(cli.root):
        for number in range(3):
            write(project, {"later.txt": str(number), "node_modules/x.js": str(number)})
            worktree = add(cli, f"a{number}", "--backend", backend)
            assert (worktree / "later.txt").read_text() == str(number)
            assert (worktree / "node_modules/x.js").read_text() == str(number)
            assert (worktree / ".env").exists()
        # Only git's index changes: what is private is work by that, and the other way.
        for argv, is_work in (
            (("add", "-f", ".env"), True),
            (("rm", "--cached", "-q", ".env"), False),
        ):
            git(project, *argv)
            name = f"b{is_work}"
            add(cli, name, "--backend", backend)
            listed = cli("workspace", "list", "--json").json
            (root,) = [one["root"] for one in listed if one["directory"].endswith(f"/{name}")]
            assert (b".env" in cli("ls", root).out.split()) == is_work


@pytest.mark.parametrize("backend", [able("overlay"), able("fuse-overlayfs")])
def test_one_whose_server_died_is_mended(cli: Cli, project: Path, backend: str) -> None:
    worktree = add(cli, "try", "--backend", backend)
    write(worktree, {"src/b.py": "changed\n"})
    is_fuse = backend == "fuse-overlayfs"
    kill_servers(worktree if is_fuse else implicit_mount.mount_point(cli.root, os.environ))
    with pytest.raises(OSError, match="endpoint"):
        os.listdir(worktree)
    assert cli("worktree", "list", "--json").json[0]["state"] == "open"
    assert (worktree / "src/b.py").read_text() == "changed\n"
    assert git(worktree, "status", "--porcelain", "src/b.py") == " M src/b.py"
    write(worktree, {"src/c.py": "later\n"})


@pytest.mark.parametrize("way", ["casfs undo", "git"])
def test_an_apply_that_was_taken_back(cli: Cli, project: Path, way: str) -> None:
    """Then the worktree alone has the change."""
    git(project, "stash", "-u")
    worktree = add(cli, "try")
    write(worktree, {"src/a.py": "one\ntwo\nthree\nfour\n", "new.txt": "new\n"})
    cli("worktree", "apply", "try")
    if way == "git":
        git(project, "checkout", "-q", ".")
        git(project, "clean", "-fdq")
    else:
        cli("undo", project)
    assert not (project / "new.txt").exists()
    assert "new.txt, src/a.py; " in cli("worktree", "rm", "try", code=4).err
    cli("worktree", "apply", "try")
    assert (project / "src/a.py").read_text() == "one\ntwo\nthree\nfour\n"
    # An edit of the project since then does not undo the apply.
    write(project, {"new.txt": "new\nand newer\n"})
    assert cli("worktree", "apply", "try").out == b"nothing to apply\n"
    cli("worktree", "rm", "try")


def test_a_branch_that_was_renamed(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    git(worktree, "branch", "-m", "better")
    assert cli("worktree", "list", "--json").json[0]["branch"] == "better"
    git(worktree, "switch", "-q", "--detach")
    assert cli("worktree", "list", "--json").json[0]["branch"] is None
    cli("worktree", "rm", "try")
    assert "better" in git(project, "branch")


def test_an_apply_says_which_way_commits_go(cli: Cli, project: Path) -> None:
    worktree = add(cli, "a")
    write(worktree, {"src/new2.py": "new\n"})
    assert "commits" not in cli("worktree", "apply", "a", "--check").err
    git(worktree, "add", "src/new2.py")
    git(worktree, "commit", "-qm", "mine")
    answer = cli("worktree", "apply", "a")
    assert "branch a has commits of its own; `git merge a` brings these" in answer.err
    assert git(project, "merge", "-q", "a", code=1) == "", "its files stand in the way"
    cli("undo")
    git(project, "merge", "-q", "a")
    assert (project / "src/new2.py").read_text() == "new\n"
    assert "git merge" not in cli("worktree", "apply", "a").err


def test_links_that_lead_elsewhere_are_named(cli: Cli, project: Path, tmp_path: Path) -> None:
    write(tmp_path, {"beside/there": "1"})
    targets = {
        "into": project / "src", "out": "../beside/there", "inside": "src/a.py",
        "far": "/usr", "broken": "../none",
    }  # fmt: skip
    for name, target in targets.items():
        (project / name).symlink_to(target)
    said = cli("worktree", "add", "a").err
    assert f"links lead into {project}, what is written through them is there: into\n" in said
    assert f"links lead to what is beside {project}, and nowhere from here: out\n" in said
    assert "broken" not in said
