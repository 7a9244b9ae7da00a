"""What is here only is the same, with content and modes, for whatever begins in the middle of a
thread: an attempt, a resume, a fork, a child, a cached step, a replay."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.workspaces import strategies
from engine.runtime.workspace import Workspaces
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.engine.runtime.test_turn_trees import LOOK, react, session, write
from tests.engine.runtime.test_turn_trees import fork as fork_at
from tests.support import engine, planted
from tests.support.desks import OVER_IMAGES
from tests.support.engine import (
    ONE,
    STATUS,
    Cli,
    begin,
    carry_on,
    daemon,
    fork,
    kill,
    loop,
    pids,
    rule,
    says,
    start_thread,
    steps,
    until,
    workflow,
)
from tests.support.helpers import read_tree, write_tree
from tests.support.model_server import served, text, tool_calls
from tests.support.strategies import skip_without

PROJECT: dict[str, Any] = {
    ".env": b"KEY=1\n",
    "package.json": b"{}",
    "node_modules": {"m": b"module\n"},
    "a.txt": b"a\n",
}
LOCAL = ".env", "node_modules/m"
# Adds to the file $1 what an agent sees of the private and the derived file: mode and content.
SEE = "for file in .env node_modules/m; do stat -c %a $file; cat $file; done | tr '\\n' ' ' >>{0}"
SEE += "; echo >>{0}"
SEEN = "600 KEY=1 711 module "
CHANGED = "600 KEY=1 2 711 module 2 "
CHANGE = "echo 2 | tee -a .env >>node_modules/m"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = write_tree(tmp_path / "project", PROJECT)
    (place / ".env").chmod(0o600)
    (place / "node_modules/m").chmod(0o711)
    return place


@dataclass
class Side:
    """Where agents leave what they saw."""

    path: Path

    def see(self) -> str:
        return SEE.format(self.path)

    @property
    def lines(self) -> list[str]:
        """With the contents of a file joined by spaces."""
        return self.path.read_text().splitlines()


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path / "side")


def whole(store: Store, place: Path) -> RecordedState:
    """The state of a directory, as a thread takes it."""
    report = SnapshotReport()
    rules = exclusions.ignore_rules(store, place, report, keeps_derived=True)
    options = SnapshotOptions(scanner=policy.load(store).scanner())
    with store.batch() as batch:
        return working_tree.snapshot(store, batch, place, rules, report, options)


@pytest.fixture
def state(disk_store: Store, project: Path) -> RecordedState:
    return whole(disk_store, project)


def files(store: Store, root: str) -> dict[str, bytes]:
    return {
        path.decode(): store.get(entry.digest.hash)  # type: ignore[union-attr]
        for path, entry in tree.walk(store, root)
        if not tree.subtree(entry)
    }


def states(store: Store, thread: Thread) -> list[RecordedState]:
    """Those of its steps, whenever they were made."""
    return [RecordedState(one.tree, one.local) for one in engine.states(store, thread)]


def is_of_work(store: Store, thread: Thread) -> bool:
    """Whether its steps show the work alone, and the whole is beside it."""
    return all(
        not set(LOCAL) & set(files(store, one.tree)) and set(LOCAL) <= set(files(store, one.full))
        for one in states(store, thread)
    )


KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Workspaces(), id="copy"),
        pytest.param(OVER_IMAGES, id="overlay", marks=skip_without(strategies.NATIVE)),
    ],
)


@KINDS
async def test_another_attempt_and_a_resume_begin_as_the_first(
    disk_store: Store, state: RecordedState, side: Side, tmp_path: Path, kind: Workspaces
) -> None:
    """A failed attempt has changed both files; the next one sees them as they were."""
    go = tmp_path / "go"
    agent = says({}, f"{side.see()}; {CHANGE}; [ -e {go} ] || exit 1")
    made = begin(disk_store, loop(2), {"a": agent}, state)
    rests = await carry_on(disk_store, made, workspaces=kind)
    assert (rests.status, side.lines) == (SUSPENDED, [SEEN])
    go.touch()
    goes = suspension.resume(disk_store, threads.get(disk_store, made.id))
    ended = await carry_on(disk_store, goes, workspaces=kind)
    assert ended.status == ENDED, ended.record["reason"]
    assert side.lines == [SEEN, SEEN, CHANGED]
    assert is_of_work(disk_store, ended)
    assert [files(disk_store, one.full)[".env"] for one in states(disk_store, ended)] == [
        b"KEY=1\n2\n",
        b"KEY=1\n2\n2\n",
    ]
    assert {one.tree for one in states(disk_store, ended)} == {state.tree}


def test_a_thread_goes_on_after_its_daemon_was_killed(
    disk_store: Store, state: RecordedState, side: Side, tmp_path: Path
) -> None:
    root, go, started = disk_store.root, tmp_path / "go", tmp_path / "pids"
    workflows.add(disk_store, loop(2))
    wait = f"[ $CASFS_STEP = 1 ] || while [ ! -e {go} ]; do sleep 0.01; done"
    agent = says({}, f"{side.see()}; {CHANGE}; echo $$ >>{started}; {wait}")
    with daemon(root) as first:
        fields = {"workspace": state.tree, "recorded": state.fields}
        id = start_thread(root, "sample", {"a": agent}, **fields)
        until(lambda: len(pids(started)) == 2, "the second step, which has changed both files")
        kill(first)
        with daemon(root):
            until(lambda: len(pids(started)) == 3, "the agent that is run again")
            go.touch()
            assert daemon_socket.request(root, "wait", id=id)["status"] == ENDED
    assert side.lines == [SEEN, CHANGED, CHANGED]
    assert is_of_work(disk_store, threads.get(disk_store, id))


@KINDS
@pytest.mark.parametrize(("at", "seen"), [(0, SEEN), (1, CHANGED)])
async def test_a_fork_at_a_step(
    disk_store: Store, state: RecordedState, side: Side, kind: Workspaces, at: int, seen: str
) -> None:
    agent = says({}, f"{side.see()}; {CHANGE}")
    made = begin(disk_store, loop(2), {"a": agent}, state)
    old = await carry_on(disk_store, made, workspaces=kind)
    side.path.unlink()
    new = await carry_on(disk_store, fork(disk_store, old, at), workspaces=kind)
    assert side.lines[0] == seen
    assert states(disk_store, new) == states(disk_store, old)


async def test_a_fork_at_a_turn(disk_store: Store, project: Path, side: Side) -> None:
    """A turn that changed only what is private has a tree, too."""
    script = [
        tool_calls(write("a.txt", "turn 1\n")),
        tool_calls(write(".env", "KEY=turn 2\n")),
        tool_calls(LOOK),
        tool_calls(write("node_modules/m", "turn 4\n")),
        text('```json\n{"status": "done"}\n```'),
    ]
    hash, _ = workflows.add(disk_store, ONE)
    with served(*script) as model:
        request = ThreadRequest(hash, "Do it.", {"a": react(model)}, whole(disk_store, project))
        old = await carry_on(disk_store, lifecycle.create(disk_store, request))
    assert old.status == ENDED, old.record["reason"]
    work = {path: data for path, data in PROJECT.items() if path in ("package.json", "a.txt")}
    for turn in session(disk_store, old):
        assert files(disk_store, turn["workspace"]) == {**work, "a.txt": b"turn 1\n"}
    watcher = Binding("command", says({}, side.see()))
    for at in ("1.1", "1.2", "1.4"):
        new = await carry_on(disk_store, fork_at(disk_store, old, at, {"a": watcher}))
        assert new.status == ENDED, new.record["reason"]
        assert is_of_work(disk_store, new)
    assert side.lines == [
        SEEN,
        "600 KEY=turn 2 711 module ",
        "600 KEY=turn 2 711 turn 4 ",
    ]


async def test_a_child_has_what_its_caller_has(
    disk_store: Store, state: RecordedState, side: Side
) -> None:
    rules = [rule("__start__", "p"), rule("p", "c"), rule("c", "q"), rule("q", "__end__")]
    workflows.add(disk_store, {**loop(1, STATUS), "name": "inner"})
    hash, _ = workflows.add(disk_store, workflow(rules, "outer", p=None, c=None, q=None))
    inner = says({"status": "done"}, f"{side.see()}; {CHANGE}")
    call = {"workflow": "inner", "agents": {"a": {"name": "command", "config": inner}}}
    bound = {
        "p": Binding("command", says({}, CHANGE)),
        "c": Binding("workflow", {**call, "input": "Do it."}),
        "q": Binding("command", says({}, side.see())),
    }
    made = lifecycle.create(disk_store, ThreadRequest(hash, "Do it.", bound, state))
    ended = await carry_on(disk_store, made)
    assert ended.status == ENDED, ended.record["reason"]
    assert side.lines == [CHANGED, "600 KEY=1 2 2 711 module 2 2 "]
    (child,) = [one for one in threads.list_threads(disk_store) if one.record["parent"] == made.id]
    assert is_of_work(disk_store, ended)
    assert is_of_work(disk_store, child)
    assert states(disk_store, child) == states(disk_store, ended)[1:2]


async def test_a_step_of_a_cache_brings_what_it_made(
    disk_store: Store, project: Path, side: Side
) -> None:
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    flow = workflow(rules, a=None, b=None)
    flow["roles"]["a"]["cacheable"] = True
    agents = {"a": says({}, f"echo >>{side.path}.runs; {CHANGE}"), "b": says({}, side.see())}
    for runs in (1, 1):
        ended = await carry_on(
            disk_store, begin(disk_store, flow, agents, whole(disk_store, project))
        )
        assert len(Path(f"{side.path}.runs").read_text()) == runs
        assert is_of_work(disk_store, ended)
    assert side.lines == [CHANGED, CHANGED]
    (project / ".env").write_text("KEY=other\n")
    await carry_on(disk_store, begin(disk_store, flow, agents, whole(disk_store, project)))
    assert side.lines[2:] == ["600 KEY=other 2 711 module 2 "], "another .env is another question"


async def test_a_replay_brings_what_was_made(
    disk_store: Store, state: RecordedState, side: Side
) -> None:
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    flow = workflow(rules, a=None, b=None)
    old = await carry_on(
        disk_store, begin(disk_store, flow, {"a": says({}, CHANGE), "b": says({})}, state)
    )
    hash, _ = workflows.add(disk_store, flow)
    bound = {
        "a": Binding("replay", {"thread": old.id}),
        "b": Binding("command", says({}, side.see())),
    }
    request = ThreadRequest(hash, "Do it.", bound, state)
    new = await carry_on(disk_store, lifecycle.create(disk_store, request))
    assert (new.status, side.lines) == (ENDED, [CHANGED])
    assert states(disk_store, new)[0] == states(disk_store, old)[0]


# -- what agents make ----------------------------------------------------------------------


async def test_modules_made_by_an_agent_are_kept_here_by_each_kind_of_workspace(
    disk_store: Store, project: Path
) -> None:
    """In a workspace that is a copy and in one that is an overlay the roots are equal."""
    script = (
        "umask 022; mkdir -p web/node_modules/x .venv; echo '{}' >web/package.json;"
        " echo x >web/node_modules/x/x; touch .venv/pyvenv.cfg; echo K=1 >web/.env;"
        " chmod 600 web/.env; echo more >>node_modules/m; echo new >node_modules/new"
    )
    found = []
    kinds = [Workspaces()]
    if not skip_without(strategies.NATIVE).args[0]:
        kinds.append(OVER_IMAGES)
    for kind in kinds:
        made = begin(disk_store, loop(2), {"a": says({}, script)}, whole(disk_store, project))
        ended = await carry_on(disk_store, made, workspaces=kind)
        assert ended.status == ENDED, ended.record["reason"]
        found.append(states(disk_store, ended))
    assert found[0] == found[-1]
    first, second = found[0]
    assert set(files(disk_store, first.tree)) == {"package.json", "a.txt", "web/package.json"}
    assert set(files(disk_store, first.full)) - set(files(disk_store, first.tree)) == {
        ".env", ".venv/pyvenv.cfg", "node_modules/m", "node_modules/new", "web/.env",
        "web/node_modules/x/x",
    }  # fmt: skip
    assert second.tree == first.tree


@KINDS
async def test_a_token_in_an_untracked_file_is_not_in_the_changes(
    disk_store: Store, tmp_path: Path, kind: Workspaces
) -> None:
    place = write_tree(tmp_path / "g", {"conf": b"clean\n", "kept": b"kept\n", "a": b"a\n"})
    subprocess.run(["git", "init", "-q", place], check=True)
    subprocess.run(["git", "-C", place, "add", "kept"], check=True)
    token = planted.token().decode()
    (tmp_path / "token").write_text(f"token = {token}\n")
    script = f"cat {tmp_path}/token >>conf; cat {tmp_path}/token >fresh; echo b >>a"
    made = begin(disk_store, loop(2), {"a": says({}, script)}, whole(disk_store, place))
    ended = await carry_on(disk_store, made, workspaces=kind)
    assert ended.status == ENDED, ended.record["reason"]
    both = zip(steps(disk_store, ended), states(disk_store, ended), strict=True)
    for number, (step, state) in enumerate(both, start=1):
        work = files(disk_store, step["workspace"])
        own = {path: data for path, data in work.items() if not path.startswith(".git/")}
        assert own == {"conf": b"clean\n", "kept": b"kept\n", "a": b"a\n" + b"b\n" * number}
        changes = disk_store.get(step["changes"]).decode()
        assert "+b\n" in changes
        assert not [name for name in (token, "conf", "fresh") if name in changes]
        assert files(disk_store, state.full)["conf"].count(token.encode()) == number


@KINDS
async def test_a_pattern_of_an_agent_changes_nothing_of_what_is_recorded(
    disk_store: Store, state: RecordedState, kind: Workspaces
) -> None:
    script = "echo '*' >.casfsignore; echo b >>a.txt; echo new >new; echo more >>.env"
    made = begin(disk_store, loop(2), {"a": says({}, script)}, state)
    ended = await carry_on(disk_store, made, workspaces=kind)
    assert ended.status == ENDED, ended.record["reason"]
    for number, one in enumerate(states(disk_store, ended), start=1):
        assert files(disk_store, one.tree) == {
            ".casfsignore": b"*\n",
            "a.txt": b"a\n" + b"b\n" * number,
            "new": b"new\n",
            "package.json": b"{}",
        }
        assert files(disk_store, one.full)[".env"] == b"KEY=1\n" + b"more\n" * number


async def test_an_apply_merges_private_files_as_others(cli: Cli, tmp_path: Path) -> None:
    """What the thread did to private files, or what became private in it, is done there, too."""
    content = {**PROJECT, "conf": b"clean\n", "gone": b"gone\n"}
    place = write_tree(tmp_path / "p", content)
    subprocess.run(["git", "init", "-q", place], check=True)
    (place / ".env").chmod(0o600)
    target = write_tree(tmp_path / "q", content)
    (target / ".env").write_bytes(b"KEY=mine\n")
    (target / ".env").chmod(0o600)
    (tmp_path / "token").write_bytes(planted.settings_file())
    script = (
        f"{CHANGE}; rm gone; echo b >>a.txt; cat {tmp_path}/token >conf; echo K >.netrc;"
        " rm -r node_modules; [ $CASFS_STEP = 1 ] || rm .env"
    )
    with Store.open(cli.root) as store:
        made = begin(store, loop(1), {"a": says({}, script)}, whole(store, place))
        ended = await carry_on(store, made)
        assert ended.status == ENDED, ended.record["reason"]
    said = cli("thread", "apply", made.id, target, code=1)
    assert "D gone" in said.text
    assert "conflict: .env: " in said.text
    wanted = {name.encode(): data for name, data in content.items() if name != "gone"}
    wanted |= {b"a.txt": b"a\nb\n", b"node_modules": {b"m": b"module\n"}, b".netrc": b"K\n"}
    wanted |= {b"conf": planted.settings_file(), b".env": (target / ".env").read_bytes()}
    assert b"KEY=mine\n" in (target / ".env").read_bytes()
    assert read_tree(target) == wanted
    assert (target / ".env").stat().st_mode & 0o777 == 0o600
