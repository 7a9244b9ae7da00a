"""What is taken back, as `rewind` and `undo` print it."""

from __future__ import annotations

from casfs.cli.diff_output import print_changes
from casfs.cli.output import echo
from casfs.rewind.undo_calls import Undone
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.system.safe_text import escape


def print_undone(store: Store, undone: Undone) -> None:
    """Prints a line for each file, and for what becomes of a repository: not for its objects."""
    print_changes(store, iter(undone.changed_files))
    for top, lines in sorted(undone.repositories.items()):
        for line in lines:
            echo(escape(f"G {printable(top)}: {line}", one_line=True))


def repositories_json(undone: Undone) -> dict[str, list[str]]:
    return {printable(top): lines for top, lines in undone.repositories.items()}
