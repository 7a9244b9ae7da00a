"""What a real S3 server or the network does wrong: retried, or a clear error; never wrong bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from casfs.errors import AccessDenied, CasfsError, Corrupt, Failed, NotFound, Unreachable
from casfs.object_storage import retrying
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from casfs.object_storage.retrying import parallel
from casfs.system.interruption import interruptible
from tests.support.fault_proxy import (
    Changed,
    Cut,
    Delayed,
    Dropped,
    Edited,
    Fault,
    FaultProxy,
    Lost,
    Request,
    Rule,
    Status,
)
from tests.support.s3_servers import KEY_ID, SECRET, S3Server

BYTES = bytes(range(256)) * 1024
PASSING = [
    Status(500),
    Status(502),
    Status(503, error="SlowDown"),
    Status(504),
    Status(429),
    Status(408),
    Status(400, error="RequestTimeout"),
    Lost(),
    Dropped(),
]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that retries make, in place of making them: the clock goes on by them."""
    found: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(found))
    monkeypatch.setattr(retrying, "_sleep", found.append)
    monkeypatch.setattr(retrying, "time", clock)
    return found


@pytest.fixture
def storage(
    s3: S3Server, proxy: FaultProxy, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> ObjectStorage:
    for name in ("MULTIPART_BYTES", "PART_BYTES"):
        monkeypatch.setattr(f"casfs.object_storage.s3.{name}", 5 << 20)
    opened = open_storage(s3.url(), endpoint=proxy.endpoint)
    opened.put("a", BYTES)
    proxy.reset()
    return opened


def first(count: int, fault: Fault, method: str = "") -> Rule:
    """The first requests of a method fail."""
    left = [fault] * count
    return lambda request: left.pop() if left and method in ("", request.method) else None


def repeated(storage: ObjectStorage) -> dict[str, Callable[[], object]]:
    """Calls that may be sent twice, with what they return in the end."""
    return {
        "get": lambda: storage.get("a") == BYTES,
        "get_range": lambda: storage.get_range("a", 100, 1000) == BYTES[100:1100],
        "get_tail": lambda: storage.get_tail("a", 10) == (BYTES[-10:], len(BYTES)),
        "head": lambda: storage.head("a") is not None,
        "put": lambda: storage.put("b", BYTES) is None and storage.get("b") == BYTES,
        "parts": lambda: storage.put("c", BYTES * 22) is None and storage.head("c") is not None,
        "create": lambda: storage.put_if_absent("d", BYTES) and storage.get("d") == BYTES,
        "delete": lambda: storage.delete("b") is None and storage.head("b") is None,
        "list": lambda: sorted(key for key, _ in storage.list(""))[0] == "a",
        "now": lambda: storage.now().year > 2000,
    }


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_a_failure_that_passes_is_not_seen(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float], fault: Fault
) -> None:
    for name, call in repeated(storage).items():
        if isinstance(fault, Status) and name in ("now", "head"):
            continue  # any answer has a date; one to HEAD has no code
        pauses.clear()
        proxy.rule = first(2, fault)
        assert call(), name
        assert pauses, name


def test_a_head_is_sent_again(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float]
) -> None:
    for code in (408, 409, 429, 500, 502, 503, 504):
        proxy.rule = first(2, Status(code), "HEAD")
        assert storage.head("a") is not None
        assert pauses


@pytest.mark.parametrize("after", [0, 1, 4096, len(BYTES) - 1])
def test_a_cut_answer_is_read_again(storage: ObjectStorage, proxy: FaultProxy, after: int) -> None:
    proxy.rule = first(2, Cut(after), "GET")
    assert storage.get("a") == BYTES
    assert proxy.count("GET") == 3


def test_pauses_grow_with_jitter_and_are_bounded(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float]
) -> None:
    proxy.rule = first(12, Status(500))
    storage.get("a")
    bounds = [min(retrying.MAX_PAUSE_S, 0.1 * 2**turn) for turn in range(12)]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
    assert len(set(pauses)) == len(pauses)


