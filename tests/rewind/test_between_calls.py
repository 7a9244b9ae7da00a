"""What a person did between the calls of an agent, and what a call has broken in a repository."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from casfs.rewind.undo_calls import REPOSITORY
from tests.rewind.test_repositories import rewind
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.repositories import COMMIT, git, make_repository, seen_by_git
from tests.support.restores import do_again, take_back_last


def test_an_edit_that_a_later_call_has_lost(agent: AttachedAgent, project: Path) -> None:
    was = (project / "a").read_text()
    agent.prompt()
    agent.run("sed -i s/1/one/ a; echo agent > n")
    (project / "a").write_text((project / "a").read_text().replace("8", "PERSON"))
    (project / "n").write_text("agent\nperson\n")
    agent.call(lambda: ((project / "a").write_text(was), (project / "n").unlink()))
    plan = rewind(agent)
    assert (project / "a").read_text() == was.replace("8", "PERSON")
    assert plan.undone.conflicts.keys() == {b"n"} or (project / "n").read_text() == "person\n"
    assert (project / "n").exists()


def test_an_edit_of_what_was_moved_away_and_back(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("mv a c")
    (project / "c").write_text((project / "c").read_text().replace("8", "PERSON"))
    agent.run("mv c a")
    rewind(agent)
    assert any("PERSON" in path.read_text() for path in project.iterdir())


def test_a_rewind_is_done_once(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a")
    agent.run("sed -i s/2/two/ a; rm b")
    rewind(agent)
    plan = rewind(agent)
    assert (plan.undone.changed, plan.undone.conflicts) == ([], {})


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_bytes_that_a_call_has_changed_in_objects(
    agent: AttachedAgent, project: Path, packed: bool
) -> None:
    make_repository(project)
    if packed:
        git(project, "gc", "-q")
    known = seen_by_git(project)
    agent.prompt()
    agent.run("find .git/objects -type f -exec chmod u+w {} + -exec sed -i s/e/E/g {} +")
    rewind(agent)
    assert seen_by_git(project) == known


def test_a_ref_of_a_person_that_is_packed(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    agent.prompt()
    agent.run("git tag v1 HEAD~1")
    rewind(agent)
    git(project, "tag", "v1", "HEAD")
    git(project, "pack-refs", "--all")
    known = seen_by_git(project)
    take_back_last(agent.store, project)
    assert seen_by_git(project) == known


def test_a_commit_after_a_rewind_is_named_by_its_undo(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    agent.prompt()
    agent.run(f"{COMMIT} --allow-empty -m agent")
    rewind(agent)
    git(project, "commit", "-q", "--allow-empty", "-m", "mine")
    git(project, "pack-refs", "--all")
    known = seen_by_git(project)
    take_back_last(agent.store, project)
    assert seen_by_git(project) == known


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_a_person_has_closed(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("rm a b")
    project.chmod(0o700)
    rewind(agent)
    assert mode(project) == 0o700
    take_back_last(agent.store, project)
    assert mode(project) == 0o700
    do_again(agent.store, project)
    assert mode(project) == 0o700


def test_a_directory_in_which_nobody_writes(agent: AttachedAgent, project: Path) -> None:
    (project / "d").mkdir()
    (project / "d/kept").write_text("k")
    (project / "d").chmod(0o555)
    agent.prompt()
    agent.run("chmod 755 d; echo n > d/n; chmod 555 d")
    rewind(agent)
    assert mode(project / "d") == 0o555
    assert [path.name for path in (project / "d").iterdir()] == ["kept"]


def test_a_directory_of_an_agent_whose_mode_it_has_changed(
    agent: AttachedAgent, project: Path
) -> None:
    agent.prompt()
    agent.run("mkdir d; echo n > d/n")
    agent.run("chmod 700 d")
    rewind(agent)
    assert not (project / "d").exists()


def test_a_branch_on_which_a_person_is(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    agent.prompt()
    agent.run("git branch feature")
    git(project, "switch", "-q", "feature")
    known = seen_by_git(project)
    assert rewind(agent).undone.conflicts == {b".git": REPOSITORY}
    assert seen_by_git(project) == known


def test_a_branch_that_a_person_has_deleted(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    agent.prompt()
    agent.run(f"git switch -q -c feature; {COMMIT} --allow-empty -m agent")
    git(project, "branch", "-q", "-D", "main")
    known = seen_by_git(project)
    assert rewind(agent).undone.conflicts == {b".git": REPOSITORY}
    assert seen_by_git(project) == known


def test_logs_of_refs_come_back(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    git(project, "branch", "topic")
    git(project, "commit", "-q", "--amend", "-m", "amended")
    known = git(project, "reflog", "--all", "--format=%H %gd")
    agent.prompt()
    agent.run("git reflog expire --expire=now --all; git branch -qD topic")
    rewind(agent)
    assert git(project, "reflog", "--all", "--format=%H %gd") == known


def test_packed_refs_that_git_cannot_read(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    git(project, "tag", "-am", "one", "one")
    git(project, "pack-refs", "--all")
    known = git(project, "for-each-ref")
    agent.prompt()
    agent.run("echo garbage >> .git/packed-refs; sed -i '2s/.*/x/' .git/packed-refs")
    rewind(agent)
    assert git(project, "for-each-ref") == known


def test_flags_of_the_index_come_back(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    git(project, "update-index", "--skip-worktree", "a")
    known = git(project, "ls-files", "-v")
    agent.prompt()
    agent.run("git update-index --no-skip-worktree a; git update-index --assume-unchanged b")
    assert git(project, "ls-files", "-v") != known
    rewind(agent)
    assert git(project, "ls-files", "-v") == known


def test_directories_that_look_like_a_repository(agent: AttachedAgent, project: Path) -> None:
    (project / "objects").mkdir()
    (project / "museum/objects").mkdir(parents=True)
    for file in ("HEAD", "objects/vase", "museum/HEAD", "museum/objects/vase"):
        (project / file).write_text(f"{file}\n")
    before = contents(project)
    agent.prompt()
    agent.run("rm -r museum; echo broken > objects/vase")
    rewind(agent)
    assert contents(project) == before


def test_a_work_tree_elsewhere_whose_repository_is_deleted(
    agent: AttachedAgent, project: Path, tmp_path: Path
) -> None:
    make_repository(project)
    git(project, "worktree", "add", "-q", "--detach", str(tmp_path / "else"))
    git(tmp_path / "else", "commit", "-q", "--allow-empty", "-m", "mine")
    (tmp_path / "else/a").write_text("staged")
    git(tmp_path / "else", "add", "a")
    known = git(tmp_path / "else", "rev-parse", "HEAD"), git(tmp_path / "else", "diff", "--cached")
    for command in ("rm -rf .git", "rm -rf .git/worktrees"):
        agent.prompt()
        agent.run(command)
        rewind(agent, str(len(agent.steps())))
        head = git(tmp_path / "else", "rev-parse", "HEAD")
        assert (head, git(tmp_path / "else", "diff", "--cached")) == known
