"""The colours of a thread's status on a terminal."""

from __future__ import annotations

from casfs.cli.terminal import paint
from casfs.cli.thread.queue import INTERRUPTED
from casfs.threads.state import FAILED, OPEN, STOPPED, SUCCEEDED
from casfs.threads.threads import BROKEN, CANCELLED, RUNNING, SUSPENDED

COLOURS = {
    RUNNING: "cyan",
    OPEN: "cyan",
    SUSPENDED: "yellow",
    INTERRUPTED: "yellow",
    SUCCEEDED: "green",
    FAILED: "red",
    STOPPED: "red",
    CANCELLED: "red",
    BROKEN: "red",
}


def coloured(text: str, status: str) -> str:
    """Returns `text` in the colour of `status`."""
    return paint(text, COLOURS.get(status))
