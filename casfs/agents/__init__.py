"""The names that an agent imports; the contract is described in `casfs.agents.contract`.

Each is imported when it is first used: the command line reads profiles and notes of agents, and
needs neither the contract nor the scanner behind its secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'casfs.agents' has no attribute {name!r}")
        from importlib import import_module

        home = "prompt" if name in ("EarlierStep", "Prompt") else "contract"
        value = globals()[name] = getattr(import_module(f"casfs.agents.{home}"), name)
        return value
