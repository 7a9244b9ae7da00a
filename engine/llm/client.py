"""One call of a chat model over the OpenAI-compatible chat-completions protocol.

The only importer of httpx2, and only when a call is made: a daemon whose agents are all
programs never loads it. An answer is streamed, so a slow server can be told from a dead one, and
a cancel takes effect at once.

Retried are 408, 409, 425, 429, 5xx and broken connections, also in the middle of an answer, after
the time of `Retry-After`, else with exponential backoff. Other errors are raised. The key is only
in a header and never in a message.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import trio

from casfs.errors import Failed, Invalid
from engine.llm.stream import MAX_ANSWER_CHARS, Reply, ReplyBuilder

if TYPE_CHECKING:
    import ssl

    import httpx2

CONNECT_TIMEOUT_S = 15.0
ANSWER_TIMEOUT_S = 600.0
MAX_ATTEMPTS = 5
INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 120.0
MAX_ERROR_BODY_BYTES = 1 << 20  # kept of it
MAX_ERROR_CHARS = 300  # of a server's message
RETRYABLE_STATUS = {408, 409, 425, 429}  # and every 5xx
Message = dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. `timeout`: seconds for an answer; `options`: further request fields
    (temperature, …), sent unchanged."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = ANSWER_TIMEOUT_S
    attempts: int = MAX_ATTEMPTS
    options: Mapping[str, Any] = field(default_factory=dict)


class _Retryable(Exception):
    """A retryable error; `wait`: seconds that the server asked for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


async def complete(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    schema: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Reply:
    """Makes one model call. `tools`: functions in the protocol's form; `schema`: of a JSON answer.

    Raises Failed (no answer, or a refusal), Invalid (a key that no header can hold).
    """
    body = _body(endpoint, messages, tools=tools, schema=schema, strict=strict)
    headers = _headers(endpoint.key)
    for attempt in range(1, endpoint.attempts + 1):
        try:
            with trio.fail_after(endpoint.timeout):
                return await _once(endpoint, body, headers)
        except trio.TooSlowError:
            raise Failed(f"{endpoint.model}: no answer within {endpoint.timeout:g} s") from None
        except _Retryable as again:
            if attempt == endpoint.attempts:
                raise Failed(f"{endpoint.model}: {again} ({attempt} attempts)") from None
            wait = _backoff(attempt) if again.wait is None else again.wait
            if wait > MAX_BACKOFF_S:
                raise Failed(f"{endpoint.model}: {again}; asks to wait {wait:g} s") from None
        await trio.sleep(wait)
    raise Failed(f"{endpoint.model}: attempts must be 1 or more")


def _backoff(attempt: int) -> float:
    longest: float = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** (attempt - 1))
    return longest * random.uniform(0.5, 1)


def _body(
    endpoint: Endpoint,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    schema: Mapping[str, Any] | None,
    strict: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        **endpoint.options,
        "model": endpoint.model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
    if schema is not None:
        form = {"name": "answer", "schema": dict(schema), "strict": strict}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def _headers(key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise Invalid("the API key has characters that no header can hold")
    return {"Authorization": f"Bearer {key}"}


async def _once(endpoint: Endpoint, body: dict[str, Any], headers: dict[str, str]) -> Reply:
    import httpx2

    begin = time.monotonic()
    assembly = ReplyBuilder()
    try:
        async with _response(endpoint, body, headers) as response:
            await _raise_for_status(response, endpoint.key)
            if response.headers.get("content-type", "").startswith("application/json"):
                assembly.whole(_json((await response.aread()).decode("utf-8", "replace")))
            else:
                await _read(response, assembly)
    except (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError) as error:
        raise _Retryable(f"{endpoint.base_url}: {str(error) or type(error).__name__}") from None
    except (httpx2.InvalidURL, httpx2.CookieConflict) as error:
        raise Failed(f"{endpoint.base_url}: {error}") from None
    return assembly.reply(round((time.monotonic() - begin) * 1000))


@asynccontextmanager
async def _response(
    endpoint: Endpoint, body: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[httpx2.Response]:
    """Opens the response. Ignores proxies and certificates of the daemon's environment."""
    import httpx2

    limit = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
    url = endpoint.base_url.rstrip("/") + "/chat/completions"
    verify = _certificates() if url.startswith("https:") else False
    async with (
        httpx2.AsyncClient(timeout=limit, trust_env=False, verify=verify) as client,
        client.stream("POST", url, json=body, headers=headers) as response,
    ):
        yield response


@cache
def _certificates() -> ssl.SSLContext:
    """Loads the certificates once: that takes longer than the rest of a client."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=False)


async def _raise_for_status(response: httpx2.Response, key: str | None) -> None:
    """Raises for a status other than 200. The server's message may repeat the key and is cut."""
    status = response.status_code
    if status == 200:
        return
    body = b""
    async with aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:  # to the end, as in `_read`
            body += piece[: MAX_ERROR_BODY_BYTES - len(body)]
    text = body.decode("utf-8", "replace")
    text = text.replace(key, "…") if key else text
    try:
        reason = f"HTTP {status}: {_error_message(json.loads(text))}"
    except ValueError:
        reason = f"HTTP {status}: {_line(text)}"
    if status in RETRYABLE_STATUS or status >= 500:
        raise _Retryable(reason, _retry_after(response.headers.get("retry-after")))
    raise Failed(reason)


def _retry_after(value: str | None) -> float | None:
    """Parses seconds, from a number or an HTTP date; None where there are none."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


async def _read(response: httpx2.Response, assembly: ReplyBuilder) -> None:
    """Reads server-sent events: `data: {…}` lines until `data: [DONE]`. It iterates over bytes to
    the end, and raises a fault only then: the library's iterators over text and lines do not
    close the stream when one stops early."""
    partial_line = b""
    done = False
    fault: Exception | None = None
    async with aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            *lines, partial_line = (partial_line + piece).split(b"\n")
            for line in lines:
                name, _, value = line.strip().partition(b":")
                if name != b"data" or done or fault:
                    continue
                done = value.strip() == b"[DONE]"
                try:
                    if not done:
                        assembly.add(_json(value.decode("utf-8", "replace").strip()))
                except (_Retryable, Failed) as error:
                    fault = error
            if len(partial_line) > MAX_ANSWER_CHARS:
                raise Failed(f"a line of more than {MAX_ANSWER_CHARS >> 20} MiB")
    if fault is not None:
        raise fault
    if assembly.finish is None:
        raise _Retryable("the answer broke off")


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _Retryable(f"not JSON: {_line(text)}") from None
    if not isinstance(value, dict):
        raise _Retryable(f"not a JSON object: {_line(text)}")
    if value.get("error"):
        raise _Retryable(_error_message(value))
    return value


def _error_message(value: Any) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message", error) if isinstance(error, dict) else error
    return _line(message if isinstance(message, str) else json.dumps(message))


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_ERROR_CHARS]
