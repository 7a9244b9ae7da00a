"""A git repository goes back as git sees it: by its refs, its HEAD and what its index tracks."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.directories import operations
from casfs.directories.operations import PERSON, Intent, Verb
from casfs.rewind import rewind_files, take_back
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.sessions.session_steps import Point
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore
from tests.support import repositories
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.repositories import (
    COMMIT,
    DESTRUCTIVE,
    OPTIONS,
    git,
    make_lender,
    make_repository,
)
from tests.support.restores import restore_tree, take_back_last

RESTORE = Intent(Verb.RESTORE, "")


def seen_by_git(directory: Path) -> tuple[str, ...]:
    return (*repositories.seen_by_git(directory), git(directory, "status", "--porcelain", "-b"))


def files(directory: Path) -> dict[str, tuple[str, bytes]]:
    return {
        name: entry for name, entry in contents(directory).items() if name.split("/")[0] != ".git"
    }


def rewind(agent: AttachedAgent, point: str = "1", *, is_exact: bool = False) -> FilePlan:
    steps = agent.steps()
    target = Point.parse(point)
    plan = rewind_files.plan(agent.store, agent.directory, steps, Choice(target, is_exact=is_exact))
    if plan.undone.changed:
        rewind_files.do(agent.store, agent.directory, plan)
    return plan


@pytest.fixture
def repository(project: Path) -> Path:
    make_repository(project)
    return project


SINCE = {
    "nothing": [],
    "status": [["status"]],
    "gc": [["gc", "-q"]],
    "pack-refs": [["pack-refs", "--all"]],
    "add of nothing": [["add", "-u", "--", "nothing-there*"]],
}


@pytest.mark.parametrize("command", DESTRUCTIVE)
@pytest.mark.parametrize("is_exact", [False, True], ids=["rewind", "exact"])
def test_what_destroys_comes_back(
    agent: AttachedAgent, repository: Path, command: str, is_exact: bool
) -> None:
    known, before = seen_by_git(repository), files(repository)
    agent.prompt()
    agent.run(command)
    rewind(agent, is_exact=is_exact)
    assert files(repository) == before
    assert seen_by_git(repository) == known
    if not is_exact:
        assert rewind(agent).undone.changed == [], "it is back"


def test_objects_that_git_has_packed_are_not_lost(agent: AttachedAgent, repository: Path) -> None:
    agent.prompt()
    agent.run("git gc -q")
    assert rewind(agent).undone.changed == []
    assert rewind(agent, is_exact=True).undone.changed == []


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize(
    "command", [DESTRUCTIVE[0], DESTRUCTIVE[6], DESTRUCTIVE[9], DESTRUCTIVE[4]]
)
def test_what_git_writes_by_itself_is_no_change(
    agent: AttachedAgent, repository: Path, command: str, since: str
) -> None:
    """Between the call and the rewind, and between that and its undo."""
    known, before = seen_by_git(repository), files(repository)
    agent.prompt()
    agent.run(command)
    after = files(repository)
    for arguments in SINCE[since]:
        subprocess.run(["git", "-C", repository, *OPTIONS, *arguments], capture_output=True)
    left = seen_by_git(repository)
    plan = rewind(agent)
    assert (plan.undone.conflicts, plan.undone.kept) == ({}, {})
    assert (seen_by_git(repository), files(repository)) == (known, before)
    for arguments in SINCE[since]:
        subprocess.run(["git", "-C", repository, *OPTIONS, *arguments], capture_output=True)
    take_back_last(agent.store, repository)
    assert files(repository) == after
    assert seen_by_git(repository) == left


def test_a_gc_is_no_change(agent: AttachedAgent, repository: Path) -> None:
    agent.prompt()
    agent.run("git gc -q; git status")
    assert rewind(agent).undone.changed == []
    agent.run("git gc -q --prune=now; echo x >> a")
    plan = rewind(agent)
    assert [change.path for change in plan.undone.changed] == [b"a"]


def test_a_commit_of_a_person_since_stays(agent: AttachedAgent, repository: Path) -> None:
    agent.prompt()
    agent.run(f"echo x >> b; {COMMIT} -am agent")
    git(repository, "add", "untracked")
    git(repository, "commit", "-qm", "mine")
    known = seen_by_git(repository)
    plan = rewind(agent)
    assert plan.undone.conflicts == {b".git": "its repository has changed since"}
    assert seen_by_git(repository)[:3] == known[:3]
    assert (repository / "b").read_text() == "second\n"


def test_another_branch_of_a_person_since_stays(agent: AttachedAgent, repository: Path) -> None:
    known = seen_by_git(repository)
    agent.prompt()
    agent.run(f"echo x >> b; {COMMIT} -am agent")
    git(repository, "branch", "mine", "HEAD~1")
    plan = rewind(agent)
    assert plan.undone.conflicts == {}
    mine = git(repository, "for-each-ref", "refs/heads/mine")
    assert git(repository, "for-each-ref").replace(mine, "") == known[0]
    assert mine


def test_what_another_work_tree_has_is_its_own(
    agent: AttachedAgent, repository: Path, tmp_path: Path
) -> None:
    """It is made while a call of the agent runs."""
    agent.prompt()
    agent.run(
        f"git worktree add -q -b theirs {tmp_path}/theirs side; echo x >> b; {COMMIT} -am agent"
    )
    rewind(agent)
    assert git(tmp_path / "theirs", "status", "--porcelain") == ""
    assert git(tmp_path / "theirs", "log", "--format=%s").split() == ["first"]
    assert git(repository, "log", "--format=%s").split() == ["second", "first"]
    git(repository, "fsck", "--strict")


def test_it_is_said_in_words(agent: AttachedAgent, repository: Path) -> None:
    old = git(repository, "rev-parse", "--short=7", "HEAD").strip()
    agent.prompt()
    agent.run(f"echo x >> b; {COMMIT} -am agent; git checkout -q -b new")
    new = git(repository, "rev-parse", "--short=7", "HEAD").strip()
    undone = rewind(agent).undone
    assert undone.repositories == {
        b".git": ["HEAD new → main", f"main {new} → {old}", f"new {new} → none", "index"]
    }
    assert [change.path for change in undone.changed_files] == [b"b"]


def test_a_nested_repository(agent: AttachedAgent, project: Path) -> None:
    nested = project / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    (nested / "f").write_text("1")
    git(nested, "add", "-A")
    git(nested, "commit", "-qm", "1")
    known, before = seen_by_git(nested), contents(project).keys()
    agent.prompt()
    agent.run(f"cd nested; echo 2 > f; {COMMIT} -am 2")
    rewind(agent)
    assert seen_by_git(nested) == known
    assert before <= contents(project).keys()


def test_a_repository_in_which_git_writes_while_it_is_looked_at(
    agent: AttachedAgent, repository: Path
) -> None:
    """A look takes time, and no hook waits for it: half of a commit is a damaged repository."""
    agent.prompt()
    known = seen_by_git(repository)
    agent.copies = None  # a lock that is copied may be gone by then
    script = f"for n in $(seq 60); do {COMMIT} --allow-empty -m $n; done"
    busy = subprocess.Popen(["sh", "-c", script], cwd=repository)
    try:
        for _ in range(6):
            agent.run("true")
    finally:
        busy.wait()
    agent.run("true")
    for step in agent.steps():
        for call in step.calls:
            for state in (call.before, call.after):
                assert state is not None
                if not call.is_torn:
                    is_sound(agent, state.full)
    assert known != seen_by_git(repository)


def is_sound(agent: AttachedAgent, root: TreeHash) -> None:
    """Writes a recorded repository elsewhere, and has git look at it."""
    with tempfile.TemporaryDirectory() as folder:
        restore_tree(agent.store, root, Path(folder) / "again")
        git(Path(folder) / "again", "fsck", "--strict")
        git(Path(folder) / "again", "log", "--oneline")


def test_a_branch_that_goes_is_not_in_the_way_of_others(
    agent: AttachedAgent, repository: Path
) -> None:
    """By its log, which git sees though the branch is gone."""
    git(repository, "branch", "feature")
    agent.prompt()
    agent.run("git branch -q -d feature; git branch feature/x")
    rewind(agent)
    git(repository, "gc", "-q")
    git(repository, "switch", "-q", "feature")
    git(repository, "commit", "-q", "--allow-empty", "-m", "more")
    agent.run("git branch other/x")
    rewind(agent, "1.2")
    git(repository, "branch", "other")


def test_alternates_come_back(agent: AttachedAgent, project: Path, tmp_path: Path) -> None:
    lender = make_lender(tmp_path / "lender")
    git(project, "clone", "-q", "--shared", str(lender), "inner")
    agent.prompt()
    for command in ("rm -rf inner/.git/objects", "rm inner/.git/objects/info/alternates"):
        agent.run(command)
        rewind(agent)
        git(project / "inner", "fsck", "--full")


def test_an_index_that_is_split_comes_back(agent: AttachedAgent, repository: Path) -> None:
    for number in range(50):
        (repository / f"x{number}").write_text(f"{number}\n")
    git(repository, "add", ".")
    git(repository, "config", "core.splitIndex", "true")
    git(repository, "config", "splitIndex.sharedIndexExpire", "now")
    git(repository, "update-index", "--split-index")
    known = seen_by_git(repository)
    agent.prompt()
    agent.run(
        "for i in $(seq 60); do echo $i >y$i; done; git add .; git update-index --split-index;"
        " rm -f .git/sharedindex.*; git update-index --split-index"
    )
    rewind(agent)
    assert seen_by_git(repository) == known


def test_a_restore_of_a_session_deletes_no_object(agent: AttachedAgent, project: Path) -> None:
    """A commit that was made on one that the restored state does not have."""
    make_repository(project)
    agent.prompt()
    agent.run(f"echo x >> a; {COMMIT} -am agent; git gc -q")
    agent.prompt()
    git(project, "commit", "-q", "--allow-empty", "-m", "mine")
    mine = git(project, "rev-parse", "HEAD").strip()
    steps = agent.steps()
    first, second = steps[0].before, steps[1].before
    assert first is not None
    assert second is not None
    options = RestoreOptions(force=True, operation=RESTORE, base=second.full)
    for state in (first, second, first):
        restore(agent.store, state, project, options)
        assert mine not in git(project, "rev-parse", "HEAD")
        git(project, "fsck", "--strict", mine)
        assert git(project, "log", "--format=%s", mine).split()[:2] == ["mine", "agent"]


def test_a_ref_is_not_brought_back_to_a_commit_that_gc_has_deleted(
    agent: AttachedAgent, project: Path
) -> None:
    make_repository(project)
    agent.prompt()
    agent.run(f"echo x >> a; {COMMIT} -am agent")
    (step,) = agent.steps()
    first, second = step.before, step.calls[0].after
    assert first is not None
    assert second is not None
    options = RestoreOptions(force=True, operation=RESTORE, base=second.full)
    restore(agent.store, first, project, options)
    git(project, "reflog", "expire", "--expire=now", "--all")
    git(project, "gc", "-q", "--prune=now")
    known = seen_by_git(project)
    operation = operations.log_of(agent.store, project).to_undo(PERSON)
    assert operation is not None
    plan = take_back.plan(agent.store, project, operation, is_again=False)
    assert plan.undone.conflicts == {b".git": "git has deleted commits of its repository since"}
    take_back.do(agent.store, plan, PERSON)
    assert seen_by_git(project)[:-1] == known[:-1]
    git(project, "fsck", "--strict")
    assert (project / "a").read_text().endswith("x\n"), "the file comes back"
