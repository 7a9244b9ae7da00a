"""The page of a step: a recorded one, the pending one, one with failed attempts."""

from __future__ import annotations

import json

import pytest

from casfs.digest import hash_bytes
from casfs.store.store import Store
from casfs.web import step as steps
from casfs.web.rendering import Rendering
from tests.support.maintenance import sql
from tests.support.thread_example import STARTED, make_thread
from tests.support.web import Web, visible
from tests.web.test_trace import content, react_session, react_turn

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&lt;\x1b[2J"
DIFF = b"diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+<two>\n"
INTENT = {"role": "planner", "index": 1, "attempt": 2, "since": STARTED, "turnCount": 0}


def test_a_recorded_step(web: Web, disk_store: Store) -> None:
    store, thread = disk_store, make_thread(disk_store)
    blob, node = store.put(b"\0" * 2048).hash, content(store, "more")
    failed = content(store, f"attempt 1 of planner failed: {HOSTILE}")
    thread.step(
        "planner",
        f"# Plan\n\n- **do** it\n\n{HOSTILE}\n",
        changes=store.put(DIFF).hash,
        artifacts=[blob, node],
        attempts=[failed],
        compact=content(store, "What was."),
    )
    thread.step("planner", "Again.")
    path = f"/threads/{thread.id}/steps/1"
    html = web.get(path).text
    assert "<li><strong>do</strong> it</li>" in html
    assert html.count("<script") == 1
    assert "<img" not in html
    assert "\x1b" not in html
    assert '<span class="removed">-one\n</span><span class="added">+&lt;two&gt;\n</span>' in html
    text = visible(html)
    for part in ("1 · planner planned", "from run", "meta by block", "What was.", "a +1 −1"):
        assert part in text
    assert "attempt 1 of planner failed: &lt;script&gt;" in html
    for link in (f"{path}/trace", f"{path}/trace?attempt=1", f"/nodes/{node}", f"/blobs/{blob}"):
        assert f'href="{link}"' in html
    assert f'href="/threads/{thread.id}/steps/2" rel="next"' in html
    assert "You are" not in html
    assert "Plan.\n\n# Task\n\nFix the parser." in html, "its prompt"
    for other in ("0", "3", "x", "99999999999999999"):
        web.get(f"/threads/{thread.id}/steps/{other}", 404)


def test_what_its_hash_decides_is_immutable(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    hash = thread.step("planner", "Said.")
    path = f"/threads/{thread.id}/steps/1?fragment=record"
    found = web.get(f"{path}&v={Rendering().version}")
    assert (found.headers["etag"], "immutable" in found.headers["cache-control"]) == (
        f'"{hash}"',
        True,
    )
    assert found.text.lstrip().startswith('<div id="record-1"')
    for other in (path, f"{path}&v=old", f"/threads/{thread.id}/steps/1"):
        assert web.get(other).headers["cache-control"] == "private, no-store"


def test_where_an_output_came_from(web: Web, disk_store: Store) -> None:
    cached = {"action": hash_bytes(b"action"), "savedMs": 61_000}
    thread = make_thread(disk_store)
    thread.step("planner", "Said.", cached=cached)
    replay = disk_store.put_node("agent", {"package": "replay", "version": "", "config": {}}).hash
    thread.step("planner", "Said.", agent=replay)
    text = visible(web.get(f"/threads/{thread.id}/steps/1").text)
    assert "from cache , 1 min 1 s saved" in text or "from cache, 1 min 1 s saved" in text
    assert "from replay" in visible(web.get(f"/threads/{thread.id}/steps/2").text)
    assert "from replay" in visible(web.get(f"/threads/{thread.id}").text)


def test_the_pending_step_is_live(web: Web, disk_store: Store) -> None:
    store = disk_store
    turns = [react_turn(store, f"turn {number}") for number in range(2)]
    intent = {**INTENT, "run": "0" * 32, "turns": turns, "turnCount": 2}
    failed = content(store, "attempt 1 of planner failed: it broke")
    thread = make_thread(store, intent=intent, attempts=[failed])
    (store.root / "live").mkdir()
    (store.root / "live" / ("0" * 32)).write_bytes(b"now <this>\x1b[2J\n")
    tool = {"id": "1", "title": HOSTILE, "kind": "read", "status": "in_progress"}
    (store.root / "live" / f"{'0' * 32}.tools").write_text(json.dumps([tool]))
    path = f"/threads/{thread.id}/steps/1"
    html = web.get(path).text
    assert f'data-live="threads/{thread.id}" data-fragment="{path}?fragment=step"' in html
    text = visible(html)
    for part in (
        "Attempt 2",
        "Turns 2",
        "turn 1",
        "it broke",
        "now &lt;this&gt;\\x1b[2J",
        "- &lt;script&gt;",
        "(read, in_progress)",
    ):
        assert part in text
    assert "Fix the parser." in text, "its prompt"
    assert "it broke" in web.get(f"{path}/trace?attempt=1").text
    thread.step("planner", "Said.")
    assert "Said." in web.get(f"{path}?fragment=step").text


def test_the_prompt_of_a_late_step_is_rebuilt_when_asked_for(
    disk_store: Store, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = steps.MAX_PROMPT_STEPS + 1
    thread = make_thread(disk_store)
    thread.steps_at_once(late)
    path = f"/threads/{thread.id}/steps/{late}"
    html = web.get(path).text
    assert f'href="{path}?prompt#prompt"' in html
    assert "# Task" not in html
    assert "# Task" in web.get(f"{path}?prompt").text


def test_what_is_lost_is_said_in_its_place(web: Web, disk_store: Store) -> None:
    store, thread = disk_store, make_thread(disk_store)
    call = react_turn(store, "Hi.", ("ls", "{}", "ok"))
    tool = store.node(call).payload["toolCalls"][0]
    session = react_session(store, [call])
    diff = store.put(DIFF).hash
    thread.step("planner", "Said.", changes=diff, attempts=[session], detail=session)
    lost = [store.node(thread.steps[0]).payload["content"], diff, tool]
    for hash in lost:
        sql(store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(hash))
    path = f"/threads/{thread.id}/steps/1"
    html = web.get(path).text
    assert all(hash in html for hash in lost[:2])
    assert tool in web.get(f"{path}/trace").text
    assert lost[0][:30] in web.get(f"/threads/{thread.id}").text, "in the line of the rail"
    sql(store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(session))
    assert session in web.get(f"{path}/trace?attempt=1").text
    web.get(path)
