"""Takes texts that were purged out of the older entries of a remote's log.

Entries are never deleted: their numbers are what orders writers. But what an entry says of a name
that a later one says again no reader needs, so it may go, and with it a record that has a text
which was purged since. An entry without it is put in the place of the old one, under the same id.
"""

from __future__ import annotations

from functools import partial

from casfs import canonical
from casfs.backend.purged_contents import PURGED
from casfs.digest import hash_bytes
from casfs.errors import Corrupt, NotFound
from casfs.exchange.arrivals import REDACTED_AT
from casfs.object_storage.retrying import parallel
from casfs.remotes import log
from casfs.remotes.log import Entry
from casfs.remotes.remote import MAX_SMALL_BYTES, Remote

DONE = "log/redacted"  # the hash of the purges that were looked at
AT_ONCE = 64  # entries
NONE = b""


def redact(remote: Remote, *, dry_run: bool) -> int:
    """Does it where something was purged since the last time; returns how many entries have another
    content. Raises Corrupt where an entry is missing."""
    purges = _hash_of_purges(remote)
    if purges == _done(remote):
        return 0
    last: dict[str, int] = {}  # the number of the entry that says what a name stands for
    named: dict[int, list[str]] = {}  # the names in each entry
    before: dict[int, list[str]] = {}  # the names in the snapshot of an entry: as before it
    end = remote.state.position()[0]
    for start in range(1, end + 1, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, end + 1))
        for number, entry in zip(numbers, _entries(remote, numbers), strict=True):
            last |= dict.fromkeys(entry["refs"], number)
            named[number] = [*entry["refs"]]
            before[number] = [*(entry["all"] or {"refs": ()})["refs"]]
    old = [
        number
        for number in named
        if any(last[name] > number for name in named[number])
        or any(last.get(name, 0) >= number for name in before[number])
    ]
    for number in [] if dry_run else old:
        [entry] = _entries(remote, [number])
        for name in named[number]:
            if last[name] > number:
                del entry["refs"][name]
        for name in before[number]:
            if last.get(name, 0) >= number:
                del entry["all"]["refs"][name]
        remote.storage.put(log.key(number), log.encode(entry))
    if not dry_run:
        remote.storage.put(DONE, purges)
    return len(old)


def _hash_of_purges(remote: Remote) -> bytes:
    """Returns a hash of all purges that the remote knows of; the same for none."""
    times = {
        name: ref["record"].get("at" if name.startswith(PURGED) else REDACTED_AT)
        for name, ref in remote.state.refs().items()
    }
    known = {name: purged_at for name, purged_at in times.items() if isinstance(purged_at, int)}
    return hash_bytes(canonical.encode(known)).encode() if known else NONE


def _done(remote: Remote) -> bytes:
    try:
        return remote.storage.get(DONE, MAX_SMALL_BYTES)
    except NotFound:
        return NONE


def _entries(remote: Remote, numbers: range | list[int]) -> list[Entry]:
    entries = list(parallel(partial(remote.entry, number) for number in numbers))
    for number, entry in zip(numbers, entries, strict=True):
        if entry is None:
            raise Corrupt(f"{remote.storage.url}: {log.key(number)} is missing")
    return [entry for entry in entries if entry is not None]
