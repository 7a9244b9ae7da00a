"""The form and the limits of a thread's record (`casfs.threads.threads` describes its fields).

A record has at most 4 KiB, whatever agents put out and however often they fail. So its lists keep
only their newest members, and its texts are truncated by bytes; what is dropped here is stored
nowhere else, so the limits are as wide as they can be together. Pure functions;
`engine.threads.transitions` moves heads.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from casfs.digest import NodeHash, ThreadId
from casfs.system.clock import now_ms
from casfs.threads.threads import RUNNING
from casfs.trees.recorded_state import FIELDS, RecordedState

if TYPE_CHECKING:
    from casfs.payloads import Intent, Spent, ThreadRecord, ThreadStart

MAX_REASON_BYTES = 600  # as JSON
MAX_ATTEMPTS = 12  # length of a list
MAX_TURNS = 8
MAX_CALLS = 12
KEPT = ("kept", "tree", *FIELDS)  # from attempt to attempt, of one agent
PAUSED = "paused"  # kept between attempts, whichever agent plays the role
MAX_LOST_ATTEMPTS = 3  # attempts of one step that ended with the daemon

FAILURE = "failure"
TIMEOUT = "timeout"
BUDGET = "budget"
UNKNOWN = "unknown"
RULE = "rule"
CALLER = "caller"  # its caller is suspended
ROUNDS = "rounds"  # the step limit is reached
ALLOWS_SECRETS = "allowsSecrets"
ON_LIMIT = (SUSPEND_ON_LIMIT, END_ON_LIMIT) = ("suspend", "end")


@dataclass(frozen=True)
class Budget:
    """The limits at which a thread is suspended; None is no limit."""

    tokens: int | None = None
    wall_ms: int | None = None

    @classmethod
    def of(cls, payload: Mapping[str, Any] | None) -> Budget:
        return cls() if payload is None else cls(payload["tokens"], payload["wallMs"])

    def payload(self) -> dict[str, Any] | None:
        if self.tokens is None and self.wall_ms is None:
            return None
        return {"tokens": self.tokens, "wallMs": self.wall_ms}

    def exceeded(self, spent: Spent) -> str | None:
        """Returns the reason to suspend a thread that spent so much; None below the limits."""
        if self.tokens is not None and spent["tokens"] >= self.tokens:
            return f"budget: {spent['tokens']} of {self.tokens} tokens are spent"
        if self.wall_ms is not None and spent["wallMs"] >= self.wall_ms:
            seconds = f"{spent['wallMs'] / 1000:.1f} of {self.wall_ms / 1000:g} s"
            return f"budget: {seconds} of running time are spent"
        return None


UNLIMITED = Budget()


def initial(start: NodeHash, workflow: str, **fields: Any) -> dict[str, Any]:
    """Returns the record of a new thread."""
    return {
        "status": RUNNING,
        "start": start,
        "workflow": workflow,
        "updatedAt": now_ms(),
        "reason": None,
        "cause": None,
        "question": None,
        "answer": None,
        "intent": None,
        "attempts": [],
        "spent": {"tokens": 0, "wallMs": 0},
        "compact": None,
        "parent": None,
        "children": [],
        "fork": None,
        "agents": None,
        "key": None,
        **fields,
    }


def new_intent(
    role: str,
    index: int,
    attempt: int,
    calls: Sequence[ThreadId] = (),
    lost: int = 0,
    last: Intent | None = None,
) -> Intent:
    """Returns the intent of an attempt. Its `run` is the token by which the attempt's processes
    are found again; `lost`: earlier attempts that ended with the daemon; `last`: the intent of the
    attempt before, if any."""
    before: Mapping[str, Any] = last or {}
    carried = {name: before[name] for name in ("rule", PAUSED, *KEPT) if name in before}
    fresh: Intent = {
        "role": role,
        "index": index,
        "attempt": attempt,
        "since": now_ms(),
        "run": secrets.token_hex(16),
        "pid": None,
        "pidStart": None,
        "turns": [],
        "turnCount": 0,
        "calls": list(calls),
    }
    return changed(fresh, **carried, **({"lost": lost} if lost else {}))


def run_token(intent: Intent) -> str:
    """Returns the token of the attempt that runs; an archived intent has none."""
    token = intent["run"]
    assert token is not None
    return token


def changed(intent: Mapping[str, Any], **fields: Any) -> Intent:
    """Returns an intent with other values of these fields."""
    return cast("Intent", {**intent, **fields})


def state_fields(state: RecordedState) -> dict[str, str]:
    """Returns the fields of an intent whose next attempt begins with `state`."""
    return {"tree": state.tree, **state.fields}


def pending_state(intent: Mapping[str, Any]) -> RecordedState | None:
    """Returns what the next attempt begins with, where that is not what was there before the
    step."""
    if "tree" not in intent:
        return None
    return RecordedState.of_fields(intent["tree"], intent)


def lost_attempts(intent: Intent) -> int:
    """Returns how many attempts at a pending step ended with the daemon, the last one included,
    since the step began or a person resumed it."""
    return 0 if intent.get("resumed") else intent.get("lost", 0) + 1


def with_turn(intent: Intent, turn: str, keep: Callable[[Sequence[str]], str]) -> Intent:
    """Returns the intent with one more turn. Where the list is full, `keep` puts a node that
    holds the earlier ones (`casfs.threads.threads.turns`)."""
    turn_fields = {"turns": [*intent["turns"], turn], "turnCount": intent["turnCount"] + 1}
    if len(intent["turns"]) == MAX_TURNS:
        turn_fields |= {"turns": [turn], "earlier": keep(all_turns(intent))}
    return changed(intent, **turn_fields)


def all_turns(intent: Intent) -> list[str]:
    """Returns the nodes that hold every turn of an attempt."""
    return [*([intent["earlier"]] if "earlier" in intent else []), *intent["turns"]]


def without_turns(intent: Intent) -> Intent:
    """Returns the intent of an attempt that is over and whose turns are recorded elsewhere."""
    kept_fields = {key: value for key, value in intent.items() if key != "earlier"}
    return changed(kept_fields, turns=[], turnCount=0)


def step_limit(record: ThreadRecord, start: ThreadStart) -> int:
    """Returns the number of steps at which a thread is suspended; `start`: its thread-start."""
    limit: int = record.get("rounds", start["maxRounds"])
    return limit


def spent(record: ThreadRecord, tokens: int) -> Spent:
    """Returns the spending of a thread after its pending attempt, which took `tokens`."""
    before = record["spent"]
    begun = record["intent"]
    wall = max(0, now_ms() - begun["since"] - begun.get("waitedMs", 0)) if begun else 0
    return {"tokens": before["tokens"] + tokens, "wallMs": before["wallMs"] + wall}


def add_attempts(record: ThreadRecord, failed: Sequence[str]) -> list[str]:
    return [*record["attempts"], *failed][-MAX_ATTEMPTS:]


def truncate_reason(reason: str) -> str:
    """Returns one printable line that fits a record; an agent's stderr may hold anything."""
    line = "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON_BYTES])
    while len(json.dumps(line, ensure_ascii=False).encode()) > MAX_REASON_BYTES:
        line = line[: -max(1, len(line) // 16)]
    return line
