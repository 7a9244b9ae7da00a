"""A unified diff, as `casfs.trees.diff.unified_diff` writes it, by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field

from casfs.errors import CasfsError
from casfs.store.store import Store

MAX_LINES = 4000  # that a page shows
MAX_LINE_CHARS = 2000
MAX_OPEN_LINES = 400  # of a file that is shown unfolded
KINDS = {"+": "added", "-": "removed", "@": "hunk", " ": "same", "\\": "note"}
HEADER = "diff --git "
NOTES = ("old mode ", "new mode ", "new file mode ", "deleted file mode ", "similarity index ")


@dataclass
class FilePatch:
    """`lines`: (kind, text); kind: added, removed, same, hunk, note. `added`, `removed`: numbers of
    lines, also of those that are not shown (`cut`)."""

    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    cut: bool = False

    @property
    def open(self) -> bool:
        return 0 < len(self.lines) <= MAX_OPEN_LINES


def stored(store: Store, hash: str | None) -> list[FilePatch]:
    """Returns the files of a stored patch; where it is damaged, its fault."""
    try:
        return [] if hash is None else parse(store.get(hash))
    except CasfsError as error:
        return [FilePatch(str(error))]


def parse(patch: bytes) -> list[FilePatch]:
    """Returns the files of a patch; a line about one without a text is a file without lines."""
    files: list[FilePatch] = []
    left = MAX_LINES
    section = ""
    text = patch.decode("utf-8", "backslashreplace").removesuffix("\n")
    for line in text.split("\n") if patch else ():
        kind = KINDS.get(line[:1], "")
        if line.startswith(HEADER):
            files.append(FilePatch(_name(line.removeprefix(HEADER))))
            section = "header"
        elif section == "header" and line.startswith(NOTES):
            files[-1].lines.append(("note", line))
        elif section == "header" and line.startswith("rename from "):
            files[-1].name = line.removeprefix("rename from ")
        elif section == "header" and line.startswith("rename to "):
            files[-1].name += " → " + line.removeprefix("rename to ")
        elif section == "header" and line.startswith(("--- ", "+++ ")):
            pass
        elif kind and (section == "hunk" or (section == "header" and kind == "hunk")):
            file = files[-1]
            section = "hunk"
            file.added += kind == "added"
            file.removed += kind == "removed"
            file.cut |= not left or len(line) > MAX_LINE_CHARS
            if left:
                file.lines.append((kind, line[:MAX_LINE_CHARS]))
                left -= 1
        else:
            files.append(FilePatch(line))
            section = ""
    return files


def _name(both: str) -> str:
    """Returns PATH of `a/PATH b/PATH`, or of the same in quotes; those of a rename follow."""
    quote = both.startswith('"')
    start = 3 if quote else 2
    return both[start : start + (len(both) - (9 if quote else 5)) // 2]
