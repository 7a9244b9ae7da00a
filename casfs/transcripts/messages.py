"""What a transcript says, in one form for all agents: prompts, what the model said, results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from casfs.digest import hash_bytes
from casfs.system import foreign_json

CALL_ID_CHARS = 16
MAX_TOKENS = 10**12  # of an answer; a node has no number over 2^53, and this is the sum of many
# What agents say of a call that they did not make. claude 2.1 says the same of one that a person
# has stopped while it ran.
REFUSAL = re.compile(
    r"refused|rejected|denied|not (?:allowed|permitted)|permission to use|hook (?:blocked|denied)",
    re.IGNORECASE,
)
REFUSAL_CHARS = 300  # of a result in which that stands; a program may print such words later


@dataclass(frozen=True)
class PromptMessage:
    """What a person has asked for. `id`: as the agent's hooks report it; `time_ms`: since 1970 UTC,
    0 where it is not known."""

    text: str
    id: str | None = None
    time_ms: int = 0


@dataclass(frozen=True)
class RequestedCall:
    """A call of a tool that the model asked for."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True)
class ModelMessage:
    """One answer of the model. `input_tokens`: of the whole request, cached ones too."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[RequestedCall, ...] = ()
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    time_ms: int = 0


@dataclass(frozen=True)
class ResultMessage:
    """What a tool gave back to the call with this id."""

    call_id: str
    text: str
    is_failure: bool = False
    time_ms: int = 0

    @property
    def is_refusal(self) -> bool:
        """Whether the call was perhaps never made: a person, or a rule, may have refused it."""
        return REFUSAL.search(self.text[:REFUSAL_CHARS]) is not None


@dataclass(frozen=True)
class Summary:
    """What stands for all that went before, from here on."""

    text: str


Message: TypeAlias = PromptMessage | ModelMessage | ResultMessage | Summary


def time_ms(text: Any) -> int:
    """Returns an ISO time in ms since 1970 UTC; 0 for what is none."""
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0
    return max(0, round(moment * 1000))


def count(value: Any) -> int:
    """Returns a number of tokens; 0 for what is none."""
    return value if isinstance(value, int) and 0 < value <= MAX_TOKENS else 0


def id_of_call(tool: str, arguments: Any) -> str:
    """Returns an id for the call of an agent whose hooks have none: equal before and after it, and
    in the transcript."""
    text = json.dumps([tool, arguments], sort_keys=True)
    return hash_bytes(text.encode("utf-8", "replace"))[:CALL_ID_CHARS]


def parsed_arguments(text: Any) -> Any:
    """Returns arguments that stand in a text as JSON; the text itself where it is none."""
    try:
        return foreign_json.parse(text)
    except (ValueError, TypeError):
        return text
