"""What the tests of single agents share: a context as the engine would give it."""

from __future__ import annotations

import os
import secrets
from typing import Any

from casfs.agents import AgentContext
from casfs.agents.prompt import Prompt
from casfs.store.store import Store
from tests.support.engine import STATUS

PROMPT = Prompt("You are it.", "Grüße.", (), "Say it.", STATUS)
RUN = secrets.token_hex(16)  # by which processes are ended: of this process of the suite alone
DONE = '```json\n{"status": "done"}\n```'


def context(store: Store, package: str = "react", **more: Any) -> AgentContext:
    """The context of an agent of that package."""
    agent = {"package": package, "version": "==1", "config": {}}
    settings: dict[str, Any] = {
        "thread": "01K00000000000000000000000",
        "role": "tester",
        "step": 7,
        "prompt": PROMPT,
        "workspace": None,
        "run": RUN,
        "env": {"PATH": os.environ["PATH"]},
        "agent": store.put_node("agent", agent).hash,
        **more,
    }
    return AgentContext(store=store, **settings)
