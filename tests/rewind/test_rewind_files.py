"""Rewinds of files: what the agent did goes, what a person did stays, and undo brings it back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs.errors import CasfsError, Conflict, NotFound
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.rewind.undo_calls import LARGE
from casfs.sessions.session_steps import Point
from casfs.trees.snapshot.walker import MAX_DEPTH
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.restores import take_back_last


def rewind(agent: AttachedAgent, point: str, *, is_exact: bool = False) -> FilePlan:
    steps = agent.steps()
    plan = rewind_files.plan(
        agent.store, agent.directory, steps, Choice(Point.parse(point), is_exact=is_exact)
    )
    if plan.undone.changed:
        rewind_files.do(agent.store, agent.directory, plan)
    return plan


def changed(plan: FilePlan) -> list[bytes]:
    return [change.path for change in plan.undone.changed]


def git(directory: Path, *arguments: str) -> str:
    argv = ["git", "-C", directory, "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_a_shell_command_is_taken_back(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    point = agent.run("sed -i s/1/one/ a; rm b; mkdir -p d/e; echo new > d/e/f; chmod +x a")
    (project / "mine").write_text("mine")
    plan = rewind(agent, point)
    assert changed(plan) == [b"a", b"b", b"d/e/f"]
    (project / "mine").unlink()
    assert contents(project) == contents(agent.copy_of(point))


def test_both_have_changed_other_lines_of_a_file(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    point = agent.run("sed -i s/1/one/ a")
    (project / "a").write_text((project / "a").read_text().replace("8", "eight"))
    plan = rewind(agent, point)
    assert plan.undone.conflicts == {}
    assert (project / "a").read_text() == "1\n2\n3\n4\n5\n6\n7\neight\n"


def test_both_have_changed_the_same_line(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/8/eight/ a")
    agent.run("sed -i s/1/one/ a; echo x >> b")
    (project / "a").write_text((project / "a").read_text().replace("one", "ONE"))
    before = (project / "a").read_text()
    plan = rewind(agent, "1")
    assert plan.undone.conflicts == {b"a": "changed since, in the same lines or next to them"}
    assert (project / "a").read_text() == before
    assert (project / "b").read_text() == "b\n"


def test_what_a_person_did_between_two_calls(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a")
    (project / "a").write_text((project / "a").read_text().replace("4", "four"))
    (project / "mine").write_text("mine")
    agent.run("sed -i s/8/eight/ a; echo more >> mine; rm b")
    rewind(agent, "1")
    assert (project / "a").read_text() == "1\n2\n3\nfour\n5\n6\n7\n8\n"
    assert (project / "mine").read_text() == "mine"
    assert (project / "b").read_text() == "b\n"


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        ("rm a", "echo x >> a", "deleted since"),
        ("echo y >> new", "printf x > new", "changed since"),
        ("printf '\\0\\1' > a", "printf '\\0' > a", "changed since, and it is not a text"),
        ("ln -sf b a", "echo x >> a", "changed since, and it is not a text"),
        ("rm new; mkdir new; echo y > new/f", "echo x > new", "a directory is there now"),
    ],
)
def test_what_cannot_be_merged(
    agent: AttachedAgent, project: Path, mine: str, theirs: str, reason: str
) -> None:
    agent.prompt()
    agent.run(theirs)
    subprocess.run(["sh", "-c", mine], cwd=project, check=True)
    before = contents(project)
    plan = rewind(agent, "1")
    assert list(plan.undone.conflicts.values()) == [reason]
    assert contents(project) == before


def test_a_file_where_a_directory_was(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("rm b; mkdir b; echo x > b/x")
    rewind(agent, "1")
    assert (project / "b").read_text() == "b\n"
    agent.run("rm b; mkdir b; echo x > b/x")
    (project / "b/mine").write_text("mine")
    plan = rewind(agent, "1.2")
    assert b"b" in plan.undone.conflicts
    assert (project / "b/mine").read_text() == "mine"


def test_a_file_where_a_directory_with_directories_was(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    point = agent.run("rm b; mkdir -p b/deep/er; echo x > b/deep/er/x; mkdir b/empty; echo y > b/y")
    assert rewind(agent, point).undone.conflicts == {}
    assert contents(project) == contents(agent.copy_of(point))


def test_an_empty_directory_that_was_filled(agent: AttachedAgent, project: Path) -> None:
    (project / "empty/inner").mkdir(parents=True)
    agent.prompt()
    agent.run("echo x > empty/inner/x; mkdir -p made/deep; echo x > made/deep/x; mv b empty/b")
    rewind(agent, "1")
    assert contents(project) == contents(agent.copy_of("1"))


def test_exactly_as_it_was(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x >> a")
    (project / "mine").write_text("mine")
    second = agent.run("rm -r mine b; mkdir empty; ln -s a link")
    third = agent.run("rm -r empty link")
    (project / "later").write_text("later")
    for point in (third, second, "1"):
        rewind(agent, point, is_exact=True)
        assert contents(project) == contents(agent.copy_of(point))


def test_undo_brings_it_back(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x >> a; rm b; echo .env; echo TOKEN=1 > .env; mkdir d; echo 1 > d/x")
    (project / "mine").write_text("mine")
    before = contents(project)
    rewind(agent, "1", is_exact=True)
    assert "mine" not in contents(project)
    take_back_last(agent.store, project)
    assert contents(project) == before


def test_private_and_derived_files(agent: AttachedAgent, project: Path) -> None:
    (project / "package.json").write_text("{}")
    agent.prompt()
    agent.run("mkdir -p node_modules/x; echo 1 > node_modules/x/index.js; echo A=1 > .env")
    agent.run("echo 2 > node_modules/x/index.js; rm .env")
    rewind(agent, "1.2")
    assert (project / "node_modules/x/index.js").read_text() == "1\n"
    assert (project / ".env").read_text() == "A=1\n"
    rewind(agent, "1")
    assert contents(project) == contents(agent.copy_of("1"))


def test_other_prompts_stay(agent: AttachedAgent, project: Path) -> None:
    agent.prompt("first")
    agent.run("echo 1 > one")
    agent.stop()
    agent.prompt("second")
    agent.run("echo 2 > two")
    rewind(agent, "2")
    assert (project / "one").exists()
    assert not (project / "two").exists()


def test_the_last_and_the_last_before_it(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo 1 > one")
    agent.run("true")
    agent.run("echo 2 > two")
    for gone in ("two", "one"):
        steps = agent.steps()
        plan = rewind_files.plan_last(agent.store, project, steps)
        rewind_files.do(agent.store, project, plan)
        assert not (project / gone).exists()
    with pytest.raises(NotFound, match="no call of this session has changed a file"):
        rewind_files.plan_last(agent.store, project, agent.steps())


def test_a_commit_is_undone_as_a_whole(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    agent.prompt()
    commit = "git -c user.name=x -c user.email=x@y commit -qam second"
    agent.run(f"echo x >> a; {commit}")
    rewind(agent, "1")
    assert git(project, "log", "--format=%s").split() == ["first"]
    assert git(project, "status", "--porcelain") == ""
    git(project, "fsck", "--strict")


def test_a_repository_that_a_person_went_on_with(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    agent.prompt()
    agent.run("echo x >> b; git -c user.name=x -c user.email=x@y commit -qam second")
    (project / "a").write_text("mine\n")
    git(project, "commit", "-qam", "third")
    plan = rewind(agent, "1")
    assert {path.split(b"/")[0] for path in plan.undone.conflicts} == {b".git"}
    assert set(plan.undone.conflicts.values()) == {"its repository has changed since"}
    assert git(project, "log", "--format=%s").split() == ["third", "second", "first"]
    assert (project / "b").read_text() == "b\n"
    git(project, "fsck", "--strict")


def test_a_reset_of_uncommitted_work(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    (project / "a").write_text("uncommitted\n")
    (project / "untracked").write_text("untracked\n")
    agent.prompt()
    point = agent.run("git reset -q --hard; git clean -qfdx")
    assert not (project / "untracked").exists()
    rewind(agent, point)
    assert (project / "a").read_text() == "uncommitted\n"
    assert (project / "untracked").read_text() == "untracked\n"


def test_changes_that_are_not_known_to_be_its(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.call(
        lambda: subprocess.run(["sh", "-c", "echo x > other; echo y >> b"], cwd=project),
        "Edit",
        path="b",
    )
    plan = rewind(agent, "1")
    assert plan.undone.kept == {b"other": "ambiguous"}
    assert (project / "other").exists()
    assert (project / "b").read_text() == "b\n"


@pytest.mark.parametrize("is_exact", [False, True])
def test_what_is_left_out_now_stays(agent: AttachedAgent, project: Path, is_exact: bool) -> None:
    """Whoever wrote the rule: the agent's look does not see how a person goes on."""
    (project / "notes.txt").write_text("old\n")
    agent.prompt()
    point = agent.run("echo notes.txt > .casfsignore; echo x >> a")
    (project / "notes.txt").write_text("mine\n")
    plan = rewind(agent, point, is_exact=is_exact)
    assert plan.undone.kept == {b"notes.txt": ".casfsignore leaves it out"}
    assert (project / "notes.txt").read_text() == "mine\n"
    assert not (project / ".casfsignore").exists()
    assert contents(project).keys() == contents(agent.copy_of(point)).keys()


