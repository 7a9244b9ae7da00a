"""What an agent got, what its attempts left, and what its program prints, in the mount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.agents.secrets import NO_SECRETS
from casfs.fuse.views.prompts import running
from casfs.fuse.views.store_reader import StoreReader
from casfs.store.store import Store
from casfs.threads import live_output, prompts, threads
from casfs.threads.prompts import DIFFERS
from casfs.threads.threads import ThreadId
from tests.support.engine import begin, carry_on, loop, says
from tests.support.fuse import at, missing, names, read
from tests.support.thread_example import Example


async def test_prompts_and_failed_attempts(disk_store: Store, tmp_path: Path) -> None:
    fails = "[ $CASFS_STEP = 1 ] || { echo half; echo boom >&2; exit 1; }"
    script = f"cat >{tmp_path}/$CASFS_STEP; {fails}"
    thread = await carry_on(disk_store, begin(disk_store, loop(3), {"a": says({}, script)}))
    where = f"threads/{thread.id}"
    assert read(disk_store, f"{where}/steps/000001-a/prompt.md") == (tmp_path / "1").read_bytes()
    assert read(disk_store, f"{where}/running/prompt.md") == (tmp_path / "2").read_bytes()
    assert missing(disk_store, f"{where}/running/stdout")
    assert names(disk_store, f"{where}/attempts") == ["0000"]
    assert read(disk_store, f"{where}/attempts/0000/stdout") == b"half\n"
    assert read(disk_store, f"{where}/attempts/0000/stderr") == b"boom\n"
    assert at(disk_store, where).live


async def test_a_prompt_that_is_not_proved_says_so_in_its_first_line(disk_store: Store) -> None:
    thread = await carry_on(disk_store, begin(disk_store, loop(1), {"a": says({})}))
    (node,) = threads.last_steps(disk_store, thread, None)
    damaged = {**node.payload, "prompt": {**node.payload["prompt"], "hash": "0" * 64}}
    with disk_store.batch() as batch:
        end = threads.end(disk_store, thread)
        assert end is not None
        step = batch.put_node("thread-step", damaged).hash
        new = batch.put_node("thread-end", {**end.payload, "lastStep": step})
        batch.move(thread.name, thread.head, new.hash, dict(thread.record))
    vnode = at(disk_store, f"threads/{thread.id}/steps/000001-a/prompt.md")
    size = vnode.attr().size
    assert size == node.payload["prompt"]["size"]
    data = vnode.read(0, size)  # type: ignore[attr-defined]
    assert data.startswith(f"[casfs: this prompt is {DIFFERS}]\n\nYou are the a.".encode())


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Returns a list that grows with each call of a function of `casfs.threads.prompts`."""
    function, calls = getattr(prompts, name), list[int]()

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return function(*arguments)

    monkeypatch.setattr(prompts, name, counted)
    return calls


def test_a_pending_prompt_is_rebuilt_when_it_can_change(
    store: Store, thread: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, id = StoreReader(store), ThreadId(thread.id)
    intent = {"role": "planner", "index": 1, "attempt": 1, "since": 1}
    thread.move(thread.start, intent=intent)
    calls = count_calls(monkeypatch, "of_pending_step")
    first, _ = running(reader, id)
    assert b"Plan." in first
    thread.move(
        thread.start, intent={**intent, "pid": 7, "attempt": 2}, spent={"tokens": 5, "wallMs": 5}
    )
    assert running(reader, id)[0] == first
    assert len(calls) == 1
    texts = {"hint": "Use a parser.", "answer": "Yes, do.", "compact": "It was long."}
    for field, text in texts.items():
        refs = {field: store.put_node("content", {"text": text, "artifacts": []}).hash}
        thread.move(thread.start, **refs)
        assert text.encode() in running(reader, id)[0], field
    fault = store.put_node("content", {"text": "It does not fit.", "artifacts": []}).hash
    thread.move(thread.start, intent={**intent, "correction": fault})
    assert b"It does not fit." in running(reader, id)[0]
    thread.move(thread.start, intent=None)
    assert running(reader, id)[0] == b""


async def test_a_faulty_prompt_is_rebuilt_when_a_thread_has_changed(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await carry_on(disk_store, begin(disk_store, loop(1), {"a": says({})}))
    (node,) = threads.last_steps(disk_store, thread, None)
    recorded = {**node.payload["prompt"], "hash": "0" * 64}
    step = disk_store.put_node("thread-step", {**node.payload, "prompt": recorded}).hash
    reader, calls = StoreReader(disk_store), count_calls(monkeypatch, "of_step")
    faulty = reader.prompt(thread.id, step)
    assert DIFFERS.encode() in faulty
    assert reader.prompt(thread.id, step) == faulty
    assert len(calls) == 1
    with disk_store.batch() as batch:
        batch.move(thread.name, thread.head, thread.hash, {**thread.record, "name": "other"})
    assert reader.prompt(thread.id, step) == faulty
    assert len(calls) == 2


def test_the_output_of_a_running_program(disk_store: Store, monkeypatch: object) -> None:
    from tests.support.thread_example import make_thread

    thread: Example = make_thread(disk_store)
    run = "ab" * 16
    thread.move(thread.start, intent={"role": "planner", "index": 1, "attempt": 1, "run": run})
    where = f"threads/{thread.id}/running"
    with live_output.recording(disk_store.root, run, NO_SECRETS) as live:
        live.write(b"one\n")
        assert read(disk_store, f"{where}/stdout") == b"one\n"
        live.write(b"x\n" * (live_output.TAIL_BYTES // 2))
        assert read(disk_store, f"{where}/stdout") == b"x\n" * (live_output.TAIL_BYTES // 2)
    assert missing(disk_store, f"{where}/stdout")
