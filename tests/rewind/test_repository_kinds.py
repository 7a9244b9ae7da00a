"""Repositories that are no `.git` of a project: of submodules, of linked work trees, bare ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.errors import Refused
from casfs.rewind import rewind_files
from casfs.rewind.undo_calls import ELSEWHERE, HELD, REPOSITORY
from tests.rewind.test_repositories import files, rewind
from tests.support.attached_agent import AttachedAgent
from tests.support.repositories import COMMIT, git, make_lender, make_repository
from tests.support.restores import take_back_last

LOCAL = "git -c protocol.file.allow=always -c user.name=x -c user.email=x@y"


def seen(directory: Path) -> tuple[str, ...]:
    git(directory, "fsck", "--strict", "--no-dangling")
    return git(directory, "for-each-ref"), git(directory, "rev-parse", "HEAD")


@pytest.fixture
def repository(project: Path) -> Path:
    make_repository(project)
    return project


@pytest.fixture
def lender(tmp_path: Path) -> Path:
    return make_lender(tmp_path / "lender")


@pytest.fixture
def module(repository: Path, lender: Path) -> Path:
    git(
        repository,
        *("-c", "protocol.file.allow=always", "submodule", "--quiet", "add"),
        *(str(lender), "libs/module"),
    )
    git(repository, "commit", "-qm", "a submodule")
    return repository / "libs/module"


def test_commits_in_a_submodule(agent: AttachedAgent, repository: Path, module: Path) -> None:
    known, top = seen(module), seen(repository)
    agent.prompt()
    agent.run(f"cd libs/module; echo x >> f; {COMMIT} -am agent")
    made = seen(module)
    plan = rewind(agent)
    assert list(plan.undone.repositories) == [b".git/modules/libs/module"]
    assert (seen(module), seen(repository)) == (known, top)
    assert git(module, "status", "--porcelain") == ""
    take_back_last(agent.store, repository)
    assert seen(module) == made


def test_a_commit_of_a_person_in_a_submodule_loses_no_object(
    agent: AttachedAgent, repository: Path, module: Path
) -> None:
    agent.prompt()
    agent.run(f"cd libs/module; echo x >> f; {COMMIT} -am agent")
    git(module, "commit", "-q", "--allow-empty", "-m", "mine")
    known = seen(module)
    plan = rewind(agent)
    assert plan.undone.conflicts[b".git/modules/libs/module"] == REPOSITORY
    assert seen(module) == known


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf libs .git/modules",
        "rm -rf .git libs",
        f"{LOCAL} submodule --quiet deinit -f libs/module; git rm -qf libs/module; "
        f"rm -rf .git/modules; {COMMIT} -m removed",
        "rm -rf .git/modules/libs/module/objects/*",
    ],
)
def test_a_submodule_that_is_gone(
    agent: AttachedAgent, repository: Path, module: Path, command: str
) -> None:
    known, before = (seen(module), seen(repository)), files(repository)
    agent.prompt()
    agent.run(command)
    rewind(agent)
    assert (seen(module), seen(repository)) == known
    assert files(repository) == before


def test_a_submodule_that_was_added(agent: AttachedAgent, repository: Path, lender: Path) -> None:
    known, before = seen(repository), files(repository)
    agent.prompt()
    agent.run(f"{LOCAL} submodule --quiet add {lender} m; {COMMIT} -m added")
    assert (repository / "m/f").exists()
    rewind(agent)
    assert seen(repository) == known
    assert files(repository) == before
    assert git(repository, "status", "--porcelain").split() == ["M", "a", "??", "untracked"]


def test_a_work_tree_in_the_project(agent: AttachedAgent, repository: Path) -> None:
    known = seen(repository)
    agent.prompt()
    agent.run(f"git worktree add -q -b tree trees/one; cd trees/one; {COMMIT} --allow-empty -m x")
    made = seen(repository / "trees/one")
    rewind(agent)
    assert seen(repository) == known
    assert not (repository / "trees").exists()
    assert "trees" not in git(repository, "worktree", "list")
    take_back_last(agent.store, repository)
    assert seen(repository / "trees/one") == made
    assert git(repository / "trees/one", "status", "--porcelain") == ""
    agent.run("git worktree remove --force trees/one; git branch -D tree")
    rewind(agent, "1.2")
    assert seen(repository / "trees/one") == made
    agent.run("cd trees/one; git switch -q -c other; git reset -q --hard main")
    rewind(agent, "1.3")
    assert seen(repository / "trees/one") == made
    assert git(repository / "trees/one", "branch", "--show-current") == "tree\n"


def test_a_work_tree_elsewhere_is_named(
    agent: AttachedAgent, repository: Path, tmp_path: Path
) -> None:
    agent.prompt()
    agent.run(f"git worktree add -q -b theirs {tmp_path}/theirs side; echo x >> a")
    plan = rewind(agent)
    assert plan.undone.kept == {b".git/worktrees/theirs": ELSEWHERE}
    assert rewind(agent, is_exact=True).undone.kept == {b".git/worktrees/theirs": ELSEWHERE}
    assert git(tmp_path / "theirs", "status", "--porcelain") == ""


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_branch_of_a_work_tree_elsewhere_stays_and_is_named(
    agent: AttachedAgent, repository: Path, tmp_path: Path, is_exact: bool
) -> None:
    git(repository, "worktree", "add", "-q", "-b", "theirs", str(tmp_path / "theirs"))
    agent.prompt()
    agent.run(f"{COMMIT} --allow-empty -m agent; git update-ref refs/heads/theirs main")
    there = git(tmp_path / "theirs", "rev-parse", "HEAD")
    plan = rewind(agent, is_exact=is_exact)
    assert plan.undone.conflicts == {b".git/refs/heads/theirs": HELD}
    assert git(tmp_path / "theirs", "rev-parse", "HEAD") == there
    assert git(repository, "rev-parse", "main") != there


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("kind", ["--detach", "-b"])
def test_a_repository_stays_with_a_work_tree_elsewhere(
    agent: AttachedAgent, project: Path, tmp_path: Path, kind: str, is_exact: bool
) -> None:
    agent.prompt()
    agent.call(lambda: make_repository(project))
    words = [kind] if kind == "--detach" else [kind, "theirs"]
    git(project, "worktree", "add", "-q", *words, str(tmp_path / "theirs"))
    plan = rewind(agent, is_exact=is_exact)
    assert plan.undone.conflicts[b".git"] == REPOSITORY
    assert git(tmp_path / "theirs", "status", "--porcelain") == ""


def test_a_bare_repository(agent: AttachedAgent, repository: Path) -> None:
    git(repository, "clone", "-q", "--bare", ".", "hub.anything")
    known = seen(repository / "hub.anything")
    agent.prompt()
    agent.run(f"{COMMIT} --allow-empty -m agent; git push -q hub.anything main")
    made = seen(repository / "hub.anything")
    git(repository / "hub.anything", "gc", "-q")
    plan = rewind(agent)
    assert sorted(plan.undone.repositories) == [b".git", b"hub.anything"]
    assert seen(repository / "hub.anything") == known
    take_back_last(agent.store, repository)
    assert seen(repository / "hub.anything") == made


def test_a_bare_repository_into_which_a_person_has_pushed(
    agent: AttachedAgent, repository: Path
) -> None:
    git(repository, "clone", "-q", "--bare", ".", "hub")
    agent.prompt()
    agent.run(f"{COMMIT} --allow-empty -m agent; git push -q hub main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "mine")
    git(repository, "push", "-q", "hub", "main")
    known = seen(repository / "hub")
    plan = rewind(agent)
    assert plan.undone.conflicts == {b".git": REPOSITORY, b"hub": REPOSITORY}
    assert seen(repository / "hub") == known


def test_a_repository_whose_git_directory_is_beside_it(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "-q", "--separate-git-dir", str(project / "kept-here"), "work")
    (project / "work/f").write_text("1\n")
    git(project / "work", "add", "f")
    git(project / "work", "commit", "-qm", "first")
    known = seen(project / "work")
    agent.prompt()
    agent.run(f"cd work; echo 2 > f; {COMMIT} -am agent; git gc -q")
    rewind(agent)
    assert seen(project / "work") == known
    assert git(project / "work", "status", "--porcelain") == ""


def test_large_files_of_git(agent: AttachedAgent, repository: Path) -> None:
    """As git-lfs keeps them."""
    digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    kept = repository / f".git/lfs/objects/4d/7a/{digest}"
    agent.prompt()
    agent.run(f"mkdir -p {kept.parent}; echo large > {kept}; {COMMIT} --allow-empty -m agent")
    rewind(agent)
    assert kept.read_text() == "large\n"
    agent.run("rm -rf .git/lfs")
    rewind(agent, "1.2")
    assert kept.read_text() == "large\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_branch_in_whose_way_another_one_is(
    agent: AttachedAgent, repository: Path, packed: bool
) -> None:
    git(repository, "branch", "a/c")
    git(repository, "stash", "-q")
    agent.prompt()
    agent.run(f"git branch -D a/c; {COMMIT} --allow-empty -m agent; git stash drop")
    git(repository, "branch", "a")
    if packed:
        git(repository, "pack-refs", "--all")
    known = seen(repository)
    plan = rewind(agent)
    assert plan.undone.conflicts == {b".git": REPOSITORY}
    assert seen(repository) == known


def test_a_branch_on_which_a_work_tree_in_the_project_is(
    agent: AttachedAgent, repository: Path
) -> None:
    agent.prompt()
    agent.run(f"git branch topic; {COMMIT} --allow-empty -m agent")
    git(repository, "worktree", "add", "-q", "trees/topic", "topic")
    known = seen(repository)
    assert rewind(agent).undone.conflicts == {b".git": REPOSITORY}
    assert seen(repository) == known
    git(repository, "worktree", "remove", "trees/topic")
    assert rewind(agent).is_whole
    assert "topic" not in git(repository, "branch")


def test_a_project_that_is_a_bare_repository(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "-q", "--bare", ".")
    agent.prompt()
    agent.run("git symbolic-ref HEAD refs/heads/other")
    for is_exact in (False, True):
        with pytest.raises(Refused, match="is a git repository itself"):
            rewind(agent, is_exact=is_exact)
    with pytest.raises(Refused, match="is a git repository itself"):
        rewind_files.plan_last(agent.store, project, agent.steps())
