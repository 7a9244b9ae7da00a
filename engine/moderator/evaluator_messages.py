"""Messages between the daemon and a rule worker.

On the worker's stdin: four bytes of length, then a `marshal`ed tuple, since both ends are the same
program:

    ("begin", thread, start)   ("add", thread, steps)   ("forget", thread)
    ("ask", thread, when)      answered on stdout by a line: true, false, or "why it failed"
    ("value", thread, (text, names))     by {"value": …}, or "why it failed"; `names`: further ones

The daemon evaluates no expression itself, so it need not import what does.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any

EXIT_OUT_OF_MEMORY = 3
MAX_ANSWER_BYTES = 1 << 20
LENGTH = struct.Struct("<I")
WORKER_MODULE = "engine.moderator.evaluator_process"


def encode_message(*parts: Any) -> bytes:
    """Encodes a message for the pipe."""
    data = marshal.dumps(parts)
    return LENGTH.pack(len(data)) + data
