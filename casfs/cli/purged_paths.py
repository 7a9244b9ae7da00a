"""Names once, by path and checkpoint, what a command left out as it was purged."""

from __future__ import annotations

from collections.abc import Sequence

from casfs.cli.output import warn
from casfs.store.store import Store

MAX_PLACES = 5  # each is a walk up the graph


def warn_purged(store: Store, hashes: Sequence[str]) -> None:
    """Prints one line, where there is something to name."""
    from casfs.maintenance.whereabouts import Whereabouts

    if not hashes:
        return
    with Whereabouts(store) as whereabouts:
        places = [(whereabouts.of(hash) or [hash])[0] for hash in hashes[:MAX_PLACES]]
    suffix = f" and {len(hashes) - MAX_PLACES} more" if len(hashes) > MAX_PLACES else ""
    warn(f"{', '.join(places)}{suffix}: purged; left out, see `casfs purge --list`")