def test_what_is_no_longer_left_out_is_not_what_a_call_has_made(
    agent: AttachedAgent, project: Path
) -> None:
    (project / ".casfsignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data/mine").write_text("mine")
    agent.prompt()
    agent.run("rm .casfsignore; echo x >> a")
    plan = rewind(agent, "1")
    assert plan.undone.kept == {b"data": ".casfsignore leaves it out"}
    assert contents(project) == contents(agent.copy_of("1"))


def test_a_persons_file_whose_path_has_a_private_value(agent: AttachedAgent, project: Path) -> None:
    """Redacted, the path of a change that is not the agent's would be no path any more."""
    (project / ".env").write_text("POSTGRES_PASSWORD=postgres\n")
    for name in ("postgres/init.sql", "other.sql"):
        (project / "docker" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "docker" / name).write_text("one\n")
    agent.prompt()

    def act() -> None:
        (project / "a").write_text("agent\n")
        for name in ("postgres/init.sql", "other.sql"):
            with (project / "docker" / name).open("a") as file:
                file.write("mine\n")

    agent.call(act, "Edit", path="a")
    plan = rewind(agent, "1")
    assert plan.undone.kept.keys() == {b"docker/postgres/init.sql", b"docker/other.sql"}
    assert (project / "docker/postgres/init.sql").read_text() == "one\nmine\n"
    assert (project / "docker/other.sql").read_text() == "one\nmine\n"


