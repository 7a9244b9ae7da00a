"""One call of a model, against a server on the loopback."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

import pytest
import trio

from casfs.errors import Failed, Invalid
from engine.llm import client
from engine.llm.client import Endpoint, complete
from engine.llm.stream import ToolCall
from tests.support.model_server import (
    Say,
    chunk,
    served,
    status,
    stream,
    text,
    tool_calls,
    usage,
    whole,
)

HELLO = [{"role": "user", "content": "Hello"}]
NOW = {"Retry_After": "0"}


async def test_a_text_comes_in_pieces_with_its_figures() -> None:
    with served(text("Good day to you.\nÄ", 11, 7)) as model:
        reply = await complete(Endpoint(model.url, "m"), HELLO)
    assert (reply.text, reply.calls) == ("Good day to you.\nÄ", ())
    assert (reply.input_tokens, reply.output_tokens, reply.finish) == (11, 7, "stop")
    assert reply.latency_ms >= 0


async def test_what_is_asked() -> None:
    schema = {"type": "object"}
    tool = {"name": "look", "description": "Look.", "parameters": schema}
    options = {"temperature": 0, "max_tokens": 5}
    with served(text("x")) as model:
        place = Endpoint(model.url + "/", "m", "the-key", options=options)
        await complete(place, HELLO, tools=[tool], schema=schema, strict=True)
    (body,) = model.asked
    assert body == {
        "model": "m",
        "messages": HELLO,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 5,
        "tools": [{"type": "function", "function": tool}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }
    assert model.headers[0]["authorization"] == "Bearer the-key"
    assert "the-key" not in repr(place)


async def test_no_key_no_header() -> None:
    with served(text("x")) as model:
        await complete(Endpoint(model.url, "m"), HELLO)
    assert "authorization" not in model.headers[0]
    assert set(model.asked[0]) == {"model", "messages", "stream", "stream_options"}


async def test_tool_calls_are_put_together_from_their_deltas() -> None:
    calls = (("read_file", '{"path": "a/b.txt"}'), ("search", '{"text": "Grüße"}'))
    with served(tool_calls(*calls, said="Let me see.")) as model:
        reply = await complete(Endpoint(model.url, "m"), HELLO)
    assert reply.text == "Let me see."
    assert reply.calls == tuple(ToolCall(f"id{n}", *call) for n, call in enumerate(calls))
    assert reply.finish == "tool_calls"


async def test_a_server_that_does_not_stream() -> None:
    function = {"name": "look", "arguments": "{}"}
    message = {"content": "Done.", "tool_calls": [{"id": "a", "function": function}]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    figures = {"prompt_tokens": 3, "completion_tokens": 4}
    with served(whole({"choices": [choice], "usage": figures})) as model:
        reply = await complete(Endpoint(model.url, "m"), HELLO)
    assert (reply.text, reply.calls) == ("Done.", (ToolCall("a", "look", "{}"),))
    assert (reply.input_tokens, reply.output_tokens) == (3, 4)


async def test_a_server_that_counts_nothing() -> None:
    with served(stream(chunk({"content": "x"}, "stop"))) as model:
        reply = await complete(Endpoint(model.url, "m"), HELLO)
    assert (reply.input_tokens, reply.output_tokens) == (0, 0)


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 529])
async def test_what_passes_is_asked_again(code: int) -> None:
    with served(status(code, "busy", **NOW), status(code, "", **NOW), text("yes")) as model:
        assert (await complete(Endpoint(model.url, "m"), HELLO)).text == "yes"
    assert len(model.asked) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 301])
async def test_what_does_not_pass_is_an_error(code: int) -> None:
    complaint = json.dumps({"error": {"message": "no such\nthing", "type": "x"}})
    said = pytest.raises(Failed, match=f"^HTTP {code}: no such thing$")
    with served(status(code, complaint)) as model, said:
        await complete(Endpoint(model.url, "m"), HELLO)
    assert len(model.asked) == 1


@pytest.mark.parametrize("code", [401, 500])
async def test_a_server_that_repeats_the_key(code: int) -> None:
    said = '{"error": {"message": "' + "x" * 285 + ' key: hunter2-hunter2"}}'
    with served(status(code, said)) as model:
        place = Endpoint(model.url, "m", "hunter2-hunter2", attempts=1)
        with pytest.raises(Failed) as raised:
            await complete(place, HELLO)
    assert "hunter2" not in str(raised.value)
    assert f"HTTP {code}: xxx" in str(raised.value)


async def test_a_large_error_is_not_kept_whole() -> None:
    piece, count = b"x" * (1 << 16), 512

    def large(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(400)
        handler.send_header("Content-Length", str(len(piece) * count))
        handler.end_headers()
        for _ in range(count):
            handler.wfile.write(piece)

    said = pytest.raises(Failed, match=r"^HTTP 400: x{300}$")
    tracemalloc.start()
    try:
        with served(large) as model, said:
            await complete(Endpoint(model.url, "m"), HELLO)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


async def test_at_last_it_gives_up() -> None:
    said = pytest.raises(Failed, match=r"^m: HTTP 503: overloaded \(3 attempts\)$")
    with served(*[status(503, "overloaded", **NOW)] * 3) as model, said:
        await complete(Endpoint(model.url, "m", attempts=3), HELLO)


async def test_nobody_waits_for_a_day() -> None:
    said = pytest.raises(Failed, match="quota; asks to wait 86400 s")
    with served(status(429, "quota", Retry_After="86400")) as model, said:
        await complete(Endpoint(model.url, "m"), HELLO)


async def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    broken = stream(chunk({"content": "half"}), done=False)
    with served(broken, text("all of it")) as model:
        assert (await complete(Endpoint(model.url, "m"), HELLO)).text == "all of it"


@pytest.mark.parametrize("event", [{"error": {"message": "out of memory"}}, {"error": "oops"}])
async def test_an_error_in_the_stream(event: dict[str, object]) -> None:
    said = pytest.raises(Failed, match=r"out of memory|oops")
    with served(stream(chunk({"content": "a"}), event)) as model, said:
        await complete(Endpoint(model.url, "m", attempts=1), HELLO)


async def test_a_stream_of_something_else() -> None:
    def say(handler: BaseHTTPRequestHandler) -> None:
        status(200, "data: <html>\n\n", Content_Type="text/event-stream")(handler)

    with served(say) as model, pytest.raises(Failed, match="not JSON: <html>"):
        await complete(Endpoint(model.url, "m", attempts=1), HELLO)


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "INITIAL_BACKOFF_S", 0.0)
    with served() as model:
        gone = model.url
    with pytest.raises(Failed, match=r"^m: http://127\.0\.0\.1:\d+/v1: .*\(2 attempts\)$"):
        await complete(Endpoint(gone, "m", attempts=2), HELLO)


@pytest.mark.parametrize("url", ["ftp://x/v1", "nonsense", "http://"])
async def test_no_address(url: str) -> None:
    with pytest.raises(Failed):
        await complete(Endpoint(url, "m", attempts=1), HELLO)


async def test_a_key_that_no_header_can_hold_is_not_shown() -> None:
    with pytest.raises(Invalid) as raised:
        await complete(Endpoint("http://127.0.0.1:1/v1", "m", "secret\nkey"), HELLO)
    assert "secret" not in str(raised.value)


def _hanging(gone: threading.Event) -> Say:
    def say(handler: BaseHTTPRequestHandler) -> None:
        stream(chunk({"content": "wait"}), done=False)(handler)
        gone.wait(60)

    return say


async def test_a_limit_of_time() -> None:
    gone = threading.Event()
    try:
        with served(_hanging(gone)) as model:
            with pytest.raises(Failed, match=r"^m: no answer within 0\.2 s$"):
                await complete(Endpoint(model.url, "m", timeout=0.2), HELLO)
            gone.set()
    finally:
        gone.set()


async def test_it_can_be_cancelled() -> None:
    gone = threading.Event()
    try:
        with served(_hanging(gone)) as model:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(complete, Endpoint(model.url, "m"), HELLO)
                    while not model.asked:  # the test as a whole has a limit
                        await trio.sleep(0.01)
                    scope.cancel()
            assert scope.cancelled_caught
            gone.set()
    finally:
        gone.set()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("3", 3.0), ("1.5", 1.5), ("-1", 0.0), ("soon", None), ("nan", None)],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert client._retry_after(value) == seconds


def test_retry_after_as_a_date() -> None:
    found = client._retry_after(formatdate(time.time() + 100, usegmt=True))
    assert found is not None
    assert 90 < found <= 100


async def test_usage_may_come_with_the_last_piece() -> None:
    last = {**chunk({}, "stop"), "usage": usage(1, 2)["usage"]}
    with served(stream(chunk({"content": "x"}), last)) as model:
        reply = await complete(Endpoint(model.url, "m"), HELLO)
    assert (reply.input_tokens, reply.output_tokens) == (1, 2)
