"""Answers to equal requests for a live part of a page.

After a move many viewers of one page ask for the same part at once; it is rendered once. A request
says which move its viewer has heard of (`Casfs-Seq`), and gets an answer that is at least as new.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.responses import Response

MAX_URLS = 64


@dataclass
class _Answer:
    seq: int = -1
    response: Response | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedAnswers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, url: str, seq: int, make: Callable[[], tuple[int, Response]]) -> Response:
        """Returns the answer for a URL that was read after the move `seq`. `make` returns a new
        one and the number of the newest move before it was read."""
        with self._lock:
            answer = self._answers.setdefault(url, _Answer())
            self._answers.move_to_end(url)
            if len(self._answers) > MAX_URLS:
                self._answers.popitem(last=False)
        with answer.lock:
            if answer.response is not None and answer.seq >= seq:
                return answer.response
            newest_seq, response = make()
            if response.status_code == 200:
                answer.seq = newest_seq
                answer.response = response
            return response
