"""Whose changes lie between two looks at a directory: of which call, of a person, or of nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.attach.agents import AGENTS
from casfs.checkpoints.extents import PROJECT
from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.derived import CACHE_SIGNATURE, CACHE_TAG
from casfs.worktrees import project_files
from engine.sessions.boundary import Boundary
from engine.sessions.events import SessionEvent
from engine.sessions.session_directory import SessionDirectory
from tests.support.following import OwnSessionDirectory
from tests.support.helpers import write_tree
from tests.support.repositories import git, make_repository
from tests.support.sessions import ClaudeEvents

WRITER = "import sys\nfor line in sys.stdin: open(line.strip(), 'a').write('x'); print(flush=True)"
needs_pids = pytest.mark.skipif(os.geteuid() != 0, reason="only root is told who writes")


class Writer:
    """A process that lives, and writes when it is told."""

    def __init__(self, *, is_orphan: bool = False, **variables: str) -> None:
        own = {agent.session_variable for agent in AGENTS.values()}  # where an agent runs the tests
        inherited = {name: value for name, value in os.environ.items() if name not in own}
        self.process = subprocess.Popen(
            [*(["setsid", "--fork"] if is_orphan else []), sys.executable, "-c", WRITER],
            env={**inherited, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def write(self, path: Path) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("1")
    return folder


@pytest.fixture
def directory(disk_store: Store, project: Path) -> Iterator[OwnSessionDirectory]:
    followed = OwnSessionDirectory(disk_store, project, None)
    yield followed
    followed.close()


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """Three processes: those of two agents, and a person's."""
    made = [Writer() for _ in range(3)]
    yield made
    for writer in made:
        writer.end()


@pytest.fixture
def sessions(project: Path, writers: list[Writer]) -> list[ClaudeEvents]:
    """Two sessions in one directory; the process of each is a writer."""
    return [
        ClaudeEvents(project, session=f"session {number}", pid=writers[number].process.pid)
        for number in range(2)
    ]


def at(
    directory: OwnSessionDirectory, session: ClaudeEvents, payload: dict[str, object]
) -> Boundary:
    return directory.boundary(session.event(payload), lambda: None)


def files(store: Store, boundary: Boundary) -> dict[bytes, int]:
    """Returns the size of each file."""
    assert boundary.state is not None
    entries = tree.walk(store, boundary.state.full)
    return {path: entry.digest.size_bytes for path, entry in entries if isinstance(entry, File)}


def write_all(folder: Path, *names: str, text: str) -> None:
    for name in names:
        (folder / name).write_text(text)


