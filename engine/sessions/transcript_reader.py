"""The transcript of a session, read as it grows: its raw lines are kept here, byte for byte, and
what they say of each call is added to the call's turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from casfs.digest import TreeHash
from casfs.errors import Corrupt
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.transcripts import claude, codex, gemini, json_lines
from casfs.transcripts.json_lines import Lines
from casfs.transcripts.messages import Message, ModelMessage, ResultMessage, Summary
from casfs.trees import edit

MAX_PART_BYTES = 64 << 20  # that are read at once; the rest comes with the next step
TAIL_BYTES = 1 << 20  # in which the last results stand
Reader = Callable[[Lines], Iterable[Message]]
READERS: Mapping[str, Reader] = {
    "claude": claude.messages,
    "codex": codex.messages,
    "gemini": gemini.messages,
    "qwen": gemini.messages_of_qwen,
}
SUBAGENT_READERS: Mapping[str, Reader] = {
    "claude": claude.subagent_messages,
    "codex": codex.subagent_messages,
}
NAME = b"transcript.jsonl"


@dataclass(frozen=True)
class TranscriptPart:
    """What a transcript has gained. `raw`: a tree with the lines, which stays here; `end`: up to
    which byte; `callers`: only subagents that these calls have begun are of its step, None: all."""

    raw: TreeHash
    end: int
    messages: tuple[Message, ...]
    callers: Collection[str] | None = None

    @property
    def summary(self) -> str | None:
        """The last summary that stands for all before it."""
        texts = [message.text for message in self.messages if isinstance(message, Summary)]
        return texts[-1] if texts else None

    @property
    def by_call(self) -> dict[str, ModelMessage]:
        """The messages of the model, by the ids of the calls that they ask for."""
        return {
            call.id: message
            for message in self.messages
            if isinstance(message, ModelMessage)
            for call in message.calls
        }

    @property
    def results(self) -> dict[str, ResultMessage]:
        """What tools gave back, by the ids of the calls."""
        return {
            message.call_id: message
            for message in self.messages
            if isinstance(message, ResultMessage)
        }

    @property
    def without_calls(self) -> list[ModelMessage]:
        return [
            message
            for message in self.messages
            if isinstance(message, ModelMessage) and not message.calls
        ]

    @property
    def tokens(self) -> int:
        answers = [message for message in self.messages if isinstance(message, ModelMessage)]
        return sum(message.input_tokens + message.output_tokens for message in answers)

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        models = [
            message.model
            for message in self.messages
            if isinstance(message, ModelMessage) and message.model
        ]
        return models[-1] if models else None


def read_part(
    store: Store, agent: str, transcript: str, begin: int, *, of_subagent: bool = False
) -> TranscriptPart | None:
    """Stores the whole lines of a transcript from a byte on. Returns None where it has gained none,
    is gone, or has a form that is not read."""
    if agent not in READERS:
        return None
    try:
        with json_lines.opened(transcript) as file:
            # It was written anew.
            if file.seek(0, os.SEEK_END) < begin:
                begin = 0
            file.seek(begin)
            data = file.read(MAX_PART_BYTES)
    except (OSError, Corrupt):  # the agent has not made it yet, or has deleted it
        return None
    # A line may be half written; one that is longer than a part is taken in pieces.
    whole = data.rpartition(b"\n")
    raw = whole[0] + whole[1]
    if not raw and len(data) == MAX_PART_BYTES:
        raw = data
    return store_part(store, agent, raw, begin, of_subagent=of_subagent) if raw else None


def size(transcript: str | None) -> int:
    """Returns the bytes of a transcript; 0 of one that is not there."""
    with suppress(OSError, ValueError):
        return os.stat(transcript).st_size if transcript else 0
    return 0


def has_reader(agent: str, transcript: str | None) -> bool:
    """Whether a transcript says when a call is over."""
    return transcript is not None and agent in READERS


def answers(agent: str, transcript: str | None, since: int) -> dict[str, ResultMessage]:
    """Returns the results that stand behind a byte of a transcript, by the ids of their calls: also
    of one that its agent has refused, or that a person has interrupted, of which no hook tells."""
    if transcript is None or agent not in READERS:
        return {}
    try:
        with json_lines.opened(transcript) as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = json_lines.parsed(file.read(TAIL_BYTES))
    except (OSError, Corrupt):
        return {}
    messages = READERS[agent](lines)
    results = (message for message in messages if isinstance(message, ResultMessage))
    return {message.call_id: message for message in results}


def store_part(
    store: Store, agent: str, raw: bytes, begin: int, *, of_subagent: bool = False
) -> TranscriptPart:
    """Stores lines of a transcript, which begin at a byte of it."""
    with store.local_writes().batch() as batch:
        digest = batch.put(raw)
        tree = edit.with_entries(
            store, batch, root=None, changes={NAME: File(NAME, digest, executable=False)}
        )
    readers = SUBAGENT_READERS if of_subagent else READERS
    messages = tuple(readers[agent](json_lines.parsed(raw)))
    return TranscriptPart(tree.hash, begin + len(raw), messages)
