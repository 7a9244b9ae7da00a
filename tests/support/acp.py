"""What the tests of agents that speak ACP share: a scripted agent, threads that it plays in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import acp.schema

from casfs.store.store import Store
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import acp_agent
from tests.support.engine import ONE
from tests.support.helpers import put_tree

USAGE = {"totalTokens": 30, "inputTokens": 20, "outputTokens": 10}
DONE = {"say": 'Done.\n```json\n{"status": "done"}\n```'}


class Script:
    """A scripted agent's file and log."""

    def __init__(self, folder: Path, *prompts: list[dict[str, Any]], **more: Any) -> None:
        self.file, self.log = folder / "script.json", folder / "agent.log"
        self.file.write_text(json.dumps({"log": str(self.log), "prompts": prompts, **more}))

    def config(self, **more: Any) -> dict[str, Any]:
        return {"argv": [sys.executable, acp_agent.__file__, str(self.file)], **more}

    def lines(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        found = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in found if line.endswith("\n")]

    def sent(self) -> list[dict[str, Any]]:
        return [one["sent"] for one in self.lines() if "sent" in one]

    def got(self, method: str | None = None) -> list[dict[str, Any]]:
        found = [one for one in self.lines() if "sent" not in one]
        return [one for one in found if method is None or one.get("method") == method]

    def answers(self) -> list[dict[str, Any]]:
        """What the agent's requests were answered with."""
        return [one for one in self.got() if "method" not in one]

    def prompts(self) -> list[str]:
        return [one["params"]["prompt"][0]["text"] for one in self.got("session/prompt")]


def start(
    store: Store, config: dict[str, Any], definition: dict[str, Any] = ONE, **more: Any
) -> Thread:
    hash, _ = workflows.add(store, definition)
    bound = {role: Binding("acp", config) for role in definition["roles"]}
    tree = put_tree(store, {"a.txt": b"one\n"})
    return lifecycle.create(
        store, ThreadRequest(hash, "Do it.", bound, RecordedState(tree), **more)
    )


def session(store: Store, hash: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The payload of a react-session and those of its turns."""
    payload = store.node(hash, "react-session").payload
    return payload, [store.node(turn, "react-turn").payload for turn in payload["turns"]]


def text(store: Store, hash: str) -> str:
    return str(store.node(hash, "content").payload["text"])


def honest(script: Script) -> None:
    """What the scripted agent sent is of the protocol, by its generated models."""
    asked = {"initialize": "InitializeResponse", "session/new": "NewSessionResponse",
             "session/load": "LoadSessionResponse", "session/prompt": "PromptResponse"}  # fmt: skip
    methods = {one["id"]: one["method"] for one in script.got() if "id" in one and "method" in one}
    requests = {"session/request_permission": "RequestPermissionRequest",
                "session/update": "SessionNotification",
                "fs/read_text_file": "ReadTextFileRequest",
                "fs/write_text_file": "WriteTextFileRequest",
                "terminal/create": "CreateTerminalRequest",
                "terminal/output": "TerminalOutputRequest"}  # fmt: skip
    for sent in script.sent():
        if sent.get("params", {}).keys() == {"sessionId"}:  # a request that is to be refused
            continue
        if "method" in sent:
            model, value = requests.get(sent["method"]), sent["params"]
        else:
            model, value = asked.get(methods[sent["id"]]), sent.get("result")
        if model is not None and value is not None:
            getattr(acp.schema, model).model_validate(value)
