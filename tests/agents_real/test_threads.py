"""Threads that real agents play: what they write, ask, spend and say; corrections and forks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from casfs.review import comments, message, subject
from casfs.review.comments import HEARD
from casfs.system import daemon_socket
from casfs.threads.threads import ENDED, SUSPENDED
from tests.agents_real.conftest import BEFORE, FULLY, REPORT, Play
from tests.support.agent_model import INPUT, OUTPUT, script
from tests.support.engine import daemon, steps

pytestmark = pytest.mark.agents
EACH = INPUT + OUTPUT  # tokens of an answer of the model
SAID = f"All is well.\n\n{REPORT}"
OF_LAST_CALL = ("opencode",)  # reports what the last call of a prompt took, not all


def turns(play: Play, hash: str) -> list[dict[str, Any]]:
    session = play.store.node(hash, "react-session").payload
    return [play.store.node(one, "react-turn").payload for one in session["turns"]]


def calls(play: Play, hash: str) -> list[dict[str, Any]]:
    hashes = [one for turn in turns(play, hash) for one in turn["toolCalls"]]
    return [play.store.node(one, "react-tool-call").payload for one in hashes]


def test_two_roles_a_correction_and_a_fork(play: Play) -> None:
    work = script(("write", "made/hello.txt", "hello\n"), ("run", "touch ran.txt"), ("say", SAID))
    check = script(("say", "I cannot say."), ("say", SAID))
    with daemon(play.root):
        ended = play.wait(play.start({"coder": work, "tester": check}, permissions="allow"))
        assert (ended.status, ended.record["reason"]) == (ENDED, None)
        asked = {"id": ended.id, "at": 1}
        fork = play.wait(str(daemon_socket.request(play.root, "fork", **asked)["id"]))
    assert (fork.status, fork.record["reason"]) == (ENDED, None)
    made = {**BEFORE, "made/hello.txt": b"hello\n", "ran.txt": b""}
    coder, tester = steps(play.store, ended)
    assert play.files(coder["workspace"]) == play.files(tester["workspace"]) == made
    assert (coder["extraction"], tester["extraction"]) == ("block", "correction")
    assert coder["meta"] == tester["meta"] == {"status": "done"}
    assert [one["workspace"] for one in steps(play.store, fork)] == [coder["workspace"]] * 2
    assert play.text(coder["content"]).strip() == SAID
    found = calls(play, coder["detail"])
    assert [one["kind"] for one in found][-1:] == ["execute"]
    tokens = [EACH, 2 * EACH] if play.name in OF_LAST_CALL else [3 * EACH, 2 * EACH]
    assert play.store.node(coder["detail"]).payload["totalTokens"] == tokens[0]
    assert ended.record["spent"]["tokens"] == sum(tokens)


@pytest.mark.parametrize("play", FULLY, indirect=True)
def test_a_person_is_asked_for_permission(play: Play) -> None:
    work = script(("run", "rm -rf README.md"), ("run", "rm -rf LICENSE"), ("say", SAID))
    with daemon(play.root):
        asked = play.wait(play.start({"coder": work}, permissions="ask"))
        for name, answer in (("README.md", "allow"), ("LICENSE", "deny")):
            assert (asked.status, asked.record["cause"]) == (SUSPENDED, "human")
            assert f"rm -rf {name}" in play.text(asked.record["question"])
            daemon_socket.request(play.root, "resume", id=asked.id, input=answer)
            asked = play.wait(asked.id)
    assert (asked.status, asked.record["reason"]) == (ENDED, None)
    assert play.files(steps(play.store, asked)[-1]["workspace"]).keys() == {"LICENSE"}


@pytest.mark.parametrize("play", FULLY, indirect=True)
def test_a_comment_and_a_reason_reach_the_session_that_asked(play: Play) -> None:
    work = script(("run", "rm -rf README.md"), ("say", SAID))
    with daemon(play.root):
        asked = play.wait(play.start({"coder": work}, permissions="ask"))
        fields = {"file": "LICENSE", "side": "new", "text": "Keep this one, too."}
        tree = subject.newest_tree(play.store, asked)
        request = partial(daemon_socket.request, play.root, id=asked.id)
        request("review_change", action="add", tree=tree, **fields)
        number = request("review_send")["round"]
        request("resume", input="No, that is the only copy.")
        ended = play.wait(asked.id)
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    (step,) = steps(play.store, ended)
    assert step["attempts"] == []
    assert "paused" not in step, "the same process"
    assert play.files(steps(play.store, ended)[-1]["workspace"]).keys() == BEFORE.keys()
    texts = [request.text for request in play.model.requests]
    for said in (message.mark(asked.id, number), "that is the only copy"):
        assert texts[-1].count(said) == 1
    (sent,) = comments.load(play.store, asked.id).rounds
    assert sent.state == HEARD
