"""The tools that read the store; `cas_put` adds to it what is immutable."""

from __future__ import annotations

import codecs
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field

from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.checkpoints import checkpoint, revisions
from casfs.errors import Invalid, Refused
from casfs.history import blame as blames
from casfs.history import details, versions
from casfs.history.log import log as changes
from casfs.maintenance.search import Index
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system import interruption
from casfs.system.clock import times
from casfs.system.paths import open_top
from casfs.threads import attempt_details, lookup, prompts, threads
from casfs.threads.state import STATES, state
from casfs.threads.summary import content_text, first_line, listing
from casfs.threads.threads import StepNode, Thread
from casfs.trees import tree as trees
from casfs.trees.diff import unified_diff

MAX_HITS = 10_000
MAX_SHOWN = 100  # artifacts, and failed attempts, of a step
SIZE = 64 << 10  # bytes of one result: by default, on request
MAX_SIZE = 1 << 20
MAX_ROW_CHARS = 1000  # of a text in a list
Value = dict[str, Any]

# An optional text is "", not None: the SDK parses JSON in a text that may also be something else.
Text = Annotated[str, Field(max_length=4096, pattern="^[^\\x00]*$")]
Long = Annotated[str, Field(max_length=4 << 20)]
Texts = Annotated[Sequence[Text], Field(max_length=1000)]
Number = Annotated[int, Field(ge=0, le=1 << 53)]
Offset = Annotated[Number, Field(description="`nextOffset` of the result before")]
Limit = Annotated[int, Field(ge=1, le=200)]
Size = Annotated[int, Field(ge=16, le=MAX_SIZE, description="in bytes")]
Name = Annotated[Text, Field(description="id, 4 or more characters of it, name, or @last")]
Revision = Annotated[
    Text,
    Field(
        description="a tree: checkpoint NAME, NAME~1, NAME@ID; THREAD, THREAD@STEP (0: before the"
        " first), THREAD@STEP~1; a hash; REV:PATH is a directory or file in it"
    ),
]
State = Literal["", *STATES]  # type: ignore[valid-type]