def test_retry_after_is_honoured(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float]
) -> None:
    throttled = [Status(503, retry_after="7", error="SlowDown")] * 2

    def rule(request: Request) -> Fault | None:
        """The server is throttled for two requests, and while it is asked how long."""
        if not throttled:
            return None
        return throttled.pop() if request.method == "GET" else throttled[0]

    proxy.rule = rule
    assert storage.get("a") == BYTES
    assert 7 < pauses[0] < 7.2


def test_a_server_that_wants_more_time_than_there_is(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float]
) -> None:
    proxy.rule = lambda request: Status(503, retry_after="3000", error="SlowDown")
    with pytest.raises(Unreachable, match=r"is not ready \(503 SlowDown\); try again later"):
        storage.get("a")
    assert pauses == []


@pytest.mark.parametrize("text", ["soon", "-5", "nan", "Mon, 23 Nov 2026 02:00:00 GMT"])
def test_a_retry_after_that_is_not_a_number_of_seconds(
    storage: ObjectStorage, proxy: FaultProxy, pauses: list[float], text: str
) -> None:
    proxy.rule = first(2, Status(503, retry_after=text))  # of the request, and of the question
    assert storage.get("a") == BYTES
    assert [pause for pause in pauses if 0 <= pause <= 0.2] == pauses


def test_patience_ends(s3: S3Server, proxy: FaultProxy) -> None:
    storage = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=0.5)
    proxy.rule = lambda request: Status(500)
    with pytest.raises(Unreachable, match=rf"^{storage.url} at {proxy.endpoint} is not ready"):
        storage.get("a")
    assert proxy.count() >= 2


def test_a_server_that_is_not_there(s3: S3Server, proxy: FaultProxy) -> None:
    storage = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=0.2)
    proxy.down()
    for call in (storage.server, storage.now, partial(storage.get, "a")):
        with pytest.raises(Unreachable, match=rf"{storage.url} at {proxy.endpoint}"):
            call()
    with pytest.raises(Unreachable, match=r"cannot connect to .*; check network and endpoint"):
        storage.get("a")


def test_a_server_that_does_not_answer(
    s3: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casfs.object_storage.s3.READ_TIMEOUT", timedelta(seconds=0.2))
    storage = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=0)
    proxy.rule = lambda request: Delayed(1)
    with pytest.raises(Unreachable, match="does not answer"):
        storage.get("a")


def test_retries_end_when_the_work_is_interrupted(s3: S3Server, proxy: FaultProxy) -> None:
    class Stopped(Exception):
        pass

    def check() -> None:
        if proxy.count() >= 2:
            raise Stopped

    storage = open_storage(s3.url(), endpoint=proxy.endpoint)
    proxy.rule = lambda request: Status(500)
    with interruptible(check), pytest.raises(Stopped):
        storage.get("a")
    with interruptible(check), pytest.raises(Stopped):  # in threads as well
        list(parallel([lambda: storage.get("a")] * 4))


# -- put-if-absent --------------------------------------------------------------------


def test_a_lost_answer_is_not_a_conflict(storage: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.rule = first(1, Lost(), "PUT")
    assert storage.put_if_absent("log/1", b"mine")
    assert [request.method for request in proxy.requests] == ["PUT", "PUT", "GET"]


def test_a_lost_answer_and_another_that_won(storage: ObjectStorage, proxy: FaultProxy) -> None:
    assert storage.put_if_absent("log/1", b"other")
    proxy.rule = first(2, Lost(), "PUT")
    assert not storage.put_if_absent("log/1", b"mine")
    assert storage.get("log/1") == b"other"


@pytest.mark.parametrize("error", ["ConditionalRequestConflict", "OperationAborted", "Conflict"])
def test_409_does_not_mean_that_it_exists(
    storage: ObjectStorage, proxy: FaultProxy, error: str
) -> None:
    proxy.rule = first(3, Status(409, error=error), "PUT")
    assert storage.put_if_absent("log/1", b"mine")
    assert storage.get("log/1") == b"mine"


def test_what_exists_is_deleted_before_it_is_compared(
    storage: ObjectStorage, proxy: FaultProxy
) -> None:
    proxy.rule = first(1, Status(412, error="PreconditionFailed"), "PUT")
    assert storage.put_if_absent("log/1", b"mine")


def test_faults_while_contents_are_compared(storage: ObjectStorage, proxy: FaultProxy) -> None:
    assert storage.put_if_absent("log/1", b"mine")
    for fault in PASSING:
        proxy.rule = first(2, fault, "GET")
        assert storage.put_if_absent("log/1", b"mine")
        proxy.rule = first(2, fault, "GET")
        assert not storage.put_if_absent("log/1", b"m1ne")


# -- answers that are wrong -----------------------------------------------------------


def without(request: Request, *names: str) -> Fault:
    headers = {name: value for name, value in request.headers.items() if name not in names}
    return Edited(Request(request.method, request.path, headers, request.body))


def test_a_server_that_ignores_ranges(storage: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.rule = lambda request: without(request, "range")
    with pytest.raises(CasfsError):
        storage.get_range("a", 0, 10)
    with pytest.raises(CasfsError):
        storage.get_tail("a", 10)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b""])
