"""Messages between the engine and the process of an agent package (`casfs.agents.worker`).

A frame is two lengths of eight bytes, a JSON object, and a text in UTF-8 that may be large. To the
process: the start, the prompts, and an answer to each request. From it: requests with an id
(`turn`, `started`, `call`), `cancel` of one, `interrupted`, and for each prompt a `result` or
`failed`. The end of the stream ends the attempt.
"""

from __future__ import annotations

import json
import struct
import traceback
from typing import Any

from casfs import errors
from casfs.agents.contract import AgentFailed, Waiting
from casfs.agents.prompt import EarlierStep, Prompt
from casfs.errors import CasfsError, Failed

LENGTHS = struct.Struct("!QQ")
Message = dict[str, Any]


def frame(message: Message, text: str = "") -> bytes:
    """Returns the bytes of a message. Raises TypeError, ValueError for what has no JSON form."""
    data, tail = json.dumps(message, allow_nan=False).encode(), text.encode()
    return b"".join((LENGTHS.pack(len(data), len(tail)), data, tail))


def from_prompt(prompt: Prompt) -> Message:
    return {**vars(prompt), "history": [vars(step) for step in prompt.history]}


def to_prompt(value: Message) -> Prompt:
    history = tuple(EarlierStep(**step) for step in value["history"])
    return Prompt(**{**value, "history": history})


def from_error(error: BaseException, package: str | None = None) -> Message:
    """Returns an error as JSON; `package`: as for `describe`."""
    error = find_waiting(error) or error
    if not isinstance(error, CasfsError):
        return {"error": "Failed", "message": describe(error, package)}
    more = vars(error) if isinstance(error, AgentFailed | Waiting) else {}
    return {"error": type(error).__name__, "message": str(error), **more}


def to_error(value: Message) -> CasfsError:
    """Returns the error that `from_error` made JSON of."""
    name, message = value["error"], str(value["message"])
    if name == "Waiting":
        more = bool(value["keeps_workspace"]), int(value["tokens"])
        return Waiting(str(value["cause"]), message, value["question"], *more)
    if name == "AgentFailed":
        return AgentFailed(message, value["detail"])
    found = getattr(errors, str(name), Failed)
    return found(message) if issubclass(found, CasfsError) else Failed(message)


def find_waiting(error: BaseException) -> Waiting | None:
    """An agent that calls several threads at once raises their Waiting in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := find_waiting(one))), None)
    return error if isinstance(error, Waiting) else None


def describe(error: BaseException, package: str | None = None) -> str:
    """Returns an exception as one line, with the innermost file and line of a package's code in
    which it arose; "" stands for any package, None for no file and line."""
    text = " ".join(str(error).split("\n"))
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        top, file = str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_filename
        if package == top or (package == "" and "importlib" not in file and top != "__main__"):
            return f"{said} ({file}:{line})"
    return said
