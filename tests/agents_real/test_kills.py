"""Real agents that are cancelled or killed in the middle of a step, and their daemon too."""

from __future__ import annotations

import os

import pytest

from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from tests.agents_real.conftest import BEFORE, FULLY, REPORT, Play
from tests.support.agent_model import script
from tests.support.engine import alive, daemon, kill, steps, until

pytestmark = pytest.mark.agents


def agent_pid(play: Play, id: str) -> int:
    return int(threads.get(play.store, id).record["intent"]["pid"])


@pytest.mark.parametrize("play", FULLY, indirect=True)
def test_kill_the_agent_then_suspend_it_then_kill_the_daemon(play: Play) -> None:
    work = script(("write", "a.txt", "a\n"), ("hold", play.held()), ("say", REPORT))
    with daemon(play.root) as first:
        id = play.start({"coder": work}, permissions="allow")
        play.until_held()
        kill(agent_pid(play, id))
        killed = play.wait(id)
        assert (killed.status, killed.record["cause"]) == (SUSPENDED, "failure")

        daemon_socket.request(play.root, "resume", id=id)
        play.until_held()
        pid = agent_pid(play, id)
        daemon_socket.request(play.root, "suspend", id=id)
        assert play.wait(id).status == SUSPENDED
        assert not alive(pid)

        daemon_socket.request(play.root, "resume", id=id)
        play.until_held()
        pid = agent_pid(play, id)
        os.kill(first, 9)
        until(lambda: not alive(first), "the end of the daemon")
    with daemon(play.root):
        play.until_held()
        assert not alive(pid)
        play.release()
        ended = play.wait(id)
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    (step,) = steps(play.store, ended)
    assert play.files(step["workspace"]) == {**BEFORE, "a.txt": b"a\n"}
