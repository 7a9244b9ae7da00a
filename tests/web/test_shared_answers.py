"""Parts of pages that many viewers ask for after the same move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from starlette.responses import Response

from casfs.backend.derived import newest_move
from casfs.store.store import Store
from casfs.web.shared_answers import MAX_URLS, SharedAnswers
from tests.support.thread_example import make_thread
from tests.support.web import Web


def test_equal_requests_are_answered_once() -> None:
    made, barrier = [], Barrier(8)
    shared = SharedAnswers()

    def make() -> tuple[int, Response]:
        made.append(1)
        return 7, Response("x")

    def ask(_: int) -> Response:
        barrier.wait()
        return shared.get("/", 7, make)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(ask, range(8))))) == 1
    assert len(made) == 1
    shared.get("/", 8, make)
    shared.get("/other", 7, make)
    assert len(made) == 3


def test_an_error_is_for_one_alone() -> None:
    shared = SharedAnswers()
    first = shared.get("/", 1, lambda: (1, Response(status_code=503)))
    assert shared.get("/", 1, lambda: (1, Response())) is not first


def test_few_are_kept() -> None:
    shared = SharedAnswers()
    for number in range(MAX_URLS * 2):
        shared.get(f"/{number}", 1, lambda: (1, Response()))
    assert len(shared._answers) == MAX_URLS


def test_an_answer_is_newer_than_the_move_that_was_heard_of(web: Web, disk_store: Store) -> None:
    example = make_thread(disk_store)
    for status in ("suspended", "running"):
        example.move(example.start, status=status, cause="failure")
        for seq in (str(newest_move(disk_store.heads)), "", "x"):
            found = web.ask("GET", "/?fragment=board", Cookie=web.cookie, Casfs_Seq=seq)
            assert f'class="badge {status}"' in found.text
