"""The answer to a question: a form made from the role's schema, and checked by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.state import state
from casfs.threads.threads import SUSPENDED, Thread, ThreadId
from casfs.web import answer as answers
from casfs.web.answer import answer, form, marked
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script, start
from tests.support.engine import daemon, loop, until
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible

VERDICT: dict[str, Any] = {
    "name": "verdict",
    "type": "object",
    "properties": {
        "status": {"enum": ["good", "bad"], "description": "Your verdict."},
        "level": {"enum": [1, None, "x", 2, 3, 4]},
        "score": {"type": "integer", "maximum": 10},
        "urgent": {"type": "boolean"},
        "summary": {"type": "string", "minLength": 3, "title": "Short <summary>"},
        "comments": {"type": "array", "items": {"type": "string", "maxLength": 9}},
        "more": {"type": "object"},
        "always": True,
        "fixed": {"const": "v1"},
    },
    "required": ["status", "summary"],
    "additionalProperties": False,
}


def filled(schema: dict[str, Any] | None, **values: str) -> str:
    return answer(schema, [replace(one, value=values.get(one.name, "")) for one in form(schema)])


def test_each_property_has_its_kind_of_field() -> None:
    fields = form(VERDICT)
    assert {one.name: one.kind for one in fields} == {
        "status": "choice",
        "level": "choice",
        "score": "number",
        "urgent": "choice",
        "summary": "text",
        "comments": "lines",
        "more": "json",
        "always": "json",
        "fixed": "choice",
    }
    assert [one.name for one in fields[:2]] == ["status", "summary"], "the required ones first"
    found = {one.name: one for one in fields}
    assert (found["summary"].label, found["status"].help) == ("Short <summary>", "Your verdict.")
    assert found["level"].choices[:3] == [("1", "1"), ("null", "null"), ('"x"', "x")]


def test_what_is_filled_in_is_the_meta() -> None:
    given = {
        "status": '"good"',
        "level": "null",
        "score": "7",
        "urgent": "false",
        "summary": " two\nlines ",
        "comments": "a\n\nb\n",
        "more": '{"x": [1]}',
    }
    assert json.loads(filled(VERDICT, **given)) == {
        "status": "good",
        "level": None,
        "score": 7,
        "urgent": False,
        "summary": " two\nlines ",
        "comments": ["a", "", "b"],
        "more": {"x": [1]},
    }
    assert json.loads(filled(VERDICT, status='"bad"', summary="yes")) == {
        "status": "bad",
        "summary": "yes",
    }


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"status": '"good"'}, "summary"),
        ({"status": '"good"', "summary": "no"}, "summary"),
        ({"status": '"neither"', "summary": "yes"}, "status"),
        ({"status": '"good"', "summary": "yes", "score": "x"}, "score"),
        ({"status": '"good"', "summary": "yes", "score": "11"}, "score"),
        ({"status": '"good"', "summary": "yes", "score": "1.5"}, "score"),
        ({"status": '"good"', "summary": "yes", "comments": "fine\ntoo long for it"}, "comments"),
        ({"status": '"good"', "summary": "yes", "more": "{"}, "more"),
        ({"status": '"good"', "summary": "yes", "more": "[]"}, "more"),
    ],
)
def test_a_fault_is_beside_its_field(values: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        filled(VERDICT, **values)
    found = marked(form(VERDICT), str(refused.value))
    assert [one.name for one in found if one.fault] == [field]


def test_without_properties_there_is_one_field() -> None:
    assert filled(None, **{"": "any text"}) == "any text"
    with pytest.raises(Invalid, match="empty"):
        filled(None, **{"": " \n"})
    schema = {"name": "s", "type": "object", "minProperties": 1}
    assert [one.kind for one in form(schema)] == ["json"]
    assert filled(schema, **{"": '{"a": 1}'}) == '{"a": 1}'
    for text in ("{}", "[]", ""):
        with pytest.raises(Invalid):
            filled(schema, **{"": text})


def test_a_property_may_have_an_empty_name() -> None:
    schema = {"name": "s", "properties": {"": {"type": "string"}, "b": {"type": "string"}}}
    assert json.loads(filled(schema, **{"": "one", "b": "two"})) == {"": "one", "b": "two"}


@pytest.mark.parametrize(
    "part",
    [
        {"required": 5},
        {"properties": {"a": {"enum": 5}}},
        {"properties": {"a": {"type": ["x", 1]}}},
        {"properties": []},
        {"unknown": 1},
    ],
)
def test_what_is_no_schema_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        form({"name": "sent by another store", "properties": {"a": {}}, **part})


def asking(store: Store, schema: Any) -> ThreadId:
    workflows.add(store, loop(1, schema))
    human = {"name": "human", "config": {"question": "Is <it> good?"}}
    arguments = {"workflow": "sample", "input": "Do <it>.", "agents": {"a": human}}
    id = ThreadId(daemon_socket.request(store.root, "start", **arguments)["id"])
    until(lambda: state(threads.get(store, id)) == "suspended")
    return id


def test_a_form_is_refused_with_what_was_typed_and_then_accepted(
    web: Web, disk_store: Store
) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store, VERDICT)
        path = f"/threads/{id}/answer"
        assert f'href="{path}"' in web.get(f"/threads/{id}").text
        html = web.get(path).text
        for part in ("Is &lt;it&gt; good?", "Do &lt;it&gt;.", "Short &lt;summary&gt;"):
            assert part in html
        typed = {"field-status": '"good"', "field-summary": "<b", "field-comments": "one\r\ntwo"}
        refused = web.post(path, 400, **typed).text
        assert 'aria-invalid="true"' in refused
        assert "$.summary" in visible(refused)
        assert ">\n&lt;b</textarea>" in refused
        assert ">\none\ntwo</textarea>" in refused
        assert 'value="&#34;good&#34;" checked' in refused
        found = web.post(path, **{**typed, "field-summary": "fine"})
        assert found.headers["location"] == f"/threads/{id}"
        until(lambda: state(threads.get(disk_store, id)) == "succeeded")
        (step,) = threads.backwards(disk_store, threads.get(disk_store, id))
        assert step.payload["meta"] == {
            "status": "good",
            "summary": "fine",
            "comments": ["one", "two"],
        }
        assert "asks nothing" in web.get(path, 409).text
        assert "asks nothing" in web.post(path, 409, **typed).text


def test_an_answer_without_a_daemon_keeps_what_was_typed(web: Web, disk_store: Store) -> None:
    with daemon(disk_store.root):
        id = asking(disk_store, None)
    refused = web.post(f"/threads/{id}/answer", 503, **{"field-": "my <answer>"}).text
    assert "start one with `casfs daemon`" in visible(refused)
    assert "my &lt;answer&gt;</textarea>" in refused


def test_a_thread_that_asks_nothing_has_no_form(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    assert "asks nothing" in web.get(f"/threads/{thread.id}/answer", 409).text
    assert answers.PREFIX not in web.get(f"/threads/{thread.id}").text


# -- permission ---------------------------------------------------------------------------

RM = {
    "toolCallId": "1",
    "title": "rm a",
    "kind": "execute",
    "rawInput": {"command": "rm a.txt; echo '<b>gone</b>'"},
    "content": [{"type": "diff", "path": "a.txt", "oldText": "one", "newText": "<i>uno</i>"}],
}


@pytest.fixture
def waiting(disk_store: Store, tmp_path: Path) -> Iterator[tuple[Thread, Script]]:
    """A thread whose agent waits for permission, under a daemon."""
    script = Script(tmp_path, [{"permission": {"tool": RM}}], [DONE])
    with daemon(disk_store.root):
        thread = start(disk_store, script.config())
        daemon_socket.request(disk_store.root, "resume", id=thread.id)
        until(lambda: threads.get(disk_store, thread.id).status == SUSPENDED, "the question")
        yield threads.get(disk_store, thread.id), script


def test_a_permission_has_three_buttons(web: Web, waiting: tuple[Thread, Script]) -> None:
    thread, script = waiting
    path = f"/threads/{thread.id}/answer"
    html = web.get(path).text
    for text in ("$ rm a.txt; echo '<b>gone</b>'", "in .", "-one", "+<i>uno</i>"):
        assert text in unescape(visible(html))
    assert re.findall(r'name="choice" value="([^"]*)"', html) == [
        "allow", "allow always", "deny", "preview", "reason",
    ]  # fmt: skip
    assert web.post(path, choice="deny").headers["location"] == f"/threads/{thread.id}"
    until(script.answers, "the answer")
    assert script.answers()[-1]["result"]["outcome"]["optionId"] == "no"


def test_a_reason_reaches_the_agent(web: Web, waiting: tuple[Thread, Script]) -> None:
    thread, script = waiting
    path = f"/threads/{thread.id}/answer"
    assert "say why" in visible(web.post(path, 400, choice="reason", reason=" ").text)
    assert "say why" in visible(web.post(path, 400, choice="yes").text)
    web.post(path, choice="reason", reason="Keep it.")
    until(lambda: len(script.prompts()) == 2, "the reason")
    assert script.prompts()[1] == "You asked: rm a\nAnswer: Keep it."


def test_what_it_would_change(web: Web, waiting: tuple[Thread, Script]) -> None:
    thread, script = waiting
    html = web.post(f"/threads/{thread.id}/answer", 200, choice="preview").text
    for text in ("exit 0", "<b>gone</b>", "-one", "without network"):
        assert text in unescape(visible(html))
    assert not script.answers(), "it is still to be answered"


def test_it_is_answered_on_the_board(web: Web, waiting: tuple[Thread, Script]) -> None:
    thread, script = waiting
    html = web.get("/").text
    assert "rm a.txt" in visible(html)
    assert f'name="question" value="{thread.record["question"]}"' in html
    assert f'action="/threads/{thread.id}/answer"' in html
    assert f'action="/threads/{thread.id}/resume"' not in html
    (back,) = re.findall(r'class="choices">\s*<input[^>]* name="back" value="([^"]*)"', html)
    sent = web.post(f"/threads/{thread.id}/answer", choice="allow", back=back)
    assert sent.headers["location"] == back
    until(script.answers, "the answer")


def test_the_work_of_the_step_that_asks(web: Web, disk_store: Store, tmp_path: Path) -> None:
    write = {"tool": {"id": "w", "write": "made.txt", "output": "made"}}
    script = Script(tmp_path, [write, {"permission": {"tool": RM}}, DONE])
    with daemon(disk_store.root):
        thread = start(disk_store, script.config())
        daemon_socket.request(disk_store.root, "resume", id=thread.id)
        until(lambda: threads.get(disk_store, thread.id).status == SUSPENDED, "the question")
        page = visible(web.get(f"/threads/{thread.id}/answer").text)
        assert "made.txt" in page.partition("Work so far")[2]