@dataclass(frozen=True)
class Reading:
    """`thread`: of the program that started this server, if it is an agent's; `secrets`: what is
    replaced in what it puts; `directories`: real paths of those that it may write; `roots`: their
    descriptors, opened once, so that swapped symlinks cannot lead outside. Raises NotFound."""

    store: Store
    thread: str = ""
    secrets: Secrets = NO_SECRETS
    directories: Sequence[Path] = ()
    roots: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.roots.extend(map(open_top, self.directories))

    def search(
        self, text: Text, type: Text = "", thread: Name = "", offset: Offset = 0, limit: Limit = 50
    ) -> Value:
        """Full-text search over what threads said and put: nodes with all words of `text`, the best
        first, with the thread and step that shows each. `type`: of nodes, such as content."""
        id = lookup.find(self.store, thread).id if thread else None
        with Index(self.store) as index:
            hits = index.search(text, type=type or None, thread=id, limit=MAX_HITS)
            return rows("hits", map(asdict, hits), first=offset, limit=limit)

    def list_threads(
        self, status: State = "", workflow: Text = "", offset: Offset = 0, limit: Limit = 50
    ) -> Value:
        """The threads (runs of workflows), the newest first."""
        summaries = (
            times(listing(self.store, thread))
            for thread in threads.newest_first(self.store)
            if status in ("", state(thread)) and workflow in ("", thread.fields.get("workflow"))
        )
        return rows("threads", summaries, first=offset, limit=limit)

    def list_checkpoints(self, name: Text = "", offset: Offset = 0, limit: Limit = 50) -> Value:
        """The checkpoints (directories recorded under a name), the newest first."""
        checkpoints = checkpoint.listing(self.store, name or None)
        checkpoints.sort(key=lambda stored: stored.created_at, reverse=True)
        values = (
            {"revision": f"{stored.name}@{stored.id}", "message": stored.message}
            for stored in checkpoints
        )
        return rows("checkpoints", values, first=offset, limit=limit)

    def read_thread(self, thread: Name = "", offset: Offset = 0, limit: Limit = 50) -> Value:
        """A thread: its state, task, question for a person, and its steps, the newest first."""
        loaded_thread = self.find(thread)
        value = {
            **listing(self.store, loaded_thread),
            "stepCount": threads.length(self.store, loaded_thread),
        }
        if (question := loaded_thread.record.get("question")) is not None:
            value["question"] = content_text(self.store, question)[:SIZE]
        lines = map(self._line, threads.backwards(self.store, loaded_thread))
        return {**times(value), **rows("steps", lines, first=offset, limit=limit)}

    def _line(self, node: StepNode) -> Value:
        step = node.payload
        said = first_line(content_text(self.store, step["content"]))
        status = str(step["meta"].get("status", ""))
        return {"step": step["index"], "role": step["role"], "status": status, "said": said}

    def read_step(
        self, thread: Name = "", step: Number = 0, offset: Offset = 0, limit: Size = SIZE
    ) -> Value:
        """A step, by default the last: what its agent said (`text`), its meta, artifacts, failed
        attempts. `diff` shows what it changed, from THREAD@STEP~1 to THREAD@STEP; cas_get of `hash`
        all that is recorded."""
        store = self.store
        loaded_thread = self.find(thread)
        node = threads.step_at(
            store, loaded_thread, step or threads.length(store, loaded_thread) or 1
        )
        meta = node.payload["meta"]
        output = store.node(node.payload["content"], "content").payload
        failed = [attempt_details.read(store, hash) for hash in node.payload["attempts"]]
        return {
            "thread": loaded_thread.id,
            "step": node.payload["index"],
            "role": node.payload["role"],
            "hash": node.hash,
            "meta": meta if len(json.dumps(meta)) < SIZE else f"large: cas_get {node.hash}",
            "artifacts": output["artifacts"][:MAX_SHOWN],
            "failedAttempts": [attempt_details.line(attempt) for attempt in failed[-MAX_SHOWN:]],
            **window(output["text"], offset, limit),
        }

    def read_prompt(
        self, thread: Name = "", step: Number = 0, offset: Offset = 0, limit: Size = SIZE
    ) -> Value:
        """The prompt that the agent of a step got; without `step` that of the pending one, or else
        of the last. `fault`: why it may be another text."""
        loaded_thread = self.find(thread)
        index, prompt = prompts.of_thread(self.store, loaded_thread, step or None)
        value = {"thread": loaded_thread.id, "step": index, "fault": prompt.fault}
        return {**value, **window(prompt.text, offset, limit)}

    def context(self, thread: Name = "", offset: Offset = 0, limit: Size = SIZE) -> Value:
        """What a thread knows: its task, the newest summary, every step since. Without `thread`, in
        a step: what the thread that called this one knew then; where none did, what this one knows.
        `caller`: the thread that called the named one, or this one."""
        loaded_thread = self.find(thread)
        caller = None if thread else threads.start(self.store, loaded_thread).payload["parentState"]
        state = (
            (loaded_thread.hash, loaded_thread.record.get("compact"))
            if caller is None
            else (caller, None)
        )
        text = prompts.context(self.store, *state)
        value = {"thread": loaded_thread.id, "caller": loaded_thread.fields.get("parent")}
        return {**value, **window(text, offset, limit)}

    def list_tree(
        self, tree: Revision, recursive: bool = False, offset: Offset = 0, limit: Limit = 50
    ) -> Value:
        """The entries of a directory in a tree, with sizes and hashes."""
        entries = revisions.entries(self.store, tree, recursive=recursive)
        return rows(
            "entries", (trees.entry_json(*entry) for entry in entries), first=offset, limit=limit
        )

    def read_file(self, file: Revision, offset: Offset = 0, limit: Size = SIZE) -> Value:
        """The text of a file in a tree (REV:PATH), or of a blob (its hash)."""
        hash = revisions.resolve_blob(self.store, file)
        with self.store.blobs.open(hash) as source:
            return {"hash": hash, **part(source, offset, limit)}

    def diff(
        self, old: Revision, new: Revision, path: Text = "", offset: Offset = 0, limit: Size = SIZE
    ) -> Value:
        """The unified diff of two trees; `path`: of a file or directory in them alone."""
        before, after = (revisions.resolve_tree(self.store, revision) for revision in (old, new))
        patch = unified_diff.patch(self.store, before, after, paths=[os.fsencode(path)])
        return part(io.BytesIO(patch), offset, limit, errors="backslashreplace")

    def blame(self, file: Revision, offset: Offset = 0, limit: Limit = 50) -> Value:
        """Each line of a file (REV:PATH) with the step or checkpoint that wrote it: role, agent,
        model, time, and turn and tool where they are known."""
        lines = blames.blame(*versions.find(self.store, file))
        return rows(
            "lines", map(times, details.lines(self.store, lines)), first=offset, limit=limit
        )

    def log(self, path: Revision, offset: Offset = 0, limit: Limit = 50) -> Value:
        """The steps and checkpoints that changed a file or directory (REV:PATH), or anything in a
        tree (REV), the newest first. A added, M modified, D deleted, R renamed,
        T other."""
        changed_versions = changes(*versions.find(self.store, path))
        values = (
            {**details.version(self.store, changed.version), "letter": changed.letter}
            for changed in changed_versions
        )
        return rows("changes", map(times, values), first=offset, limit=limit)

    def cas_get(self, hash: Text, offset: Offset = 0, limit: Size = SIZE) -> Value:
        """What the store has under a hash, or its first 8 characters or more: the type of a node
        and its payload (as JSON text where it is large), the text of a blob."""
        full = self.store.expand(hash)
        if self.store.blobs.info([full])[full].type is None:
            return self.read_file(full, offset, limit)
        node = self.store.node(full)
        text = json.dumps(node.payload, ensure_ascii=False)
        is_part = offset or len(text.encode()) > limit
        shown = window(text, offset, limit) if is_part else {"payload": node.payload}
        return {"hash": full, "type": node.type, **shown}

    def cas_put(self, text: Long, artifacts: Texts = ()) -> Value:
        """Puts a text into the store, as a content node with hashes as `artifacts`, and returns its
        hash, for the member of an output that is a cas_ref."""
        if hidden := self.store.whole.blobs.local_among(artifacts):
            raise Invalid(f"refers to {min(hidden)}, which is not in this store; put it first")
        payload = {"text": self.secrets.redact(text), "artifacts": list(artifacts)}
        return {"hash": self.store.put_node("content", payload).hash}

    def read_path(self, name: str) -> Value | str | bytes:
        """Returns the content of the file REV:PATH, or the entries of a directory."""
        if not isinstance(revisions.resolve_entry(self.store, name)[2], File):
            return self.list_tree(name, limit=MAX_SIZE)
        content = self.read_file(name, limit=MAX_SIZE)
        if "nextOffset" in content:
            raise Refused(f"{name}: {content['sizeBytes']} bytes; the tool read_file reads parts")
        return str(content["text"]) if "text" in content else self.store.get(content["hash"])

    def find(self, thread: str) -> Thread:
        """Returns the thread that a call names, or this server's own."""
        if not (thread or self.thread):
            raise Invalid("thread: name one; this server was not started by a step of a thread")
        return lookup.find(self.store, thread or self.thread)


