"""The request counters of a mount: `.casfs/stats.json`.

Requests are counted by kind as they arrive; what the kernel answers from its caches is not
among them. Numbers have a fixed width and the usual kinds are there from the start, so that
the file keeps its length: it changes with every request, and a reader sends two, for the
content and for its end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from casfs.fuse.views.nodes import pretty

USUAL_KINDS = (
    "access batch_forget flush forget getattr getxattr init ioctl lookup lseek open opendir poll"
    " read readdir readdirplus readlink release releasedir statfs"
).split()
NUMBER = re.compile(rb"(?<=: )\d+(?=,?$)", re.MULTILINE)
NUMBER_WIDTH = 15


class Stats:
    def __init__(self, transport: str = "") -> None:
        self.transport = transport
        self.requests: Counter[str] = Counter(dict.fromkeys(USUAL_KINDS, 0))
        self.bytes_served = 0
        self.cache: Callable[[], Mapping[str, int]] = dict

    def report(self) -> bytes:
        text = pretty(
            {
                "transport": self.transport,
                "requests": dict(sorted(self.requests.items())),
                "cache": dict(self.cache()),
                "bytes_served": self.bytes_served,
            }
        )
        return NUMBER.sub(lambda number: number[0].rjust(NUMBER_WIDTH), text)
