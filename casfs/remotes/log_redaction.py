"""Takes texts that were purged out of the older entries of a remote's log.

Entries are never deleted: their numbers are what orders writers. But what an entry says of a name
that a later one says again is read by nobody, so it may go, and with it a record that has a text
which was purged since. An entry without it is put in the place of the old one, under the same id.
"""

from __future__ import annotations

from functools import partial

from casfs.arrivals import REDACTED_AT
from casfs.backend.purged_contents import PURGED
from casfs.errors import Corrupt, NotFound
from casfs.object_storage.retrying import parallel
from casfs.remotes import log
from casfs.remotes.log import Entry
from casfs.remotes.remote import MAX_SMALL_BYTES, Remote
from casfs.system.clock import now_ms

DONE = "log/redacted"  # the time, in ms since 1970 UTC, up to which purges were looked at
AT_ONCE = 64  # entries


def redact(remote: Remote, *, dry_run: bool) -> int:
    """Does it where something was purged since the last time; returns how many entries have another
    content. Raises Corrupt where an entry is missing."""
    newest = _newest_purge(remote)
    if newest <= _done(remote):
        return 0
    last: dict[str, int] = {}  # the number of the entry that says what a name stands for
    named: dict[int, list[str]] = {}  # the names in each entry, its snapshot included
    end = remote.state.position()[0]
    for start in range(1, end + 1, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, end + 1))
        for number, entry in zip(numbers, _entries(remote, numbers), strict=True):
            last |= dict.fromkeys(entry["refs"], number)
            named[number] = [*entry["refs"], *(entry["all"] or {"refs": ()})["refs"]]
    old = [number for number, names in named.items() if any(last[name] > number for name in names)]
    for number in [] if dry_run else old:
        [entry] = _entries(remote, [number])
        for refs in (entry["refs"], (entry["all"] or entry)["refs"]):
            for name in [name for name in refs if last[name] > number]:
                del refs[name]
        remote.storage.put(log.key(number), log.encode(entry))
    if not dry_run:
        remote.storage.put(DONE, str(newest).encode())
    return len(old)


def _newest_purge(remote: Remote) -> int:
    """Returns when something was purged last that the remote knows of, 0 for never."""
    times, now = [0], now_ms()
    for name, ref in remote.state.refs().items():
        at = ref["record"].get("at" if name.startswith(PURGED) else REDACTED_AT)
        if isinstance(at, int) and at <= now:
            times.append(at)
    return max(times)


def _done(remote: Remote) -> int:
    try:
        text = remote.storage.get(DONE, MAX_SMALL_BYTES)
    except NotFound:
        return 0
    return int(text) if text.isdigit() else 0


def _entries(remote: Remote, numbers: range | list[int]) -> list[Entry]:
    entries = list(parallel(partial(remote.entry, number) for number in numbers))
    for number, entry in zip(numbers, entries, strict=True):
        if entry is None:
            raise Corrupt(f"{remote.storage.url}: {log.key(number)} is missing")
    return [entry for entry in entries if entry is not None]
