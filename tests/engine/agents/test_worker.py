"""The process of an agent package: one thread each, run as the daemon would."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.agents import messages
from casfs.agents.prompt import EarlierStep, Prompt
from casfs.errors import Failed
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.testing import run_agent
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.agents import loader, worker_client
from engine.agents.worker_processes import WORKERS
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.engine.agents.test_loader import install
from tests.support import engine
from tests.support.engine import ONE, alive, kill, loop, pids, says, steps, until
from tests.support.helpers import put_tree

CODE = Path(__file__).resolve().parents[2] / "fixtures" / "odd_party" / "casfs_odd.py"


def install_odd(folder: Path) -> Path:
    folder.mkdir()
    install(folder, "odd", "casfs_odd", code=CODE.read_text())
    return folder


@pytest.fixture(params=["started", "prepared"], autouse=True)
def is_prepared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """As in a daemon, where the process of an attempt has been started before."""
    monkeypatch.setattr(WORKERS, "is_daemon", request.param == "prepared")
    yield WORKERS.is_daemon
    WORKERS.close()


async def carry_on(store: Store, thread: Thread, **more: Any) -> Thread:
    WORKERS.prepare(os.environ)
    return await engine.carry_on(store, thread, **more)


@pytest.fixture(autouse=True)
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install_odd(tmp_path / "packages"))


def start(store: Store, do: str, flow: dict[str, Any] = ONE, **more: Any) -> Thread:
    hash, _ = workflows.add(store, flow)
    workspace = more.pop("workspace", None)
    bound = {"a": Binding("odd", {"do": do, **more})}
    state = None if workspace is None else RecordedState(workspace)
    return lifecycle.create(store, ThreadRequest(hash, "Do it.", bound, state))


async def play(store: Store, do: str, **more: Any) -> Thread:
    return await carry_on(store, start(store, do, **more))


def said(store: Store, thread: Thread) -> Any:
    assert thread.status == ENDED, thread.record["reason"]
    return steps(store, thread)[-1]["meta"]["said"]


def failure(store: Store, thread: Thread) -> tuple[str, dict[str, Any]]:
    """The reason of a suspended thread and the detail of its failed attempt."""
    assert (thread.status, steps(store, thread)) == (SUSPENDED, [])
    (failed,) = thread.record["attempts"]
    return thread.record["reason"], store.node(failed).payload


# -- its end ------------------------------------------------------------------------------


async def test_one_that_exits_fails_its_step_with_its_last_words(disk_store: Store) -> None:
    reason, detail = failure(disk_store, await play(disk_store, "exit_"))
    assert reason == "a: the process of agent odd exited with 9: its last words"
    assert disk_store.get(detail["stdout"]) == b"noise on stdout\nits last words\n"
    assert (detail["exitCode"], detail["argv"][-1]) == (9, "odd")


async def test_one_that_crashes(disk_store: Store) -> None:
    reason, detail = failure(disk_store, await play(disk_store, "crash"))
    assert reason == "a: the process of agent odd was ended by SIGSEGV"
    assert detail["exitCode"] == -11


async def test_one_that_is_killed(disk_store: Store, tmp_path: Path) -> None:
    thread = start(disk_store, "block_thread", pids=str(tmp_path / "pids"))

    def end() -> None:
        kill(until(lambda: pids(tmp_path / "pids"), "its process")[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, end)
        now = await carry_on(disk_store, thread)
    assert now.record["reason"] == "a: the process of agent odd was ended by SIGKILL"


async def test_an_exception_names_file_and_line(disk_store: Store, tmp_path: Path) -> None:
    now = await play(disk_store, "fail")
    reason = now.record["reason"]
    assert reason.startswith(f"a: KeyError: 'no such thing' ({tmp_path}/packages/casfs_odd.py:")


async def test_the_detail_of_a_failure_is_the_agents_own(disk_store: Store) -> None:
    reason, detail = failure(disk_store, await play(disk_store, "fail_with_detail"))
    assert (reason, detail["text"]) == ("a: its own reason", "how far it came")


async def test_a_child_that_holds_the_socket_delays_no_failure(
    disk_store: Store, tmp_path: Path
) -> None:
    now = await play(disk_store, "leave_a_child", pids=str(tmp_path / "pids"))
    assert now.record["reason"] == "a: the process of agent odd exited with 3"
    (child,) = pids(tmp_path / "pids")
    assert not alive(child)


async def test_what_it_started_ends_with_it(disk_store: Store, tmp_path: Path) -> None:
    """The turn that it has reported is in the record of the attempt."""
    now = await play(disk_store, "report", pids=str(tmp_path / "pids"))
    reason, detail = failure(disk_store, now)
    assert (reason, [f"a: {one}" for one in detail["artifacts"]]) == (reason, [reason])
    (child,) = pids(tmp_path / "pids")
    assert not alive(child)


# -- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(("do", "text"), [("block_loop", b"about to block\n"), ("wait", None)])
async def test_the_time_limit_of_its_role(
    do: str, text: bytes | None, disk_store: Store, tmp_path: Path
) -> None:
    role = {**ONE["roles"]["a"], "policy": {"timeoutS": 2}}
    more = {"go": str(tmp_path / "go"), "pids": str(tmp_path / "pids")}
    now = await play(disk_store, do, flow={**ONE, "roles": {"a": role}}, **more)
    assert (now.record["cause"], now.record["reason"]) == ("timeout", "a: took longer than 2 s")
    _, detail = failure(disk_store, now)
    if text is None:
        assert detail["text"] == "interrupted"
    else:
        assert disk_store.get(detail["stdout"]) == text
    (pid,) = pids(tmp_path / "pids")
    assert not alive(pid)


async def test_an_output_that_is_too_large(disk_store: Store) -> None:
    now = await play(disk_store, "much", count=65 << 20)
    assert now.record["reason"] == "a: its output has more than 64 MiB"
    now = await play(disk_store, "much", count=63 << 20)
    assert "no usable output" in now.record["reason"]


async def test_what_it_prints_is_an_artifact_without_secrets(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", "hunter2-hunter2")
    now = await play(disk_store, "talk", count=3, key="ODD_KEY")
    (step,) = steps(disk_store, now)
    (printed,) = disk_store.node(step["content"]).payload["artifacts"]
    assert disk_store.get(printed) == b"xxx\nthe key is $ODD_KEY\n"


async def test_the_last_of_what_it_prints_is_kept(disk_store: Store) -> None:
    now = await play(disk_store, "talk", count=5 << 20)
    (step,) = steps(disk_store, now)
    (printed,) = disk_store.node(step["content"]).payload["artifacts"]
    kept = disk_store.get(printed)
    assert len(kept) == worker_client.PRINTED_BYTES
    assert kept.endswith(b"xx\nthe key is None\n")


async def test_no_part_of_a_secret_is_kept(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", "hunter2-hunter2")
    count = worker_client.PRINTED_BYTES - 7  # the last line is shorter than what is kept
    now = await play(disk_store, "talk_of_the_key_first", count=count, key="ODD_KEY")
    (step,) = steps(disk_store, now)
    (printed,) = disk_store.node(step["content"]).payload["artifacts"]
    assert disk_store.get(printed).startswith(b"D_KEY\nx")


HOSTILE = [
    "",
    "no",
    "[]",
    "{}",
    "[" * 100_000,
    '{"method": "nothing", "id": 99}',
    '{"method": "end"}',
    '{"id": 99, "result": {}}',
    '{"method": "output", "id": 99, "params": {"detail": ["x", 1]}}',
    '{"method": "output", "id": 99, "params": null}',
    '{"method": "interrupted", "id": 99, "params": 7}',
    '{"method": "turn", "id": [], "params": "x"}',
    '{"method": "started", "id": 99, "params": "x"}',
    '{"method": "call", "id": 99, "params": {"workflow": 1, "input": 2, "agents": 3}}',
]


async def test_messages_that_are_not_valid_harm_nothing(disk_store: Store) -> None:
    assert said(disk_store, await play(disk_store, "send", lines=HOSTILE)) == "done"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("failed", {"error": 3, "message": None, "detail": "../x"}),
        ("failed", {"error": "annotations", "message": "x"}),
        ("failed", {"error": "AgentFailed", "message": "x", "detail": "../x"}),
        ("failed", {"error": "AgentFailed", "message": "x", "detail": {"a": 1}}),
        ("failed", {"error": "AgentFailed", "message": "x" * 50_000, "detail": "ab" * 32}),
        (
            "failed",
            {"error": "Waiting", "message": "x", "cause": "nothing", "question": "../x"}
            | {"keeps_workspace": 1, "tokens": 10**30},
        ),
        ("output", {"output": 1, "detail": ["x", -1], "artifacts": [], "workspace": None}),
        ("output", {"output": "x", "detail": ["x", -1], "artifacts": [1], "workspace": [2]}),
    ],
)
async def test_an_outcome_that_is_not_valid_suspends_the_thread(
    method: str, params: Any, disk_store: Store
) -> None:
    line = {"method": method, "id": 99, "params": {"tokens": 1, **params}}
    now = await play(disk_store, "send_and_wait", lines=[json.dumps(line)])
    assert now.status == SUSPENDED
    assert len(json.dumps(now.record)) < 100_000


@pytest.mark.parametrize("hash", ["../x", "ab" * 32])
async def test_a_detail_that_the_store_lacks_is_not_recorded(hash: str, disk_store: Store) -> None:
    line = json.dumps({"method": "interrupted", "id": 99, "params": hash})
    role = {**ONE["roles"]["a"], "policy": {"timeoutS": 2}}
    flow = {**ONE, "roles": {"a": role}}
    now = await play(disk_store, "send_and_wait", flow=flow, lines=[line])
    reason, detail = failure(disk_store, now)
    assert (reason, detail["argv"][-1]) == ("a: took longer than 2 s", "odd")


@pytest.mark.parametrize("name", ["annotations", "__doc__", "no such"])
def test_an_error_whose_name_is_none_is_a_failure(name: str) -> None:
    error = messages.to_error({"error": name, "message": "why"})
    assert (type(error), str(error)) == (Failed, "why")


async def test_a_request_that_is_not_valid_is_refused(disk_store: Store, tmp_path: Path) -> None:
    now = await play(disk_store, "call_nothing")
    assert said(disk_store, now)[0] == "NotFound"


# -- the context --------------------------------------------------------------------------


async def test_its_context(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", "hunter2-hunter2")
    told = tmp_path / "told"
    tree = put_tree(disk_store, {"f": b"x"})
    more = {"told": str(told), "key": "ODD_KEY", "workspace": tree}
    now = await play(disk_store, "tell_all", flow=loop(2), **more)
    assert now.status == ENDED, now.record["reason"]
    found = json.loads(told.read_text())
    expected = {"thread": now.id, "role": "a", "step": 2, "depth": 0, "parent": None}
    assert expected.items() <= found.items()
    assert found["agent"] == threads.agents(disk_store, now)["a"]
    assert (
        found["cwd"] == found["workspace"] == str(disk_store.root / "workspaces" / now.id / "tree")
    )
    assert (found["HOME"], found["secrets"]) == (os.environ.get("HOME"), ["ODD_KEY"])
    (earlier,) = found["prompt"]["history"]
    assert earlier["meta"] == {"said": "done"}
    assert found["prompt"]["task"] == "Do it."


def test_a_prompt_arrives_with_all_parts() -> None:
    from casfs.agents.messages import from_prompt, to_prompt

    step = EarlierStep(1, "r", "said", {"a": [1, None]})
    parts = ("correction", "summary", "origin", "hint", "answer")
    prompt = Prompt("s", "t", (step,), "ask", {"type": "object"}, *parts)
    assert to_prompt(json.loads(json.dumps(from_prompt(prompt)))) == prompt


async def test_a_correction_goes_to_the_same_process(disk_store: Store, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    now = await play(disk_store, "correct", closed=str(closed))
    count, first, second, pid = said(disk_store, now)
    assert (count, first, second) == (2, False, True)
    assert int(closed.read_text()) == pid
    assert not alive(pid)


async def test_an_exit_at_a_correction_fails_the_step(disk_store: Store) -> None:
    now = await play(disk_store, "exit_at_correction")
    assert now.status == SUSPENDED
    assert now.record["reason"] == "a: the process of agent odd exited with 7"


async def test_a_question_to_a_person(disk_store: Store) -> None:
    asked = await play(disk_store, "ask")
    assert (asked.status, asked.record["cause"]) == (SUSPENDED, "human")
    assert asked.record["reason"] == "it asks why"
    answered = suspension.resume(disk_store, asked, answer="Because.")
    now = await carry_on(disk_store, answered)
    assert said(disk_store, now) == ["Because.", "Because."]


async def test_it_calls_threads_at_once(disk_store: Store) -> None:
    workflows.add(disk_store, {**ONE, "name": "inner"})
    agent = {"name": "command", "config": says({})}
    now = await play(disk_store, "call", tasks=["one", "two"], agent=agent)
    assert said(disk_store, now) == [0, 0]
    assert len(steps(disk_store, now)[0]["childThreads"]) == 2


async def test_a_suspended_child_suspends_it(disk_store: Store) -> None:
    workflows.add(disk_store, {**ONE, "name": "inner"})
    human = {"name": "human", "config": {"question": "May it?"}}
    now = await play(disk_store, "call", tasks=["one"], agent=human)
    assert (now.status, now.record["cause"]) == (SUSPENDED, "child")
    (child,) = [one for one in threads.list_threads(disk_store) if one.id != now.id]
    await carry_on(disk_store, suspension.resume(disk_store, child, answer="{}"))
    assert said(disk_store, threads.get(disk_store, now.id)) == [0]


async def test_what_it_has_put_is_kept_by_gc(disk_store: Store, tmp_path: Path) -> None:
    more = {"go": str(tmp_path / "go"), "pids": str(tmp_path / "pids")}
    thread = start(disk_store, "put_and_block", **more)

    def collect() -> None:
        until(lambda: pids(tmp_path / "pids"), "its process")
        gc.collect(disk_store)
        (tmp_path / "go").touch()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, collect)
        now = await carry_on(disk_store, thread)
    assert said(disk_store, now) == "done"
    (step,) = steps(disk_store, now)
    assert disk_store.node(step["detail"]).payload["text"] == "put before gc"


# -- which process ------------------------------------------------------------------------


async def test_its_code_is_in_no_other_process(disk_store: Store) -> None:
    assert said(disk_store, await play(disk_store, "succeed", said=[1])) == [1]
    assert "casfs_odd" not in sys.modules


def test_a_descriptor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loader.load("odd")
    monkeypatch.setattr(loader, "IMPORT_TIMEOUT_S", 0)
    assert loader.load("odd").descriptor == first.descriptor


def test_on_a_store_in_memory_it_runs_in_a_process_of_its_own() -> None:
    run = run_agent(loader.load("odd").create, {"do": "succeed", "said": 1})
    assert json.loads(run.result.output.split("\n")[1]) == {"said": 1}
    assert len(run.pids) == 1


def test_run_agent_on_a_store_on_disk(disk_store: Store) -> None:
    run = run_agent(loader.load("odd").create, {"do": "succeed", "said": 1}, store=disk_store)
    assert json.loads(run.result.output.split("\n")[1]) == {"said": 1}
    (pid,) = run.pids
    assert not alive(pid)
