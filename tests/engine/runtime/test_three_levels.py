"""The shipped workflows in three levels, by programs, with a daemon: `solve-issue`, whose developer
is `develop`, whose tester is a workflow again. No extractor model is configured."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.support.engine import Cli, alive, daemon, kill, pids, rule, says, shell, until, workflow
from tests.support.helpers import put_tree

CHECKED = {
    "name": "checked",
    "type": "object",
    "properties": {"result": {"enum": ["passed", "failed"]}},
    "required": ["result"],
}
CHECK = workflow(
    [rule("__start__", "runner"), rule("runner", "judge"), rule("judge", "__end__")],
    "check",
    runner=None,
    judge=CHECKED,
)
DEVELOPED = """{
    "branch": $last('committer').meta.branch,
    "commitSha": $last('committer').meta.commitSha,
    "filesChanged": filesChanged,
    "summary": $count(steps[role='coder']) & ' phases; ' & end.summary
}"""


def report(meta: Any) -> str:
    return f"```json\n{json.dumps(meta)}\n```"


class Levels:
    """The threads and agents of one run. `side`: where each agent notes its role, a line a run."""

    def __init__(self, store: Store, side: Path) -> None:
        self.store, self.root, self.side = store, store.root, side
        shipped.install(store)
        workflows.add(store, CHECK)
        self.phase = store.put_node("content", {"text": "All.", "artifacts": []}).hash

    def agent(self, meta: Any, first: str = "true") -> dict[str, Any]:
        return says(meta, f"echo $CASFS_ROLE >>{self.side}; {first}")

    def bound(self, runner: str) -> dict[str, Any]:
        """The agents of `solve-issue`; `runner`: what that of the innermost thread does."""
        command = {
            "runner": self.agent({}, runner),
            "judge": self.agent({"result": "passed"}, "grep -q new file"),
        }
        check = {"workflow": "check", "agents": commands(command), "input": "Run the tests."}
        tested = {**check, "meta": "{'status': $last('judge').meta.result}"}
        plan = {"status": "planned", "phases": [{"hash": self.phase, "title": "one"}]}
        wrong = f"echo $CASFS_ROLE >>{self.side}; if [ -e {self.side}.w ]; then echo new >file;"
        wrong += f""" printf '%s\\n' "$1"; else >{self.side}.w; echo oops; fi"""
        coded = report({"completedPhase": self.phase, "status": "completed"})
        commit = {"status": "committed", "branch": "fix", "commitSha": "ab" * 20}
        develop = commands(
            {
                "planner": self.agent(plan),
                "coder": shell(wrong, coded),
                "reviewer": self.agent({"status": "approved"}),
                "committer": self.agent(commit),
            }
        )
        develop["tester"] = {"name": "workflow", "config": tested}
        tools = dict.fromkeys(("packageManager", "testCommand", "lintCommand", "buildCommand"))
        place = {"repoPath": ".", "defaultBranch": "main", "conventions": None, "toolchain": tools}
        solve = commands(
            {
                "preparer": self.agent(place),
                "submitter": self.agent({"status": "submitted", "prUrl": "u"}, "cat file"),
            }
        )
        config = {"workflow": "develop", "agents": develop, "meta": DEVELOPED}
        return {**solve, "developer": {"name": "workflow", "config": config}}

    def runs(self) -> Counter[str]:
        return Counter(self.side.read_text().split())

    def threads(self) -> list[Thread]:
        return threads.list_threads(self.store)

    def check_ended(self, id: str) -> None:
        """All three ended well, each was created once, and no finished agent ran again."""
        top, middle, last = self.threads()
        assert [one.record.get("returnCode") for one in (top, middle, last)] == [0, 0, 0]
        assert (top.id, middle.record["parent"], last.record["parent"]) == (id, top.id, middle.id)
        assert {k: n for k, n in self.runs().items() if n != 1} == {"coder": 2, "runner": 2}
        node = threads.step_at(self.store, top, 2)
        assert node.payload["meta"] == {
            "branch": "fix",
            "commitSha": "ab" * 20,
            "filesChanged": ["file"],
            "summary": "1 phases; ended after committer",
        }
        assert node.payload["childThreads"] == [middle.hash]
        tested = threads.step_at(self.store, middle, 4).payload
        assert (tested["role"], tested["meta"]) == ("tester", {"status": "passed"})
        assert tested["childThreads"] == [last.hash]
        coded = threads.step_at(self.store, middle, 2).payload
        assert (coded["extraction"], len(coded["attempts"])) == ("correction", 1)


def commands(configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {role: {"name": "command", "config": config} for role, config in configs.items()}


@pytest.fixture
def levels(disk_store: Store, tmp_path: Path) -> Levels:
    return Levels(disk_store, tmp_path / "side")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_text("old\n")
    return tmp_path / "project"


ASKS = 'if [ -z "$CASFS_ANSWER" ]; then echo "Which database?"; exit 75; fi; [ $CASFS_ANSWER = b ]'


def test_a_person_answers_the_innermost_agent(
    levels: Levels, project: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    cli = Cli(levels.root, monkeypatch, capfdbinary)
    options = []
    for role, one in levels.bound(ASKS).items():
        options += ["--agent", f"{role}={one['name']}:{json.dumps(one['config'])}"]
    with daemon(levels.root):
        given = ("--workspace", project, *options, "--json", "--wait")
        made = cli("thread", "start", "solve-issue", "--input", "Fix it.", *given, code=7).json
        assert [one.status for one in levels.threads()] == [SUSPENDED] * 3
        assert [one.record["cause"] for one in levels.threads()] == ["child", "child", "human"]
        assert "Which database?" in cli("thread", "show", made["id"]).text
        assert levels.runs()["coder"] == 2, "a correction"
        cli("thread", "resume", made["id"], "--input", "b", "--wait")
        assert cli("cat", f"{made['id']}:file").text == "new\n"
    levels.check_ended(made["id"])


def test_the_daemon_is_killed_in_the_innermost_step(levels: Levels) -> None:
    tree = put_tree(levels.store, {"file": b"old"})
    go = f"{levels.side}.go"
    waits = f"echo $$ >>{levels.side}.pids; [ -e {go} ] || exec sleep 600"
    bound = levels.bound(waits)
    asked = {"workflow": "solve-issue", "input": "Fix it.", "agents": bound}
    with daemon(levels.root) as pid:
        made = daemon_socket.request(levels.root, "start", **asked, workspace=tree)
        (innermost,) = until(lambda: pids(Path(f"{levels.side}.pids")), "the innermost agent")
        kill(pid)
        assert [one.status for one in levels.threads()] == [RUNNING] * 3
    Path(go).touch()
    with daemon(levels.root):
        assert daemon_socket.request(levels.root, "wait", id=made["id"])["status"] == ENDED
    assert not alive(innermost)
    levels.check_ended(made["id"])