# -- calls that are interrupted, and calls at once --------------------------------------------


@pytest.mark.parametrize("next_event", ["stop", "quit", "resume", "prompt"])
def test_a_call_that_was_interrupted(
    agent: AttachedAgent, project: Path, next_event: str, tmp_path: Path
) -> None:
    """No hook tells of its end: it ends with the next thing that is known."""
    agent.prompt()
    agent.begin("c1")
    agent.shell("rm b; sed -i s/1/one/ a; mkdir d; echo x > d/x")
    if next_event == "prompt":
        agent.answered("c1", "[Request interrupted by user for tool use]", tmp_path)
    getattr(agent, next_event)()
    (call,) = agent.steps()[0].calls
    assert call.is_interrupted
    plan = rewind_files.plan_last(agent.store, project, agent.steps())
    assert changed(plan) == [b"a", b"b", b"d/x"]
    rewind_files.do(agent.store, project, plan)
    assert contents(project) == contents(agent.copy_of("1"))


def test_one_whose_agent_never_asks_was_not_refused(
    agent: AttachedAgent, project: Path, tmp_path: Path
) -> None:
    agent.prompt()
    agent.begin("c1", permission_mode="bypassPermissions")
    agent.shell("rm b")
    agent.answered("c1", "The tool use was rejected", tmp_path)
    agent.stop()
    rewind(agent, "1")
    assert contents(project) == contents(agent.copy_of("1"))


def test_what_is_open_when_the_daemon_starts_again_is_named(
    agent: AttachedAgent, project: Path
) -> None:
    """What has changed meanwhile may be a person's."""
    agent.prompt()
    agent.begin("c1")
    agent.shell("rm b")
    with agent.another_daemon() as again:
        again.stop()
        (call,) = again.steps()[0].calls
        assert call.is_interrupted
        plan = rewind(again, "1")
    assert plan.undone.kept.keys() == {b"b"}
    assert not (project / "b").exists()


