"""The names that an agent imports; the contract is described in `casfs.agents.contract`."""

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
