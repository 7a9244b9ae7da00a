"""A call of a session as what it is: an edit as its diff, a command as a terminal, a read as a link
to the file as it was then."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from casfs.digest import NodeHash, TreeHash
from casfs.errors import CasfsError
from casfs.sessions import points, session_steps
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.web import compare, texts
from casfs.web.compare import FileChange
from casfs.web.texts import Text

EDIT = "edit"
EXECUTE = "execute"
READ = "read"
PATH_ARGUMENTS = ("file_path", "filePath", "notebook_path", "path")
MAX_LINES = 1000  # of the diff of a call
MAX_FILES = 50  # of a call, whose lines are shown
# As claude and gemini (`Exit code 2`), codex (`Process exited with code 2`) say it.
EXIT_CODE = re.compile(r"^(?:Process exited with code|Exit code:?) (-?\d{1,5})\b", re.I | re.M)
EXIT_CHARS = 400  # of a result in which that stands; a program may print such words later
COMPLETED = "completed"


@dataclass(frozen=True)
class ReadFile:
    """A file as it was when it was read. `hash`: of its content."""

    path: str
    hash: str


@dataclass(frozen=True)
class CallView:
    """A call in a line, and what is shown when it is unfolded. `turn`: the node that holds it, by
    which it is known: the number of one that runs may change; `said`: by the model before it;
    `ended`: how, in words; `files`: that it changed, without lines where it is folded; `unlisted`:
    how many others; `output`, `arguments`: None where it is folded."""

    turn: str
    step: int
    number: int
    tool: str
    kind: str
    subject: str
    said: Text
    ended: str
    is_fault: bool
    at_ms: int
    duration_ms: int
    marks: Sequence[str]
    read: ReadFile | None
    files: Sequence[FileChange] = ()
    unlisted: int = 0
    arguments: Text | None = None
    output: Text | None = None

    @property
    def is_folded(self) -> bool:
        return self.output is None

    @property
    def folded(self) -> CallView:
        files = [replace(file, diff=None) for file in self.files]
        return replace(self, files=files, arguments=None, output=None)

    @property
    def line_count(self) -> int:
        return sum(len(hunk) for file in self.files if file.diff for hunk in file.diff.hunks)


def of_step(
    store: Store, step: StepRecord, about: Mapping[str, str], is_unfolded: bool = False
) -> Iterator[CallView]:
    """Yields the calls of a step of a session, folded but for edits; `about`: as `sessions.about`.
    Raises NotFound, Corrupt."""
    directory = about["directory"]
    root = None if step.before_calls is None else step.before_calls.tree
    groups = session_steps.grouped(step.calls[::-1])
    at_once = {number: group.members for group in groups for number in group.numbers}
    for call in step.calls:
        assert call.turn is not None
        root = call.before.tree if call.before is not None else root
        is_whole = is_unfolded or call.kind == EDIT
        turn = store.node(call.turn, "react-turn").payload
        tool_call = store.node(turn["toolCalls"][0], "react-tool-call").payload
        result = texts.content(store, tool_call["result"])
        files, unlisted = _files(store, call, with_lines=is_whole)
        yield CallView(
            call.turn,
            call.step,
            call.number,
            tool=call.tool,
            kind=call.kind,
            subject=points.subject(call, directory),
            said=texts.content(store, turn["output"]),
            ended=_ended(call, about["agent"], result.text),
            is_fault=call.status not in (COMPLETED, session_steps.IN_PROGRESS),
            at_ms=call.began_ms,
            duration_ms=tool_call["durationMs"] or max(0, call.reported_ms - call.began_ms),
            marks=list(points.marks(call, at_once[call.number])),
            read=_read_file(store, call, directory, root) if call.kind == READ else None,
            files=files,
            unlisted=unlisted,
            arguments=_arguments(store, call, tool_call["arguments"]) if is_whole else None,
            output=result if is_whole else None,
        )
        root = call.after.tree if call.after is not None else root


def _arguments(store: Store, call: CallRecord, stored: NodeHash) -> Text:
    """Returns what a call was given: of a shell its command, else JSON."""
    command = points.arguments(call).get("command") if call.kind == EXECUTE else None
    if isinstance(command, str):
        return texts.bounded(f"$ {command}", stored)
    return texts.content(store, stored)


def _ended(call: CallRecord, agent: str, result: str) -> str:
    if call.status == session_steps.IN_PROGRESS:
        return "runs"
    # claude says it of what has failed alone; what else looks like it a program has printed.
    is_said = agent != "claude" or call.status != COMPLETED
    code = EXIT_CODE.search(result[:EXIT_CHARS]) if call.kind == EXECUTE and is_said else None
    if code is not None and (call.status == COMPLETED or code[1] != "0"):
        return f"exit {code[1]}"
    if call.status == COMPLETED:
        return "exit 0" if call.kind == EXECUTE and agent == "claude" else ""
    return call.status


def _files(store: Store, call: CallRecord, *, with_lines: bool) -> tuple[list[FileChange], int]:
    """Returns the files that a call is known to have changed, and how many more there are."""
    if call.before is None or call.after is None or call.is_unseen:
        return [], 0
    try:
        changes, _ = compare.changes(store, call.before.tree, call.after.tree)
    except CasfsError:  # gc has deleted the trees of a turn, or one is damaged
        return [], 0
    own = [item for item in changes if printable(item[0].path) not in call.foreign]
    files = []
    left = MAX_LINES
    for change, kind in own[:MAX_FILES]:
        has_room = with_lines and left > 0
        diff = compare.diff(store, change.old, change.new, left) if has_room else None
        left -= sum(map(len, diff.hunks)) if diff else 0
        files.append(FileChange(change, kind, None, diff))
    return files, len(own) - len(files)


def _read_file(
    store: Store, call: CallRecord, directory: str, root: TreeHash | None
) -> ReadFile | None:
    """Returns the file that a call names, in the directory as it was; None where that has none."""
    arguments = points.arguments(call)
    named = (arguments[name] for name in PATH_ARGUMENTS if isinstance(arguments.get(name), str))
    path = next(named, "").removeprefix(f"{directory}/")
    if root is None or not path:
        return None
    try:
        entry = tree.find(store, root, path.encode("utf-8", "surrogatepass"))
    except CasfsError:  # outside of it, or damaged
        return None
    return ReadFile(path, entry.digest.hash) if isinstance(entry, File) else None
