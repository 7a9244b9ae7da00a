"""Agents that speak ACP under a real daemon: kills, cancel, answers, what is shown meanwhile."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import attempt_details, threads
from casfs.threads.threads import CANCELLED, ENDED, SUSPENDED, Thread
from casfs.workspaces import desk
from engine.processes import subprocesses
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script, session, text
from tests.support.engine import alive, daemon, kill, rule, steps, until, workflow
from tests.support.new_store import init_store

KILLS = int(os.environ.get("CASFS_TEST_KILLS", "3"))
TWO = workflow(
    [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], name="two", a=None, b=None
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with init_store(path) as store:
        workflows.add(store, TWO)
    return path


def begin(root: Path, **configs: Any) -> str:
    bound = {role: {"name": "acp", "config": config} for role, config in configs.items()}
    made = daemon_socket.request(root, "start", workflow="two", input="Do it.", agents=bound)
    return str(made["id"])


def now(store: Store, id: str) -> Thread:
    return threads.get(store, threads.ThreadId(id))


def intent(store: Store, id: str) -> dict[str, Any]:
    return now(store, id).record["intent"] or {}


def ended(store: Store, id: str) -> Thread:
    until(lambda: now(store, id).status in (ENDED, SUSPENDED, CANCELLED), "the end")
    return now(store, id)


def test_a_killed_daemon_loses_no_turn_and_the_agent_goes_on_with_its_session(
    root: Path, tmp_path: Path
) -> None:
    looks = [{"tool": {"id": str(n), "title": f"look {n}"}} for n in range(10)]
    again = [[{"say": "Again. "}, DONE]]
    script = Script(tmp_path, [*looks, {"hang": ""}], load=True, again=again, replay=looks)
    (other := tmp_path / "other").mkdir()
    with Store.open(root) as store:
        with daemon(root) as pid:
            id = begin(root, a=script.config(), b=Script(other, [DONE]).config())
            until(lambda: intent(store, id).get("turnCount") == 10, "ten turns")
            kill(pid)
        agent = script.got()[0]["pid"]
        with daemon(root):
            found = ended(store, id)
        assert found.status == ENDED, found.record["reason"]
        assert not alive(agent)
        first, second = steps(store, found)
        assert first["role"] + second["role"] == "ab"
        (lost,) = first["attempts"]
        assert count_turns(store, lost) == 10
        _, turns = session(store, first["detail"])
        assert [text(store, one["output"]) for one in turns] == ["Again. " + DONE["say"]]
        assert script.got("session/load")[0]["params"]["sessionId"] == f"session-{agent}"


def count_turns(store: Store, hash: str) -> int:
    node = store.node(hash)
    if node.type == "react-turn":
        return 1
    return sum(count_turns(store, below) for below in node.payload["artifacts"])


@pytest.mark.parametrize("seed", range(KILLS))
def test_no_turn_that_was_over_is_lost_when_the_daemon_is_killed(
    root: Path, tmp_path: Path, seed: int
) -> None:
    """The agent knows that a turn is over when a later request is answered."""
    refused = {"request": {"method": "fs/read_text_file", "params": {"path": "missing"}}}
    looks = [one for n in range(60) for one in ({"tool": {"id": str(n)}}, refused)]
    script = Script(tmp_path, [*looks, {"hang": ""}])
    with Store.open(root) as store, daemon(root) as pid:
        id = begin(root, a=script.config(), b=script.config())
        count = random.Random(seed).randrange(50)
        until(lambda: len(script.answers()) >= count and script.got("session/prompt"), "answers")
        kill(pid)
        assert intent(store, id)["turnCount"] >= len(script.answers())
        assert len(threads.turns(store, intent(store, id))) == intent(store, id)["turnCount"]
        subprocesses.end_orphans(*(intent(store, id)[key] for key in ("run", "pid", "pidStart")))
        desk.unmount_all(root)


def test_an_answer_outlives_the_daemon(root: Path, tmp_path: Path) -> None:
    tool = {"toolCallId": "1", "title": "rm -r x", "kind": "execute"}
    asks = {"permission": {"tool": tool, "yes": [{"once": {"file": f"{tmp_path}/ran", "do": [
        {"hang": ""}]}}], "no": [{"say": "denied"}]}}  # fmt: skip
    script = Script(tmp_path, [asks, DONE])
    with Store.open(root) as store:
        with daemon(root):
            id = begin(root, a=script.config(), b=script.config(permissions="allow"))
            assert ended(store, id).record["cause"] == "human"
        with daemon(root) as pid:
            daemon_socket.request(root, "resume", id=id, input="allow")
            until((tmp_path / "ran").exists, "the tool")
            kill(pid)
        with daemon(root):
            found = ended(store, id)
        assert found.status == ENDED, found.record["reason"]
        assert "You asked: rm -r x\nAnswer: allow" in script.prompts()[-2]


def test_a_cancelled_thread_ends_the_agent_and_keeps_what_it_said(
    root: Path, tmp_path: Path
) -> None:
    script = Script(tmp_path, [{"spawn": 600}, {"say": "Hm."}, {"hang": ""}])
    with Store.open(root) as store, daemon(root):
        id = begin(root, a=script.config(), b=script.config())
        until(lambda: any("child" in one for one in script.lines()), "its child")
        until(lambda: script.sent()[-1].get("method"), "what it says")
        daemon_socket.request(root, "cancel", id=id)
        found = now(store, id)
        assert found.status == CANCELLED
        assert script.got("session/cancel")
        (entry,) = found.record["attempts"]
        _, turns = session(store, attempt_details.detail(store, entry) or "")
        assert text(store, turns[0]["output"]) == "Hm."
    (child,) = (one["child"] for one in script.lines() if "child" in one)
    assert not alive(child)
    assert not alive(script.got()[0]["pid"])


def test_what_an_agent_says_is_shown_as_it_comes(root: Path, tmp_path: Path) -> None:
    script = Script(tmp_path, [{"say": "Looking "}, {"say": "around."}, {"hang": ""}])
    with Store.open(root) as store, daemon(root):
        id = begin(root, a=script.config(), b=script.config())
        run = until(lambda: intent(store, id).get("run"))
        shown = root / "live" / run
        until(lambda: shown.exists() and shown.read_bytes() == b"Looking around.", "its output")
        pid = intent(store, id)["pid"]
        os.kill(pid, signal.SIGKILL)
        assert ended(store, id).record["cause"] == "failure"
        assert not shown.exists()
