"""Forms: what they ask of a real daemon, and what they say where none runs."""

from __future__ import annotations

import json

import pytest

from casfs.checkpoints import checkpoint
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.state import state
from casfs.threads.summary import content_text
from casfs.threads.threads import ThreadId
from casfs.web.site import local_path
from engine.workflow import registry as workflows
from tests.support.engine import STATUS, daemon, loop, says, until
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


def asking(store: Store) -> ThreadId:
    """A thread whose only role asks a person."""
    workflows.add(store, loop(1, STATUS))
    human = {"name": "human", "config": {"question": "Is <it> good?"}}
    arguments = {"workflow": "sample", "input": "Do it.", "agents": {"a": human}}
    id = ThreadId(daemon_socket.request(store.root, "start", **arguments)["id"])
    until(lambda: state(threads.get(store, id)) == "suspended")
    return id


def test_a_question_is_answered_and_the_thread_ends(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store)
        page = web.get("/").text
        assert "Is &lt;it&gt; good?" in page
        assert f'action="/threads/{id}/resume"' in page
        assert 'name="back" value="/?state=&amp;workflow=&amp;project=&amp;q="' in page
        answer = 'Yes.\r\n```json\r\n{"status": "done"}\r\n```'
        found = web.post(f"/threads/{id}/resume", input=answer, back="/?state=succeeded")
        assert found.headers["location"] == "/?state=succeeded"
        until(lambda: state(threads.get(disk_store, id)) == "succeeded")
        (step,) = threads.backwards(disk_store, threads.get(disk_store, id))
        output = content_text(disk_store, step.payload["content"])
        assert output == answer.replace("\r", ""), "as a person typed it"
        assert "Ended today 1" in visible(web.get("/").text)
        refused = web.post(f"/threads/{id}/resume", 409)
        assert id in refused.text


def test_a_thread_is_cancelled(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store)
        assert web.post(f"/threads/{id}/cancel").headers["location"] == "/"
        assert state(threads.get(disk_store, id)) == "cancelled"
        assert web.post("/threads/NO/cancel", 404).status == 404


def test_a_thread_is_named_pinned_and_archived(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store, status="suspended", cause="failure")
    path = f"/threads/{thread.id}"
    assert "<h1>Fix the parser. " in web.get(path).text
    assert "start one with `casfs daemon`" in web.post(f"{path}/label", 503, name="mend").text
    with daemon(disk_store.root):
        assert web.post(f"{path}/label", name=" mend ", back=path).headers["location"] == path
        web.post(f"{path}/label", pinned="yes")
        web.post(f"{path}/label", archived="yes")
        record = threads.get(disk_store, ThreadId(thread.id)).record
        assert [record.get(name) for name in ("name", "pinned", "archived")] == ["mend", True, True]
        html = web.get(path).text
        assert "<h1>mend " in html
        assert 'name="archived" value="no"' in html
        assert "invalid thread name" in web.post(f"{path}/label", 400, name="<b>").text
        web.post(f"{path}/label", name="", archived="no", pinned="no")
    assert threads.get(disk_store, ThreadId(thread.id)).record == thread.head.record


def test_without_a_daemon_one_line_says_so(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store, status="suspended", cause="failure")
    found = web.post(f"/threads/{thread.id}/resume", 503)
    assert "start one with `casfs daemon`" in visible(found.text)
    assert disk_store.heads.get(thread.name) == thread.head  # type: ignore[arg-type]


def test_other_methods_and_bodies_are_refused(web: Web, disk_store: Store) -> None:
    path = f"/threads/{make_thread(disk_store).id}/resume"
    assert web.get(path, 405).status == 405
    sent = {"Cookie": web.cookie, "Origin": web.origin}
    assert web.ask("POST", path, "{}", Content_Type="application/json", **sent).status == 409
    form = {"Content_Type": "application/x-www-form-urlencoded", **sent}
    for body in ("x" * ((1 << 20) + 1), "&".join(f"a{n}=1" for n in range(300))):
        found = web.ask("POST", path, body, **form)
        assert (found.status, "too large" in found.text) == (409, True)


@pytest.mark.parametrize(
    "text",
    [None, "", "x", "//e.example", "/\\e.example", "http://e.example", "/\r\nSet-Cookie: x", "/\t"],
)
def test_a_form_leads_back_to_this_site_alone(text: str | None) -> None:
    assert local_path(text) == "/"
    assert local_path("/threads/X?at=3") == "/threads/X?at=3"


def test_a_fork_has_another_agent_and_a_hint(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store)
        form = {"at": "0", "role": "a", "hint": "Be kind.", "agent": "human:Is it so?"}
        found = web.post(f"/threads/{id}/fork", **form)
        new = ThreadId(found.headers["location"].removeprefix("/threads/"))
        assert new != id
        until(lambda: state(threads.get(disk_store, new)) == "suspended")
        made = threads.get(disk_store, new)
        assert made.record["reason"] == "a: Is it so?"
        assert content_text(disk_store, made.record["hint"]) == "Be kind."
        assert "no step 7" in web.post(f"/threads/{id}/fork", 404, at="7").text
        for at in ("", "x", "-1"):
            assert "after which step" in web.post(f"/threads/{id}/fork", 400, at=at).text
        refused = web.post(f"/threads/{id}/fork", 400, at="0", role="a", agent="human:{")
        assert "config is" in refused.text


def test_a_suspended_thread_goes_on_with_another_agent(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store)
        agent = "command:" + json.dumps(says({"status": "done"}))
        web.post(f"/threads/{id}/resume", role="a", agent=agent)
        until(lambda: state(threads.get(disk_store, id)) == "succeeded")


def test_a_summary_is_given_or_made(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store)
        path = f"/threads/{id}/compact"
        assert web.post(path, text="So far:\r\nnothing.").headers["location"] == f"/threads/{id}"
        made = threads.get(disk_store, id).record["compact"]
        assert content_text(disk_store, made) == "So far:\nnothing."
        for form in ({}, {"text": "a", "agent": "b"}):
            assert "either the summary" in web.post(path, 400, **form).text


def test_a_tree_is_made_a_checkpoint_by_the_daemon(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    step = thread.step("planner", "text")
    form = {"name": "kept", "tree": thread.tree, "message": " of a <step> "}
    assert "start one with `casfs daemon`" in web.post("/checkpoints", 503, **form).text
    with daemon(disk_store.root):
        made = web.post("/checkpoints", **form)
        found = checkpoint.find(disk_store, "kept")
        assert made.headers["location"] == f"/nodes/{found.hash}"
        assert (found.root, found.message) == (thread.tree, "of a <step>")
        assert disk_store.node(found.hash).payload["stats"]["files"] == 5
        web.post("/checkpoints", name="kept", tree=f"{thread.id}@1")
        assert [one.root for one in checkpoint.listing(disk_store, "kept")] == [thread.tree] * 2
        for name, tree, status in (("../x", step, 400), ("kept", "nothing", 404), ("", step, 400)):
            web.post("/checkpoints", status, name=name, tree=tree)
    assert len(checkpoint.listing(disk_store)) == 2
