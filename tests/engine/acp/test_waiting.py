"""An agent that asks a person waits for the answer: in its process, with its session, its turns."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.checkpoints import revisions
from casfs.errors import CasfsError, Conflict, NotFound, Refused
from casfs.review import comments, subject
from casfs.review.comments import HEARD, SENT
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.permission import PermissionRequest
from casfs.threads.threads import CANCELLED, ENDED, SUSPENDED, Thread
from casfs.trees import tree
from engine.runtime.review_messages import ReviewMessages
from engine.runtime.thread_head import ThreadHead
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script
from tests.support.engine import ONE, alive, daemon, kill, steps, until
from tests.support.helpers import put_tree, set_head
from tests.support.new_store import init_store

RM = {"toolCallId": "1", "title": "rm a", "kind": "execute", "rawInput": {"command": "rm a.txt"}}
ASK = {"permission": {"tool": RM, "yes": [{"say": "Allowed. "}], "no": [{"say": "Refused. "}]}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "store") as store:
        workflows.add(store, ONE)
        yield store


def begin(store: Store, config: dict[str, Any]) -> str:
    made = daemon_socket.request(
        store.root,
        "start",
        workflow="sample",
        input="Do it.",
        agents={"a": {"name": "acp", "config": config}},
        workspace=put_tree(store, {"a.txt": b"one\n", "sub": {"b.txt": b"two\n"}}),
    )
    return str(made["id"])


def now(store: Store, id: str) -> Thread:
    return threads.get(store, threads.ThreadId(id))


def asked(store: Store, id: str) -> Thread:
    until(lambda: now(store, id).status == SUSPENDED, "the question")
    thread = now(store, id)
    assert thread.record["cause"] == "human", thread.record["reason"]
    return thread


def ended(store: Store, id: str) -> Thread:
    until(lambda: now(store, id).status != "running", "the end")
    return now(store, id)


def answer(store: Store, id: str, text: str) -> None:
    daemon_socket.request(store.root, "resume", id=id, input=text)


def agent_pids(script: Script) -> set[int]:
    return {line["pid"] for line in script.got()}


@contextmanager
def listening(path: Path | None = None) -> Iterator[int]:
    """A server on loopback, or at a path; yields its port."""
    family = socket.AF_INET if path is None else socket.AF_UNIX
    with socket.socket(family) as server:
        server.bind(("127.0.0.1", 0) if path is None else str(path))
        server.listen()
        yield 0 if path is not None else server.getsockname()[1]


def settings(store: Store, **runs: int) -> None:
    lines = [f"{name} = {value}\n" for name, value in runs.items()]
    (store.root / "config.toml").write_text("[runs]\n" + "".join(lines))


@pytest.mark.parametrize(("said", "outcome"), [("allow", "yes"), ("y", "yes"), ("deny", "no")])
def test_the_process_that_asked_gets_the_answer(
    store: Store, tmp_path: Path, said: str, outcome: str
) -> None:
    script = Script(tmp_path, [{"say": "Looked. "}, ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        thread = asked(store, id)
        assert thread.record["reason"] == "a: may it do this? rm a"
        answer(store, id, said)
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    (step,) = steps(store, done)
    assert step["attempts"] == []
    assert "paused" not in step
    (pid,) = agent_pids(script)
    assert len(script.prompts()) == 1
    assert script.answers()[-1]["result"]["outcome"]["optionId"] == outcome
    assert not alive(pid)


def test_a_reason_is_told_in_the_same_session(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK], [DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        answer(store, id, "No, keep it as a backup.")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert script.answers()[-1]["result"]["outcome"]["optionId"] == "no"
    assert script.prompts()[1] == "You asked: rm a\nAnswer: No, keep it as a backup."
    assert len(agent_pids(script)) == 1
    assert steps(store, done)[0]["attempts"] == []


def test_two_questions_at_once_are_asked_one_after_the_other(store: Store, tmp_path: Path) -> None:
    tools = [{"toolCallId": title, "title": title} for title in ("rm a", "rm b")]
    script = Script(tmp_path, [{"at_once": tools}, DONE])
    shown = []
    with daemon(store.root):
        id = begin(store, script.config())
        for said in ("allow", "deny"):
            thread = asked(store, id)
            shown.append(str(thread.record["reason"]).rpartition("? ")[2])
            answer(store, id, said)
            until(partial(has_answers, script, len(shown)), "the next one")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    outcomes = [line["result"]["outcome"]["optionId"] for line in script.answers()]
    assert sorted(shown) == ["rm a", "rm b"]
    assert outcomes == ["yes", "no"]


def has_answers(script: Script, count: int) -> bool:
    return len(script.answers()) >= count


def test_the_time_in_which_it_waits_is_not_its_own(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config(timeoutS=1.5))
        asked(store, id)
        time.sleep(2)
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert done.record["spent"]["wallMs"] < 2000


def running(store: Store) -> set[str]:
    status = daemon_socket.request(store.root, "status")
    return {*status["running"], *status["called"], *status["queued"]}


def test_others_run_meanwhile(store: Store, tmp_path: Path) -> None:
    settings(store, limit=1)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    script = Script(first, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        other = begin(store, Script(second, [DONE]).config())
        assert ended(store, other).status == ENDED
        until(lambda: not running(store), "a daemon that runs nothing")
        answer(store, id, "allow")
        assert ended(store, id).status == ENDED
    assert len(agent_pids(script)) == 1


def test_a_killed_daemon_leaves_the_question(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root) as pid:
        id = begin(store, script.config())
        asked(store, id)
        kill(pid)
    with daemon(store.root):
        assert asked(store, id).record["attempts"] == []
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    first, _ = sorted(agent_pids(script), key=lambda pid: script_order(script, pid))
    assert not alive(first)
    assert "You asked: rm a\nAnswer: allow" in script.prompts()[-1]
    assert steps(store, done)[0]["attempts"] == []


def script_order(script: Script, pid: int) -> int:
    return [line["pid"] for line in script.got()].index(pid)


def test_it_waits_only_so_long(store: Store, tmp_path: Path) -> None:
    settings(store, keep_waiting=1)
    script = Script(tmp_path, [{"say": "Looked. "}, ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        (pid,) = agent_pids(script)
        until(lambda: not alive(pid), "the end of its process")
        assert script.got("session/cancel"), "so that it can keep its session"
        assert asked(store, id).record["attempts"] == []
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert len(agent_pids(script)) == 2


def test_an_agent_that_ends_while_it_waits(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        (pid,) = agent_pids(script)
        kill(pid)
        time.sleep(1)
        assert asked(store, id).record["attempts"] == [], "its question stays"
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert len(agent_pids(script)) == 2


def test_a_thread_that_is_cancelled_meanwhile(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        daemon_socket.request(store.root, "cancel", id=id)
        assert now(store, id).status == CANCELLED
        (pid,) = agent_pids(script)
        assert not alive(pid)


def test_another_agent_takes_its_place(store: Store, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        agents = {"a": {"name": "acp", "config": Script(other, [DONE]).config()}}
        daemon_socket.request(store.root, "resume", id=id, agents=agents)
        assert ended(store, id).status == ENDED
        (pid,) = agent_pids(script)
        assert not alive(pid)


def test_a_name_given_meanwhile_is_no_answer(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        daemon_socket.request(store.root, "label", id=id, name="night")
        with pytest.raises(Conflict, match="waits for an answer"):
            daemon_socket.request(store.root, "resume", id=id)
        answer(store, id, "allow")
        done = ended(store, id)
    assert (done.status, done.record["name"]) == (ENDED, "night")
    assert len(agent_pids(script)) == 1


def test_two_answers_at_once(store: Store, tmp_path: Path) -> None:
    """One is taken, the other is refused; the thread goes on."""
    script = Script(tmp_path, [ASK, DONE])
    refused: list[str] = []

    def send() -> None:
        try:
            answer(store, id, "allow")
        except CasfsError as error:
            refused.append(str(error))

    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        senders = [threading.Thread(target=send) for _ in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert len(refused) == 3
    assert len(agent_pids(script)) == 1


def test_an_answer_is_to_the_question_that_was_seen(store: Store, tmp_path: Path) -> None:
    tools = [{"toolCallId": title, "title": title} for title in ("rm a", "rm b")]
    script = Script(tmp_path, [{"at_once": tools}, DONE])
    request = partial(daemon_socket.request, store.root, "resume", input="allow")
    with daemon(store.root):
        id = begin(store, script.config())
        first = asked(store, id).record["question"]
        request(id=id, question=first)
        until(partial(has_answers, script, 1), "the next question")
        asked(store, id)
        with pytest.raises(Conflict, match="asks something else"):
            request(id=id, question=first)
        request(id=id, question=now(store, id).record["question"])
        assert ended(store, id).status == ENDED


def test_a_crash_between_two_questions_answers_none(store: Store, tmp_path: Path) -> None:
    """What is kept of the second is written before the thread is suspended for it."""
    script = Script(tmp_path, [ASK, ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        answer(store, id, "allow")
        until(partial(has_answers, script, 1), "the answer")
        thread = asked(store, id)
    # As it was a moment before the second question was asked.
    first = store.put_node("content", {"text": "First?", "artifacts": []}).hash
    allowed = store.put_node("content", {"text": "allow", "artifacts": []}).hash
    moment = {"status": "running", "cause": None, "question": first, "answer": allowed}
    set_head(store, thread.name, thread.hash, **{**thread.record, **moment})
    with daemon(store.root):
        until(lambda: now(store, id).record["question"] != first, "the question")
        asked(store, id)
        assert len(script.answers()) <= 2, "the second was not answered by the first's answer"


def test_what_cannot_be_recorded_is_said(store: Store, tmp_path: Path) -> None:
    settings(store, max_workspace=2000)
    write = {"tool": {"id": "w", "write": "big", "output": "x" * 5000}}
    script = Script(tmp_path, [write, ASK, ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        done = ended(store, id)
    assert (done.status, done.record["cause"]) == (SUSPENDED, "failure")
    assert "more than 2000 bytes" in str(done.record["reason"])


def test_a_pause_leaves_it_waiting(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        with pytest.raises(Conflict, match="suspended already"):
            daemon_socket.request(store.root, "suspend", id=id)
        unknown = {"a": {"name": "nobody", "config": {}}}
        with pytest.raises(NotFound):
            daemon_socket.request(store.root, "resume", id=id, agents=unknown)
        answer(store, id, "allow")
        assert ended(store, id).status == ENDED
    assert len(agent_pids(script)) == 1


def test_what_it_did_and_spent_is_recorded(store: Store, tmp_path: Path) -> None:
    usage = {"inputTokens": 10, "outputTokens": 20, "totalTokens": 30}
    stop = {"stop": "end_turn", "usage": usage}
    script = Script(tmp_path, [{"say": "Looked. "}, ASK, stop], [DONE, stop])
    with daemon(store.root):
        id = begin(store, script.config())
        thread = asked(store, id)
        (turn,) = threads.turns(store, thread.intent)
        payload = store.node(turn, "react-turn").payload
        assert store.node(payload["output"]).payload["text"] == "Looked. ", "beside the question"
        answer(store, id, "deny: ok")
        done = ended(store, id)
    assert done.record["spent"]["tokens"] == 60
    assert script.answers()[-1]["result"]["outcome"]["optionId"] == "no", "a reason never allows"
    assert script.prompts()[1] == "You asked: rm a\nAnswer: ok"
    (step,) = steps(store, done)
    turns = [store.node(hash).payload for hash in revisions.turns(store, step["detail"])]
    said = [store.node(each["updates"]).payload["text"] for each in turns if "updates" in each]
    assert any('"answer": "deny: ok"' in text for text in said), "who has permitted what"
    assert done.record["question"] is None


def test_an_agent_that_does_not_wait(store: Store, tmp_path: Path) -> None:
    """It answers its prompt though its question is open."""
    asks = {"method": "session/request_permission", "params": {"toolCall": RM, "options": []}}
    script = Script(tmp_path, [{"raw": json.dumps({"jsonrpc": "2.0", "id": 99, **asks})}, DONE])
    lines = json.loads(script.file.read_text())
    lines["prompts"][0].insert(1, {"sleep": 1})
    script.file.write_text(json.dumps(lines))
    with daemon(store.root):
        id = begin(store, script.config())
        done = ended(store, id)
        until(lambda: now(store, id).status == ENDED, "its end")
        done = now(store, id)
    assert steps(store, done)[0]["attempts"] == []


# -- what is asked ------------------------------------------------------------------------


def question(store: Store, thread: Thread) -> PermissionRequest:
    request = PermissionRequest.of_question(store, thread.record["question"])
    assert request is not None
    return request


def test_a_command_is_shown_with_its_directory(store: Store, tmp_path: Path) -> None:
    argv = {"command": ["bash", "-lc", "make test | tail"], "cwd": "sub"}
    tool = {**RM, "rawInput": argv}
    script = Script(tmp_path, [{"permission": {"tool": tool}}, DONE])
    with daemon(store.root):
        request = question(store, asked(store, begin(store, script.config())))
    assert (request.command, request.directory) == ("make test | tail", "sub")
    assert "$ make test | tail\nin sub" in request.text


def test_an_edit_is_shown_in_its_file(store: Store, tmp_path: Path) -> None:
    """An agent sends the changed part; people see its place, and every file."""
    diffs = [
        {"type": "diff", "path": "a.txt", "oldText": "one", "newText": "uno"},
        {"type": "diff", "path": "a.txt", "oldText": "uno\n", "newText": "uno\ndue\n"},
        {"type": "diff", "path": "new.txt", "oldText": None, "newText": "new\n"},
    ]
    tool = {"toolCallId": "1", "title": "Edit", "kind": "edit", "content": diffs}
    script = Script(tmp_path, [{"permission": {"tool": tool}}, DONE])
    with daemon(store.root):
        request = question(store, asked(store, begin(store, script.config())))
    first, second, third = request.patch.split("diff --git ")[1:]
    assert first.endswith("@@ -1 +1 @@\n-one\n+uno\n")
    assert second.endswith("@@ -1 +1,2 @@\n uno\n+due\n")
    assert third.startswith("a/new.txt b/new.txt\n--- /dev/null\n")
    assert request.command is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[" * 200_000, '{"title": 1, "kind": "x"}', "no JSON", "null"]
)
def test_what_another_agent_keeps_there_is_no_request(store: Store, text: str) -> None:
    other = store.put_node("content", {"text": text, "artifacts": []}).hash
    asks = store.put_node("content", {"text": "May I?", "artifacts": [other]}).hash
    assert PermissionRequest.of_question(store, asks) is None
    assert PermissionRequest.of_question(store, None) is None


# -- what it would change -----------------------------------------------------------------


def previewed(store: Store, tmp_path: Path, command: str, **more: Any) -> dict[str, Any]:
    """What a command would change, whose agent waits; nothing of it has happened then."""
    tool = {**RM, "rawInput": {"command": command, **more}}
    script = Script(tmp_path, [{"permission": {"tool": tool}}, {"here": "a.txt"}, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        preview: dict[str, Any] = daemon_socket.request(store.root, "preview", id=id)
        answer(store, id, "deny")
        done = ended(store, id)
        assert len(list((store.root / "workspaces").iterdir())) <= 1, "the copy is gone"
    assert done.status == ENDED, done.record["reason"]
    start = threads.start(store, done).payload["workspace"]
    (step,) = steps(store, done)
    assert list(tree.changes(store, start, step["workspace"])) == []
    return preview


def test_a_command_is_tried_in_a_copy(store: Store, tmp_path: Path) -> None:
    command = "rm a.txt; echo three >> sub/b.txt; echo done; exit 3"
    preview = previewed(store, tmp_path, command)
    assert preview["exit_code"] == 3
    assert preview["output"] == "done\n"
    assert "deleted file" in preview["patch"]
    assert "+three" in preview["patch"]
    assert any("network" in note for note in preview["notes"])


def test_it_runs_where_the_agent_would_run_it(store: Store, tmp_path: Path) -> None:
    root = json.dumps(str(store.root))
    preview = previewed(store, tmp_path, f"pwd; ls; ls {root}/workspaces | wc -l", cwd="sub")
    where, *shown = preview["output"].splitlines()
    assert "/workspaces/" in where
    assert where.endswith("/sub")
    assert shown == ["b.txt", "1"], "at the path of the workspace, and nothing beside it"
    assert preview["patch"] == ""


@pytest.mark.parametrize(
    "command",
    [
        "cat {home}/secret",
        "echo x > {home}/made",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{home}/socket\")'",
        "touch /usr/casfs-was-here",
    ],
)
def test_it_reaches_nothing_else(store: Store, tmp_path: Path, command: str) -> None:
    home = tmp_path / "person"
    home.mkdir()
    (home / "secret").write_text("of the person")
    with listening() as port, listening(home / "socket"):
        preview = previewed(store, tmp_path, command.format(home=home, port=port))
    assert preview["exit_code"] != 0
    assert "of the person" not in preview["output"]
    assert sorted(path.name for path in home.iterdir()) == ["secret", "socket"]


def test_only_a_command_that_is_asked_for_is_tried(store: Store, tmp_path: Path) -> None:
    tool = {"toolCallId": "1", "title": "Fetch", "kind": "fetch"}
    script = Script(tmp_path, [{"permission": {"tool": tool}}, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        with pytest.raises(Conflict, match="only a command can be tried"):
            daemon_socket.request(store.root, "preview", id=id)
        answer(store, id, "allow")
        ended(store, id)
        with pytest.raises(Conflict, match="asks for no permission"):
            daemon_socket.request(store.root, "preview", id=id)


# -- reviews ------------------------------------------------------------------------------


def comment(store: Store, id: str, text: str) -> None:
    """A person comments on what the agent has done so far, and sends it."""
    thread = now(store, id)
    fields = {"file": "a.txt", "line": 1, "count": 1, "side": "new", "text": text}
    tree_of_question = subject.newest_tree(store, thread)
    daemon_socket.request(
        store.root, "review_change", id=id, action="add", tree=tree_of_question, **fields
    )
    daemon_socket.request(store.root, "review_send", id=id)


def heard(store: Store, id: str) -> list[str]:
    return [sent.state for sent in comments.load(store, threads.ThreadId(id)).rounds]


def told(script: Script) -> list[str]:
    return [prompt for prompt in script.prompts() if "[casfs review " in prompt]


def test_a_comment_is_the_next_prompt_of_its_session(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK], [DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        comment(store, id, "Why this one?")
        assert heard(store, id) == [SENT]
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    (prompt,) = told(script)
    assert "> 1 | one\nWhy this one?" in prompt
    assert len(agent_pids(script)) == 1
    assert heard(store, id) == [HEARD]


def test_a_comment_outlives_the_daemon(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ASK], [DONE])
    with daemon(store.root) as pid:
        id = begin(store, script.config())
        asked(store, id)
        comment(store, id, "Why this one?")
        kill(pid)
    with daemon(store.root):
        answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    assert len(told(script)) == 1
    assert heard(store, id) == [HEARD]


@pytest.mark.parametrize("says", [[], [{"say": "Hm. "}]])
def test_an_agent_that_dies_over_a_comment_gets_it_anew(
    store: Store, tmp_path: Path, says: list[dict[str, Any]]
) -> None:
    """As a prompt of its own, or where it has begun with that, with what it had done."""
    dies = {"once": {"file": str(tmp_path / "died"), "do": [*says, {"exit": 3}]}}
    script = Script(tmp_path, [ASK], [dies, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        comment(store, id, "Why this one?")
        answer(store, id, "allow")
        until(lambda: now(store, id).record["cause"] == "failure", "its end")
        daemon_socket.request(store.root, "resume", id=id)
        until(lambda: now(store, id).status == SUSPENDED or ended(store, id), "what follows")
        if now(store, id).status == SUSPENDED:
            answer(store, id, "allow")
        done = ended(store, id)
    assert done.status == ENDED, done.record["reason"]
    first, second = told(script)
    assert first.startswith("[casfs review ")
    assert ("What you had done" in second) == bool(says)
    assert "Why this one?" in second
    assert heard(store, id) == [HEARD]


def test_a_review_that_changes_meanwhile_is_told_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another reviewer is faster: what is offered is decided once more."""
    change = comments.change

    def twice(store: Store, id: Any, make: Any) -> Any:
        def again(review: Any, batch: Any) -> Any:
            make(review, batch)
            return make(review, batch)

        return change(store, id, again)

    script = Script(tmp_path, [ASK, DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        asked(store, id)
        comment(store, id, "Why this one?")
        monkeypatch.setattr(comments, "change", twice)
        messages = ReviewMessages(store, ThreadHead(now(store, id)))
        text = trio.run(messages.following)
        assert "Why this one?" in text
        assert heard(store, id) == [SENT]
        assert trio.run(messages.following) == ""
        assert heard(store, id) == [HEARD]


def test_what_cannot_hear_is_told_nothing(store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [DONE])
    with daemon(store.root):
        id = begin(store, script.config())
        ended(store, id)
        with pytest.raises(Refused, match="copy the comments"):
            comment(store, id, "Why?")
