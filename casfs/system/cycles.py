"""Python's search for cycles of garbage, in the processes of casfs.

Imports and a command allocate many objects and hardly any cycles. With the default threshold of 700
some tenth of the time of a short command would be spent looking for them, and a fifth at the end of
a process, where Python looks through all that was imported.
"""

from __future__ import annotations

import atexit
import gc

THRESHOLD = 100_000  # objects


def search_rarely() -> None:
    """For the main module of a process, which ends with it."""
    gc.set_threshold(THRESHOLD)
    atexit.register(gc.freeze)
