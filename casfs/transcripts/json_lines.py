"""What transcripts of JSON lines have alike: read, found in, and written under a new id."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from casfs.errors import Corrupt, NotFound
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.system import foreign_json, zstd
from casfs.system.files import os_errors, replacing
from casfs.system.paths import FILE_FLAGS

COMPRESSED = ".zst"  # behind the name of one that its agent has compressed
MAX_DECOMPRESSED_BYTES = 1 << 30
Value = dict[str, Any]


class CutConversation(NamedTuple):
    """`id`: of the new session; `transcript`: its file, None where it has none; `command`: what
    goes on from there."""

    id: str
    transcript: Path | None
    command: str


class Lines(NamedTuple):
    """The lines of a transcript, and each as JSON: an empty object for one that is cut off, or of
    another form."""

    raw: list[bytes]
    values: list[Value]


def read(transcript: Path) -> Lines:
    """Raises NotFound, Failed, Corrupt."""
    with os_errors(f"cannot read {transcript}"):
        for path in (transcript, Path(f"{transcript}{COMPRESSED}")):
            with suppress(FileNotFoundError), zstd.opened(path) as file:
                return parsed(file.read(MAX_DECOMPRESSED_BYTES))
    raise NotFound(f"the agent has deleted its transcript {transcript}")


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Returns those that are files, by when they were written last."""
    written = []
    for path in paths:
        with suppress(OSError):  # it is being deleted
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                written.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(written)]


def read_head(path: Path, count: int) -> bytes:
    """Returns the first bytes of a regular file, decompressed; nothing where it cannot be read."""
    with suppress(OSError, Corrupt):
        _regular(path).close()
        with zstd.opened(path) as file:
            return file.read(count)
    return b""


def stem(path: Path) -> str:
    """Returns the name of a transcript without suffixes, the same once its agent has compressed
    it."""
    return Path(path.name.removesuffix(COMPRESSED)).stem


def opened(path: Path | str) -> BinaryIO:
    """Opens a regular file, decompressed. Raises OSError for anything else: an agent may name any
    path, and a fifo must not be waited for; Corrupt."""
    file = _regular(path)
    if not os.fspath(path).endswith(COMPRESSED):
        return file
    file.close()
    with zstd.opened(Path(path)) as whole:
        return io.BytesIO(whole.read(MAX_DECOMPRESSED_BYTES))


def _regular(path: Path | str) -> BinaryIO:
    try:
        fd = os.open(path, FILE_FLAGS)
    except ValueError as error:  # a NUL in the path
        raise OSError(str(error)) from None
    file = open(fd, "rb")  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def parsed(data: bytes) -> Lines:
    # Not `splitlines`, which also ends a line at other characters than a line feed.
    raw = [line + b"\n" for line in data.split(b"\n")]
    raw[-1] = raw[-1][:-1]
    raw = [line for line in raw if line]
    return Lines(raw, [_value(line) for line in raw])


def _value(line: bytes) -> Value:
    try:
        value = foreign_json.parse(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write(path: Path, lines: Iterable[bytes]) -> None:
    """Writes a new transcript, whole or not at all. Raises Failed."""
    with os_errors(f"cannot write {path}"), replacing(path, durable=True) as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(lines)


def prompt_line(prompts: Sequence[tuple[int, str | None, str]], step: StepRecord) -> int:
    """Returns the line of a step's prompt, of all prompts: (line, id, text). By its id; else by its
    text, the last of equal ones. Raises NotFound."""
    by_text = None
    for number, id, text in prompts:
        if id is not None and id == step.prompt_id:
            return number
        if text == step.prompt:
            by_text = number
    if by_text is None:
        raise NotFound(f"prompt {step.index} is not in the agent's transcript")
    return by_text


def missing_call(call: CallRecord) -> NotFound:
    return NotFound(f"call {call.step}.{call.number} is not in the agent's transcript")


def refuse_empty(has_messages: bool) -> None:
    """Raises NotFound where nothing is left to go on from."""
    if not has_messages:
        raise NotFound("nothing is left of the conversation: begin a new session")


def parts(content: Any, kind: str) -> list[Value]:
    """Returns the parts of a message's content that are of a kind."""
    members = content if isinstance(content, list) else []
    return [part for part in members if isinstance(part, dict) and part.get("type") == kind]


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def joined_texts(content: Any) -> str:
    """Returns the text of a message's content."""
    if isinstance(content, str):
        return content
    members = content if isinstance(content, list) else []
    return "".join(
        str(part["text"]) for part in members if isinstance(part, dict) and "text" in part
    )