def test_the_directory_before_and_after(
    disk_store: Store,
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    before = at(directory, session, session.call("c1", command="x"))
    writers[0].write(project / "b")
    after = at(directory, session, session.result("c1"))
    assert set(files(disk_store, before)) == {b"a"}
    assert set(files(disk_store, after)) == {b"a", b"b"}
    assert after.foreign == {}
    assert not after.is_late


def test_what_changes_once_the_agent_may_go_on(
    disk_store: Store, project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    """It goes on as soon as all is read: what it does then is not of the call that has ended."""
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    at(directory, session, session.call("c1", command="x"))
    (project / "a").write_text("22")
    after = directory.boundary(
        session.event(session.result("c1")), lambda: write_all(project, "a", "b", text="333")
    )
    assert files(disk_store, after) == {b"a": 2}
    assert not after.is_late
    assert files(disk_store, at(directory, session, session.stop())) == {b"a": 3, b"b": 3}


def test_new_files_below_derived_directories_stay_here(
    disk_store: Store, project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    """Also where the directories above, which say what is derived, are not listed again."""
    session = sessions[0]
    derived = project / "node_modules/left/pad"
    derived.mkdir(parents=True)
    write_all(project, "package.json", text="{}")
    (project / "link").symlink_to("a")
    for path in project.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    at(directory, session, session.prompt("go"))
    time.sleep(stat_cache.RACY_WINDOW_NS / 1e9)  # else all is listed again
    for text in ("left", "right"):
        write_all(derived, "index.js", text=text)
        boundary = at(directory, session, session.call(text, command="x"))
        assert boundary.state is not None
        assert tree.find(disk_store, boundary.state.tree, b"node_modules") is None
        assert tree.find(disk_store, boundary.state.tree, b"link") is not None
        new = tree.find(disk_store, boundary.state.full, b"node_modules/left/pad/index.js")
        assert isinstance(new, File)
        assert disk_store.blobs.local_among([new.digest.hash]) == {new.digest.hash}


def test_a_directory_with_a_tag_stays_derived(
    disk_store: Store, project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    """Its own listing says that it is; also where it is only on the way to a change."""
    session = sessions[0]
    inner = project / ".tox/py/lib"
    inner.mkdir(parents=True)
    (project / ".tox" / CACHE_TAG.decode()).write_bytes(CACHE_SIGNATURE)
    at(directory, session, session.prompt("go"))
    for number, changed in enumerate(([project, inner], [inner], [project], [inner])):
        for folder in changed:
            write_all(folder, "f", text=f"{number} {folder}")
        boundary = at(directory, session, session.call(str(number), command="x"))
        assert boundary.state is not None
        assert tree.find(disk_store, boundary.state.tree, b".tox") is None
        entry = tree.find(disk_store, boundary.state.full, b".tox/py/lib/f")
        assert isinstance(entry, File)
        assert disk_store.blobs.local_among([entry.digest.hash]) == {entry.digest.hash}


def test_what_git_tracks_once_the_agent_may_go_on(
    disk_store: Store, project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    session = sessions[0]
    git = ["git", "-C", str(project)]
    subprocess.run([*git, "init", "-q"], check=True)
    write_all(project, ".env", text="KEY=value-of-mine\n")
    at(directory, session, session.prompt("go"))
    write_all(project, "a", text="2")
    adding = [*git, "add", "-f", ".env"]
    before = directory.boundary(
        session.event(session.call("c1", command="x")),
        lambda: subprocess.check_call(adding) or None,
    )
    after = at(directory, session, session.result("c1"))
    for boundary, is_work in ((before, False), (after, True)):
        assert boundary.state is not None
        assert (tree.find(disk_store, boundary.state.tree, b".env") is not None) == is_work


def test_a_call_that_is_refused_as_soon_as_it_is_reported(
    project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents], tmp_path: Path
) -> None:
    session = sessions[0]
    transcript = tmp_path / "one.jsonl"
    transcript.write_text("{}\n")
    part = {"type": "tool_result", "tool_use_id": "c1", "content": "refused"}
    line = json.dumps({"type": "user", "message": {"content": [part]}}) + "\n"

    def call(id: str) -> SessionEvent:
        return session.event({**session.call(id, command="x"), "transcript_path": str(transcript)})

    def refuse() -> None:
        with transcript.open("a") as file:
            file.write(line)

    at(directory, session, session.prompt("go"))
    directory.boundary(call("c1"), refuse)
    assert not directory.is_idle()
    directory.boundary(call("c2"), lambda: None)
    at(directory, session, session.result("c2"))
    assert directory.is_idle()


@needs_pids
def test_a_person_writes_while_a_command_runs(
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    at(directory, session, session.call("c1", command="x"))
    writers[2].write(project / "mine")
    writers[0].write(project / "its")
    after = at(directory, session, session.result("c1"))
    assert after.foreign == {"mine": "a person"}
    at(directory, session, session.call("c2", command="x"))
    for writer in writers[2], writers[0]:
        writer.write(project / "both")
    writers[0].write(project / "its")
    # It may be what the person has written to `both`, moved.
    writers[0].write(project / "new")
    after = at(directory, session, session.result("c2"))
    assert after.foreign == {"both": "ambiguous", "new": "ambiguous"}


@needs_pids
def test_a_process_whose_ancestors_have_ended(
    project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    """As what sets a sandbox up: it is of the call in which it was started, by its environment."""
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    own = {"CLAUDE_CODE_SESSION_ID": session.session}
    earlier = Writer(is_orphan=True, **own)
    earlier.write(project / "a")
    time.sleep(0.02)  # two clock ticks
    at(directory, session, session.call("c1", command="x"))
    made = {
        "its": Writer(is_orphan=True, **own),
        "of one before": earlier,
        # As of a terminal that the agent has opened before.
        "of a child of an older one": Writer(**own),
        "of another": Writer(is_orphan=True, CLAUDE_CODE_SESSION_ID="another"),
    }
    try:
        for name, writer in made.items():
            writer.write(project / name)
        after = at(directory, session, session.result("c1"))
    finally:
        for writer in made.values():
            writer.end()
    assert after.foreign == dict.fromkeys([*made][1:], "a person")


@needs_pids
def test_two_agents_at_once(
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    first, second = sessions
    for session in sessions:
        at(directory, session, session.prompt("go"))
        at(directory, session, session.call("c1", command="x"))
    writers[0].write(project / "of the first")
    writers[1].write(project / "of the second")
    writers[0].write(project / "of both")
    writers[1].write(project / "of both")
    one = at(directory, first, first.result("c1"))
    writers[1].write(project / "later")
    two = at(directory, second, second.result("c1"))
    assert one.foreign == {"of the second": "another session", "of both": "ambiguous"}
    assert two.foreign == {"of the first": "another session", "of both": "ambiguous"}


def test_a_short_process_is_of_the_only_command(
    project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    at(directory, session, session.call("c1", command="x"))
    subprocess.run(["sh", "-c", f"echo x > {project}/short"], check=True)
    # Its file, not its process, is what the daemon sees: that has ended.
    assert at(directory, session, session.result("c1")).foreign == {}


def test_an_edit_tool_accounts_for_its_file_alone(
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    file = str(project / "a")
    at(directory, session, session.call("c1", "Edit", file_path=file))
    writers[0].write(project / "a")
    subprocess.run(["sh", "-c", f"echo x > {project}/other"], check=True)
    after = at(directory, session, session.result("c1", "Edit", file_path=file))
    assert after.foreign == {"other": "ambiguous"}


def test_between_calls_all_is_a_persons(
    disk_store: Store,
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    writers[2].write(project / "mine")
    before = at(directory, session, session.call("c1", command="x"))
    after = at(directory, session, session.result("c1"))
    assert b"mine" in files(disk_store, before)
    assert after.foreign == {}


def test_a_call_whose_beginning_was_not_seen(
    project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    session = sessions[0]
    at(directory, session, session.prompt("go"))
    assert at(directory, session, session.result("c1")).is_unseen
    assert not at(directory, session, session.result("c2", "Read")).is_unseen


def test_calls_that_a_killed_agent_left(
    directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    session = sessions[0]
    at(directory, session, session.call("c1", command="x"))
    assert not directory.is_idle()
    at(directory, session, session.payload("SessionEnd", reason="other"))
    assert directory.is_idle()


def test_an_event_that_comes_late(directory: OwnSessionDirectory, project: Path) -> None:
    session = ClaudeEvents(project)
    event = session.event(session.prompt("go"))
    time.sleep(0.4)
    assert directory.boundary(event, lambda: None).is_late


def test_private_and_derived_files_are_there(
    disk_store: Store, project: Path, directory: OwnSessionDirectory, sessions: list[ClaudeEvents]
) -> None:
    (project / ".env").write_text("TOKEN=1")
    (project / "node_modules/x").mkdir(parents=True)
    (project / "node_modules/x/index.js").write_text("1")
    (project / "package.json").write_text("{}")
    found = at(directory, sessions[0], sessions[0].prompt("go"))
    assert {b".env", b"node_modules/x/index.js"} <= set(files(disk_store, found))
    assert found.state is not None
    shown = {path for path, _ in tree.walk(disk_store, found.state.tree)}
    assert shown == {b"a", b"package.json"}


@needs_pids
def test_a_process_with_the_number_of_an_agent_that_has_ended(
    project: Path,
    directory: OwnSessionDirectory,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    first, second = sessions
    at(directory, first, first.prompt("go"))
    number = writers[0].process.pid
    directory._agents[number] = (1, "ended")  # another process had this number
    at(directory, second, second.prompt("go"))
    at(directory, second, second.call("c1", command="x"))
    writers[0].write(project / "mine")
    assert at(directory, second, second.result("c1")).foreign == {"mine": "a person"}


def test_a_call_that_its_agent_has_refused(
    directory: OwnSessionDirectory,
    project: Path,
    tmp_path: Path,
    sessions: list[ClaudeEvents],
    writers: list[Writer],
) -> None:
    """No hook tells that it is over; its transcript does."""
    session = sessions[0]
    transcript = tmp_path / "one.jsonl"
    path = {"transcript_path": str(transcript)}
    at(directory, session, session.prompt("go"))
    at(directory, session, {**session.call("c1", command="rm -rf /"), **path})
    part = {"type": "tool_result", "tool_use_id": "c1", "content": "refused", "is_error": True}
    line = {"type": "user", "message": {"content": [part]}}
    transcript.write_text('{"cut\n' + json.dumps(line) + "\n")
    writers[2].write(project / "mine")
    second = at(directory, session, {**session.call("c2", command="make"), **path})
    (refused,) = second.interrupted
    assert refused.foreign.keys() == {"mine"}, "claude says the same of one that was interrupted"
    writers[0].write(project / "made")
    boundary = at(directory, session, {**session.result("c2", command="make"), **path})
    assert "made" not in boundary.foreign
    late = at(directory, session, {**session.result("c1", command="rm -rf /"), **path})
    assert late.is_unseen


def test_a_worktree_begins_with_what_a_session_has_seen(
    disk_store: Store, project: Path, tmp_path: Path
) -> None:
    lender = tmp_path / "lender"
    make_repository(write_tree(lender, {"a": b"1", "b": b"2"}))
    make_repository(write_tree(project, {"a": b"1", "b": b"2", ".env": b"TOKEN=x1y2z3"}))
    allowed = ["-c", "protocol.file.allow=always"]
    git(project, *allowed, "submodule", "--quiet", "add", str(lender), "module")
    followed = FollowedDirectory(disk_store, project)
    session = SessionDirectory(disk_store, followed, None)
    try:
        state = session.state()
        seen, looked = followed.look(None, PROJECT), project_files.look(disk_store, project)
    finally:
        followed.close()
    assert state is not None
    assert tree.find(disk_store, state.full, b".git") is not None
    assert seen.state.is_equal(looked.state)
    assert [*seen.report.git_files] == [*looked.git_files] == [b"module/.git"]
    assert seen.report.unreadable == looked.unreadable == {}
