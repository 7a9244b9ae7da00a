"""Progress of a long verb on a terminal, by rich: a bar where the total is known, amounts, the rate
and the time left. rich is imported when a bar is shown: most verbs end before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from casfs.system.sizes import readable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY_S = 0.5
INTERVAL_S = 0.1

Update = Callable[[int, int], None]  # items and bytes so far


@contextmanager
def progress(label: str, items: str, total: int = 0, total_bytes: int = 0) -> Iterator[Update]:
    """Yields the function that is told how far the work is; it shows nothing where stderr is no
    terminal. `items`: what is counted; a total of 0 is unknown."""
    if not sys.stderr.isatty():
        yield lambda done, size: None
        return
    bar = _Bar(label, items, total=total, total_bytes=total_bytes)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, label: str, items: str, total: int, total_bytes: int) -> None:
        self._label = label
        self._items = items
        self._total = total
        self._total_bytes = total_bytes
        self._start = time.monotonic()
        self._due = self._start + DELAY_S
        self._shown: tuple[Progress, TaskID] | None = None

    def update(self, done: int, size: int) -> None:
        now_s = time.monotonic()
        if now_s < self._due:
            return
        self._due = now_s + INTERVAL_S
        if self._shown is None:
            self._shown = self._show()
        bar, task = self._shown
        if self._total_bytes:  # bytes tell more of the time left than a count does
            completed = size
            total = max(self._total_bytes, size)
        else:
            completed = done
            total = max(self._total, done)
        known = self._total or self._total_bytes
        text = self._text(done, size, now_s - self._start)
        bar.update(task, completed=completed, total=total if known else None, text=text)

    def close(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def _text(self, done: int, size: int, seconds: float) -> str:
        rate = f", {readable(size)}, {readable(round(size / seconds))}/s" if size else ""
        return f"{done:,} {self._items}{rate}"

    def _show(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, pulse_style="bar.back"),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        task = bar.add_task(self._label, total=None, text="")
        bar.start()
        return bar, task
