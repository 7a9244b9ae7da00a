"""What the author of an agent imports; the entry point's contract is in `casfs.agents.contract`."""

from casfs.agents.contract import (
    CHILD,
    HUMAN,
    AgentContext,
    AgentFailed,
    AgentFn,
    AgentResult,
    Call,
    Called,
    Waiting,
)
from casfs.agents.prompt import EarlierStep, Prompt

__all__ = [
    "CHILD",
    "HUMAN",
    "AgentContext",
    "AgentFailed",
    "AgentFn",
    "AgentResult",
    "Call",
    "Called",
    "EarlierStep",
    "Prompt",
    "Waiting",
]