def rows(name: str, all_rows: Iterable[Value], first: int, limit: int) -> Value:
    """Returns a window of a list, with texts cut."""
    kept: list[Value] = []
    for row in islice(all_rows, first, None):
        interruption.check()
        if len(kept) == limit or len(json.dumps(kept)) > SIZE:
            return {name: kept, "nextOffset": first + len(kept)}
        kept.append({key: _short(value) for key, value in row.items()})
    return {name: kept}


def _short(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > MAX_ROW_CHARS
    return f"{value[:MAX_ROW_CHARS]}…" if is_long else value


def window(text: str, first: int, count: int) -> Value:
    """As `part`, of a text."""
    return part(io.BytesIO(text.encode()), first, count, nul=True)


def part(
    source: BinaryIO, first: int, count: int, *, nul: bool = False, errors: str = "strict"
) -> Value:
    """Returns the text of `count` bytes of a file from `first` on. `nul`: one may be in a text;
    `errors`: what becomes of bytes that are not UTF-8."""
    size = source.seek(0, io.SEEK_END)
    first = source.seek(min(first, size))
    data = source.read(count)
    end = first + len(data)
    value: Value = {"sizeBytes": size}
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    try:
        text = decoder.decode(data, end == size)
        end -= len(decoder.getstate()[0])  # a character that was cut
        value |= {"isBinary": True} if "\0" in text and not nul else {"text": text}
    except UnicodeDecodeError:
        value["isBinary"] = True
    return value if end == size else {**value, "nextOffset": end}


TOOLS = """
    search list_threads list_checkpoints read_thread read_step read_prompt context list_tree
    read_file diff blame log cas_get cas_put
""".split()
