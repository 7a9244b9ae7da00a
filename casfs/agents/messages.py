"""What the engine and the process of an agent package send each other (`casfs.agents.worker`).

JSON-RPC (`casfs.agents.json_rpc`). To the process, notifications: the start, `prompt` for each, and
`end` of the attempt. From it, requests: those of its context's callbacks, and `result` or `failed`
for each prompt; they are answered with {"value"} or an error as JSON.
"""

from __future__ import annotations

import traceback
from typing import Any

from casfs import errors
from casfs.agents.contract import AgentFailed, AgentResult, Waiting
from casfs.agents.prompt import EarlierStep, Prompt
from casfs.agents.secret_marks import SecretMarks
from casfs.agents.secrets import Secrets
from casfs.digest import BlobHash, Digest
from casfs.errors import CasfsError, Failed
from casfs.scanner import Scanner

Message = dict[str, Any]


def from_prompt(prompt: Prompt) -> Message:
    return {**vars(prompt), "history": [vars(step) for step in prompt.history]}


def to_prompt(value: Message) -> Prompt:
    history = tuple(EarlierStep(**step) for step in value["history"])
    return Prompt(**{**value, "history": history})


def from_secrets(secrets: Secrets) -> Message:
    marks = secrets.marks
    scanner = marks.scanner
    return {
        "values": dict(secrets.values),
        "private_values": sorted(secrets.private_values),
        "allowed": None if scanner is None else sorted(scanner.allowed),
        "highest": marks.highest,
        "numbers": {secret.decode("latin-1"): number for secret, number in marks.numbers.items()},
    }


def to_secrets(value: Message) -> Secrets:
    allowed = value["allowed"]
    scanner = None if allowed is None else Scanner(allowed)
    numbers = {secret.encode("latin-1"): number for secret, number in value["numbers"].items()}
    marks = SecretMarks(scanner, value["highest"], numbers)
    return Secrets(value["values"], value["private_values"], marks)


def from_result(result: AgentResult) -> Message:
    return {
        **vars(result),
        "recorded": dict(result.recorded),
        "detail": [result.detail.hash, result.detail.size_bytes],
    }


def to_result(value: Message) -> AgentResult:
    hash, size = value["detail"]
    tree = value["workspace"]
    return AgentResult(
        output=str(value["output"]),
        detail=Digest(BlobHash(str(hash)), int(size)),
        artifacts=tuple(map(str, value["artifacts"])),
        workspace=tree and str(tree),
        tokens=int(value["tokens"]),
        recorded={str(name): str(hash) for name, hash in value.get("recorded", {}).items()},
        keeps_workspace=bool(value.get("keeps_workspace", True)),
    )


def from_error(error: BaseException, package: str | None = None) -> Message:
    """Returns an error as JSON; `package`: as for `describe`."""
    error = find_waiting(error) or error
    if not isinstance(error, CasfsError):
        return {"error": "Failed", "message": describe(error, package)}
    error_fields = vars(error) if isinstance(error, AgentFailed | Waiting) else {}
    return {"error": type(error).__name__, "message": str(error), **error_fields}


def to_error(value: Message) -> CasfsError:
    """Returns the error that `from_error` made JSON of."""
    name = value["error"]
    message = str(value["message"])
    if name == "Waiting":
        question = value["question"]
        arguments = (bool(value["keeps_workspace"]), int(value["tokens"]))
        return Waiting(str(value["cause"]), message, question and str(question), *arguments)
    if name == "AgentFailed":
        return AgentFailed(message, value["detail"] and str(value["detail"]))
    error_class = getattr(errors, str(name), Failed)
    # The module has names of other things than classes, too.
    is_error = isinstance(error_class, type) and issubclass(error_class, CasfsError)
    return error_class(message) if is_error else Failed(message)


def find_waiting(error: BaseException) -> Waiting | None:
    """An agent that calls several threads at once raises their Waiting in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next(
            (
                waiting
                for nested_error in error.exceptions
                if (waiting := find_waiting(nested_error))
            ),
            None,
        )
    return error if isinstance(error, Waiting) else None


def describe(error: BaseException, package: str | None = None) -> str:
    """Returns an exception as one line, with the innermost file and line of a package's code in
    which it arose; "" stands for any package, None for no file and line."""
    text = " ".join(str(error).split("\n"))
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        file = frame.f_code.co_filename
        if package == top or (package == "" and "importlib" not in file and top != "__main__"):
            return f"{said} ({file}:{line})"
    return said