def test_calls_at_once_are_taken_back_together(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    before = contents(project)
    point = agent.run("echo first > first")
    after_first = contents(project)
    agent.begin("one")
    agent.shell("echo 1 > one.txt; echo 1 >> both")
    agent.begin("two")
    agent.shell("echo 2 > two.txt; echo 2 >> both; rm b")
    agent.end("one")
    agent.shell("echo 2 >> two.txt")
    agent.end("two")
    (project / "mine").write_text("mine")
    plan = rewind_files.plan_last(agent.store, project, agent.steps())
    assert (str(plan.point), plan.undone.kept, plan.undone.conflicts) == ("1.2", {}, {})
    rewind_files.do(agent.store, project, plan)
    (project / "mine").unlink()
    assert contents(project) == after_first
    take_back_last(agent.store, project)
    plan = rewind(agent, "1.3")
    assert str(plan.point) == "1.2", "from before the group"
    assert contents(project) == after_first
    rewind(agent, point)
    assert contents(project) == before


def test_a_file_that_changes_after_the_plan(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x >> a; echo x > new")
    steps = agent.steps()
    plan = rewind_files.plan(agent.store, project, steps, Choice(Point(1)))
    (project / "a").write_text("meanwhile\n" + (project / "a").read_text())
    with pytest.raises(Conflict, match="a has changed since"):
        rewind_files.do(agent.store, project, plan)
    assert (project / "new").exists()
    plan = rewind_files.plan(agent.store, project, steps, Choice(Point(1)))
    (project / "b").write_text("meanwhile")  # is none of its paths
    rewind_files.do(agent.store, project, plan)
    assert (project / "a").read_text() == "meanwhile\n1\n2\n3\n4\n5\n6\n7\n8\n"
    assert (project / "b").read_text() == "meanwhile"


def test_what_comes_into_a_directory_after_the_plan(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("rm b; mkdir b; echo x > b/x")
    plan = rewind_files.plan(agent.store, project, agent.steps(), Choice(Point(1)))
    (project / "b/mine").write_text("mine")
    before = contents(project)
    with pytest.raises(CasfsError, match="b"):
        rewind_files.do(agent.store, project, plan)
    assert contents(project) == before


def test_what_comes_into_a_directory_that_goes(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("mkdir d; echo x > new")
    plan = rewind_files.plan(agent.store, project, agent.steps(), Choice(Point(1)))
    (project / "d/mine").write_text("mine")
    done = rewind_files.do(agent.store, project, plan)
    assert done.failed == {b"d": "it holds files that came meanwhile"}
    assert (project / "d/mine").read_text() == "mine"
    assert not (project / "new").exists()


def test_a_plan_stores_nothing(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x >> a")
    (project / "mine").write_text("never stored")
    before = sum(1 for _ in agent.store.blobs.iterate())
    rewind_files.plan(agent.store, project, agent.steps(), Choice(Point(1)))
    assert sum(1 for _ in agent.store.blobs.iterate()) == before


@pytest.mark.parametrize("text", ["x", "1.x", "", "9", "1.9", "1.0", "-1"])
def test_points_that_are_none(agent: AttachedAgent, project: Path, text: str) -> None:
    agent.prompt()
    agent.run("true")
    with pytest.raises(NotFound):
        rewind(agent, text)


def test_what_no_tool_builds_keeps_its_date(agent: AttachedAgent, project: Path) -> None:
    """A new mtime of 2,402 of 2,403 files would trigger every file watcher."""
    git(project, "init", "-q")
    sources = [project / name for name in ("a", "b", "src/x.c", "node_modules/p/index.js")]
    for source in sources:
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("1\n")
    (project / "package.json").write_text("{}")
    git(project, "add", "a", "b", "src")
    (project / "x.o").write_text("built of src/x.c and a")
    os.utime(project / "a", ns=(1, 10**18))  # all others are newer
    agent.prompt()
    agent.run("sed -i s/1/one/ a")
    before = {path: path.stat().st_mtime_ns for path in (*sources, project / "x.o")}
    rewind(agent, "1")
    changed_dates = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert changed_dates == {project / "a", project / "x.o"}
    assert (project / "x.o").stat().st_mtime_ns > (project / "a").stat().st_mtime_ns


def test_what_is_too_large_to_merge_is_called_so(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("truncate -s 101M a")
    os.truncate(project / "a", 102 << 20)
    assert rewind(agent, "1").undone.conflicts == {b"a": LARGE}


def test_directories_that_are_too_deep_are_left_out(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    deep = f"i=0; while [ $i -lt {MAX_DEPTH + 9} ]; do mkdir d; cd d; i=$((i+1)); done; echo x > f"
    agent.run(deep)
    point = agent.run("echo y >> a")
    rewind(agent, point)
    assert (project / "a").read_text() == "1\n2\n3\n4\n5\n6\n7\n8\n"
    assert (project / "d").exists()