def test_an_answer_of_another_size(
    storage: ObjectStorage, proxy: FaultProxy, change: Callable[[bytes], bytes]
) -> None:
    proxy.rule = lambda request: Changed(change)
    with pytest.raises(Corrupt, match="/a ends early"):
        storage.get_range("a", 0, 10)
    with pytest.raises(CasfsError):
        storage.get_tail("a", 10)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (Status(403, error="AccessDenied"), AccessDenied, r"credentials \(403 AccessDenied\)"),
        (Status(401, error="Unauthorized"), AccessDenied, r"credentials \(401 Unauthorized\)"),
        (Status(400, error="ExpiredToken"), AccessDenied, r"credentials \(400 ExpiredToken\)"),
        (Status(403, error="RequestTimeTooSkewed"), AccessDenied, "RequestTimeTooSkewed"),
        (Status(404, error="NoSuchBucket"), AccessDenied, "bucket does not exist; create it"),
        (Status(404, error="NoSuchKey"), NotFound, "/a: no such object"),
        (Status(301, error="PermanentRedirect"), AccessDenied, "another region; give its region"),
        (Status(307, error="TemporaryRedirect"), AccessDenied, "another region; give its region"),
        (Status(400, error="AuthorizationHeaderMalformed"), AccessDenied, "another region"),
        (Status(400, error="InvalidArgument"), Failed, "/a: .*answered 400 InvalidArgument"),
        (Status(501, error="NotImplemented"), Failed, "/a: .*answered 501 NotImplemented"),
        (Status(507), Failed, "answered 507"),
        (Status(409, error="Conflict"), Unreachable, r"not ready \(409 Conflict\)"),
        (Status(416, error="InvalidRange"), Corrupt, "/a ends early"),
        (Status(400, error=f"<{SECRET}>\x1b[2J"), Failed, "/a: the server answered 400$"),
        (Status(403, error=f"{SECRET}</Code>{KEY_ID}" + "x" * 5000), AccessDenied, "403"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_answers_that_are_errors(
    storage: ObjectStorage, proxy: FaultProxy, status: Status, kind: type[CasfsError], text: str
) -> None:
    proxy.rule = lambda request: status
    with pytest.raises(kind, match=text) as caught:
        storage.get("a")
    assert len(str(caught.value)) < 400
    assert "\x1b" not in str(caught.value)
    assert KEY_ID not in str(caught.value)


def test_a_listing_goes_on_after_a_fault(storage: ObjectStorage, proxy: FaultProxy) -> None:
    keys = [f"packs/{number:04}" for number in range(1050)]
    for _ in parallel([partial(storage.put, key, b"") for key in keys]):
        pass
    listing = storage.list("packs/")
    found = [next(listing)[0] for _ in range(10)]
    proxy.rule = first(3, Status(500))
    assert found + [key for key, _ in listing] == keys


def test_a_server_without_a_date(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_header", lambda name: "")
    with pytest.raises(Failed, match="the server tells no date"):
        storage.now()
