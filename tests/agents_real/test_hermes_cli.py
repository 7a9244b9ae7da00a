"""The `hermes` agent with the real CLI: its session becomes nodes, a correction resumes it."""

from __future__ import annotations

import json

import pytest

from casfs.threads.threads import ENDED
from tests.agents_real.conftest import BEFORE, REPORT, Play
from tests.support.agent_model import INPUT, OUTPUT, script
from tests.support.engine import daemon, steps

pytestmark = pytest.mark.agents


@pytest.mark.parametrize("play", ["hermes"], indirect=True)
def test_its_session_is_recorded(play: Play) -> None:
    work = script(("write", "a.txt", "a\n"), ("say", "I cannot say."), ("say", REPORT))
    with daemon(play.root):
        spec = {"name": "hermes", "config": {"yolo": True}}
        ended = play.wait(play.start_agent(spec, {"coder": work}))
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    (step,) = steps(play.store, ended)
    assert (step["extraction"], step["meta"]) == ("correction", {"status": "done"})
    assert play.files(step["workspace"]) == {**BEFORE, "a.txt": b"a\n"}
    detail = play.store.node(step["detail"], "hermes-detail").payload
    assert detail["model"] == "scripted"
    turns = [play.store.node(one, "hermes-turn").payload for one in detail["turns"]]
    roles = "user assistant tool assistant user assistant".split()
    assert [turn["role"] for turn in turns] == roles
    (call,) = turns[1]["toolCalls"]
    assert call["name"] == "write_file"
    assert json.loads(call["args"])["content"] == "a\n"
    assert turns[-1]["content"] == REPORT
    assert ended.record["spent"]["tokens"] == 3 * (INPUT + OUTPUT)
