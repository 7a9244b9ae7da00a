"""How threads look on the command line, and what a person's shell makes of it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from casfs.backend.protocols import Head, HeadName
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.trees.recorded_state import RecordedState
from engine.moderator.decision import Next
from engine.threads import lifecycle, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import (
    DEADLINE,
    ONE,
    STATUS,
    Cli,
    begin,
    carry_on,
    daemon,
    loop,
    rule,
    says,
    workflow,
)
from tests.support.helpers import put_tree
from tests.support.model_server import served, text
from tests.support.output_schemas import commands, printers
from tests.support.thread_example import make_thread

DONE = 'Well.\n```json\n{"status": "done"}\n```'


@pytest.fixture
def cli(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    return Cli(disk_store.root, monkeypatch, capfdbinary)


def test_a_page_has_all_that_happened(cli: Cli, disk_store: Store, tmp_path: Path) -> None:
    """Roles, times, tokens, changed files, tries before, and what it is waiting for."""
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    hash, _ = workflows.add(disk_store, workflow(rules, "page", a=None, b=None))
    luck = tmp_path / "luck"
    script = f"[ -e {luck} ] || {{ : >{luck}; exit 1; }}; for n in 1 2 3 4 5; do echo >new$n; done"
    tree = put_tree(disk_store, {"old": b"x"})
    with served(text(DONE, 40, 2)) as model:
        bound = {
            "a": Binding("llm", {"baseUrl": model.url, "model": "m"}),
            "b": Binding("command", says({"status": "fine"}, script)),
        }
        made = lifecycle.create(
            disk_store, ThreadRequest(hash, "Do it.", bound, RecordedState(tree))
        )
        trio.run(carry_on, disk_store, made)
    suspended = cli("thread", "show", made.id).text
    assert "  suspended\nreason: b: sh exited with 1: no output\n" in suspended
    assert "2 b              failed\n" in suspended
    one = next(line for line in suspended.splitlines() if line.startswith("     1 a"))
    assert one.split()[:3] == ["1", "a", "done"]
    assert one.endswith(" s  42 tokens")
    with daemon(cli.root):
        cli("thread", "resume", made.id, "--wait")
    ended = cli("thread", "show", made.id).text
    two = next(line for line in ended.splitlines() if line.startswith("     2 b"))
    assert two.split()[:3] == ["2", "b", "fine"]
    assert two.endswith(" s  new1, new2, new3 and 2 more  failed attempts: 1")
    steps = cli("thread", "show", made.id, "--json").json["steps"]
    assert [step["tokens"] for step in steps] == [42, None]
    assert steps[1]["changedFiles"] == [f"new{n}" for n in range(1, 6)]


def test_only_the_last_steps_are_on_the_page(cli: Cli, disk_store: Store) -> None:
    made = trio.run(carry_on, disk_store, begin(disk_store, loop(53), {"a": says({})}))
    lines = cli("thread", "show", made.id).text.splitlines()
    assert "       … 3 earlier steps; see --all" in lines
    shown = [int(line.split()[0]) for line in lines if line.split()[1:2] == ["a"]]
    assert shown == list(range(4, 54))
    assert cli("thread", "show", made.id, "--all").text.count(" a  ") == 53
    assert len(cli("thread", "show", made.id, "--json").json["steps"]) == 53


def test_a_summary_and_a_key(cli: Cli, disk_store: Store) -> None:
    workflows.add(disk_store, loop(2))
    agent = f"a=command:{json.dumps(says({}, 'exit 1'))}"
    asked = ("thread", "start", "sample", "--input", "Go.", "--agent", agent)
    with daemon(cli.root):
        first = cli(*asked, "--idempotency-key", "one").word
        assert cli(*asked, "--idempotency-key", "one", "--wait", code=7).word == first
        assert cli(*asked, "--idempotency-key", "two").word != first
        other = cli(*asked, "--max-steps", "7", "--idempotency-key", "one", code=4)
        assert f"the idempotency key is taken by thread {first}" in other.err
        made = cli("thread", "compact", first, "--text", "Nothing happened.").word
        assert disk_store.node(made, "content").payload["text"] == "Nothing happened."
        writer = f"command:{json.dumps(says({'summary': 'Nothing at all.'}))}"
        again = cli("thread", "compact", first, "--agent", writer, "--json").json["summary"]
        assert threads.get(disk_store, first).record["compact"] == again
        cli("thread", "compact", first, "--text", " ", code=4)
        cli("thread", "compact", first, code=2)
    printed = cli("thread", "context", first).text
    assert printed == "# Task\n\nGo.\n\n# Summary of what went before\n\nNothing at all.\n"


def test_a_person_is_asked_and_answers(cli: Cli, disk_store: Store, tmp_path: Path) -> None:
    workflows.add(disk_store, workflow(ONE["moderator"], a=STATUS))
    agent = 'a=human:{"question": "Is it good?"}'
    with daemon(cli.root):
        asks = cli(
            "thread", "start", "sample", "--input", "Go.", "--agent", agent, "--wait", code=7
        )
        assert "is suspended: a: Is it good?" in asks.err
        shown = cli("thread", "show", asks.word).text
        assert "reason: a: Is it good?\n" in shown
        assert "# Task\n\nGo." in shown
        assert "waits for an answer" in cli("thread", "resume", asks.word, code=4).err
        wrong = cli("thread", "resume", asks.word, "--input", "Yes.", "--wait", code=4)
        assert "no fenced JSON block" in wrong.err
        (tmp_path / "answer").write_text('{"status": "done"}')
        cli("thread", "resume", asks.word, "--input", f"@{tmp_path}/answer", "--wait")
    (step,) = threads.last_steps(disk_store, threads.get(disk_store, asks.word), None)
    assert step.payload["meta"] == {"status": "done"}


def test_what_a_thread_may_spend(cli: Cli, disk_store: Store) -> None:
    workflows.add(disk_store, loop(3))
    asked = ("thread", "start", "sample", "--input", "Go.", "--agent")
    writer = f"command:{json.dumps(says({'summary': 'So far.'}))}"
    working, sleeping = (
        f"a=command:{json.dumps(says({}, what))}" for what in ("true", "sleep 600")
    )
    with daemon(cli.root):
        late = cli(*asked, sleeping, "--max-seconds", "0.3", "--wait", code=7)
        assert "of 0.3 s of running time are spent" in late.err
        with served(*[text(DONE, 40, 2)] * 3) as model:
            config = json.dumps({"baseUrl": model.url, "model": "m"})
            dear = cli(*asked, f"a=llm:{config}", "--max-tokens", "80", "--wait", code=7)
        assert "budget: 84 of 80 tokens are spent" in dear.err
        long = cli(*asked, working, "--compact-above", "1", "--compact-by", writer, "--wait").word
        cli(*asked, working, "--compact-above", "1", code=2)
    nodes = threads.last_steps(disk_store, threads.get(disk_store, long), None)
    assert [node.payload["compact"] is not None for node in nodes] == [False, False, True]


def test_a_version_may_follow_the_name(cli: Cli, disk_store: Store) -> None:
    workflows.add(disk_store, ONE)
    config = json.dumps(says({}))
    asked = ("thread", "start", "sample", "--input", "Go.", "--agent")
    with daemon(cli.root):
        assert "not >=99" in cli(*asked, f"a=command>=99:{config}", code=4).err
        assert "not a PEP 440" in cli(*asked, f"a=command>=:{config}", code=4).err
        assert "give NAME" in cli(*asked, "a=>=1:{}", code=2).err
        id = cli(*asked, f"a=command >=0.0.1, <99:{config}", "--wait").word
    agents = threads.agents(disk_store, threads.get(disk_store, id))
    assert disk_store.node(agents["a"], "agent").payload["version"] == ">=0.0.1, <99"


def test_who_follows_late_misses_no_turn(cli: Cli, disk_store: Store) -> None:
    made = begin(disk_store, ONE, {"a": says({})})
    now = transitions.begin(disk_store, made, Next("a"), 0, 100, 1)

    def turns(first: int, count: int, now: threads.Thread) -> threads.Thread:
        for number in range(first, first + count):
            payload = {"text": f"turn {number}", "artifacts": []}
            now = transitions.add_turn(
                disk_store, now, disk_store.put_node("content", payload).hash
            )
        return now

    now = turns(1, 20, now)
    argv = ["--store", str(cli.root), "thread", "log", made.id, "--follow", "--json"]
    follower = subprocess.Popen([sys.executable, "-m", "casfs", *argv], stdout=subprocess.PIPE)
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["event"] == "started"
        seen = [json.loads(follower.stdout.readline()) for _ in range(20)]
        now = turns(21, 12, now)
        seen += [json.loads(follower.stdout.readline()) for _ in range(12)]
        transitions.cancel(disk_store, now)
        assert follower.stdout.read() == b""
        assert follower.wait(DEADLINE) == 0
    finally:
        follower.kill()
        follower.communicate()
    assert [one["turn"] for one in seen] == list(range(1, 33))
    assert [one["payload"]["text"] for one in seen] == [f"turn {n}" for n in range(1, 33)]


# -- what all verbs have ------------------------------------------------------------------


def test_everything_that_prints_of_itself_can_print_json() -> None:
    without = {verb for verb, _ in commands()} - printers()
    # a blob's bytes, another program, a protocol
    programs = {"worktree run", "worktree shell", "worktree hook"}
    others = {*programs, "cat", "get", "config edit", "review edit", "review open", "mcp"}
    assert without == {*others, "help", "demo"}  # texts for people


def test_colours_are_for_a_terminal_whose_owner_wants_them(cli: Cli, disk_store: Store) -> None:
    trio.run(carry_on, disk_store, begin(disk_store, ONE, {"a": says({})}))
    plain = cli("thread", "list").out
    assert b"\x1b" not in plain
    assert b"\x1b[32msucceeded" in on_a_terminal(cli.root)
    assert b"\x1b" not in on_a_terminal(cli.root, NO_COLOR="1")
    assert b"\x1b" in on_a_terminal(cli.root, NO_COLOR="")  # empty is as if it were not set


def on_a_terminal(root: Path, **more: str) -> bytes:
    """What `thread list` writes to one."""
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    ours, theirs = pty.openpty()
    try:
        argv = [sys.executable, "-m", "casfs", "--store", str(root), "thread", "list"]
        subprocess.run(argv, stdout=theirs, env={**env, **more}, check=True, timeout=DEADLINE)
        return os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["thr"], {"thread"}),
        (["thread", "re"], {"resume", "rename", "replay"}),
        (["thread", "log", "--fo"], {"--follow"}),
    ],
)
def test_a_shell_completes_verbs_and_options(words: list[str], found: set[str]) -> None:
    asked = {"COMP_WORDS": " ".join(["casfs", *words]), "COMP_CWORD": str(len(words))}
    done = completion(_CASFS_COMPLETE="bash_complete", **asked)
    assert {line.partition(",")[2] for line in done.splitlines()} == found


def test_a_shell_is_told_how() -> None:
    assert "complete -o nosort -F" in completion(_CASFS_COMPLETE="bash_source")
    assert "#compdef casfs" in completion(_CASFS_COMPLETE="zsh_source")


def completion(**more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "casfs"],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_limited_list_reads_what_it_shows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads there are."""
    with Store.open(cli.root) as store:
        first = make_thread(store)
        record = first.head.record
        with store.batch() as batch:
            for number in range(3000):
                id = f"01JE{number:012}{number * 7919 % 10**10:010}"
                other = record | ({"status": "suspended", "name": "odd"} if number == 1234 else {})
                batch.swap(HeadName(f"threads/{id}"), None, Head(first.head.hash, other))
    read: list[str] = []
    original = threads.of_head

    def counting(name: HeadName, head: Head) -> threads.Thread:
        read.append(name)
        return original(name, head)

    monkeypatch.setattr(threads, "of_head", counting)
    shown = cli("thread", "list", "--limit", "5", "--json").json
    assert [one["id"][:16] for one in shown] == [f"01JE{2999 - at:012}" for at in range(5)]
    assert len(read) <= 1000 + 5
    read.clear()
    (shown,) = cli("thread", "list", "--status", "suspended", "--json").json
    assert len(read) <= 1000 + 1, "and those whose ids are compared"
    for part in ("odd", shown["id"][-12:]):
        read.clear()
        with Store.open(cli.root) as store:
            assert lookup.find(store, part).id == shown["id"]
        assert len(read) == 1, part
