"""A sample payload of every node type, for `tests.support.schema_examples`.

Digests are made from names, so nothing here is in any store: these are shapes, not a graph.
"""

from __future__ import annotations

import hashlib
from typing import Any


def h(name: str) -> str:
    """A digest-shaped string that is always the same for the same name."""
    return hashlib.sha256(name.encode()).hexdigest()


def refs(*names: str) -> list[str]:
    return sorted(h(name) for name in names)


def without(payload: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in payload.items() if k != key}


def sized(name: str, size: int) -> dict[str, Any]:
    return {"hash": h(name), "size_bytes": size}


AGENT = {"package": "command", "version": ">=1.0,<2", "config": {"argv": ["sh", "-c", "make"]}}

PLANNER_META = {
    "name": "planner-meta",
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "status": {"const": "planned"},
                "phases": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "hash": {"type": "string", "format": "cas_ref", "cas_type": "content"},
                            "title": {"type": "string"},
                        },
                        "required": ["hash", "title"],
                    },
                },
            },
            "required": ["status", "phases"],
        },
        {
            "type": "object",
            "properties": {"status": {"const": "aborted"}, "reason": {"type": "string"}},
            "required": ["status", "reason"],
        },
    ],
}

ROLE = {
    "name": "planner",
    "description": "Split the task into phases",
    "systemPrompt": "You plan changes to a code base.",
    "extractPrompt": "Give the status and the phases.",
    "schema": h("planner-meta"),
}

RULE = {"from": "__start__", "to": "planner", "when": None}
WORKFLOW = {
    "name": "develop",
    "description": "Plan, implement, review, test, commit",
    "roles": {"planner": h("planner"), "coder": h("coder")},
    "moderator": [RULE, {"from": "planner", "to": "coder", "when": "$steps[-1].meta.ok = true"}],
}

THREAD_START = {
    "workflow": h("develop"),
    "input": h("task"),
    "depth": 1,
    "parentState": h("parent step"),
    "agents": {"planner": h("planner agent"), "coder": h("coder agent")},
    "workspace": h("root 0"),
    "maxRounds": 100,
    "budget": {"tokens": 200_000, "wallMs": None},
}

THREAD_STEP = {
    "index": 3,
    "role": "coder",
    "meta": {"completedPhase": h("phase 1"), "status": "completed"},
    "content": h("output"),
    "detail": h("detail"),
    "agent": h("coder agent"),
    "start": h("start"),
    "previous": h("step 2"),
    "ancestors": [h("step 1")],
    "compact": h("summary"),
    "childThreads": [h("child end 1"), h("child end 2")],
    "attempts": [h("failed try")],
    "extraction": "block",
    "workspace": h("root 3"),
    "changes": h("diff"),
    "startedAt": 1_790_000_000_000,
    "completedAt": 1_790_000_060_000,
}
FIRST_STEP = {
    **THREAD_STEP,
    "index": 1,
    "meta": {},
    "previous": None,
    "ancestors": [],
    "compact": None,
    "childThreads": [],
    "attempts": [],
    "extraction": "correction",
    "workspace": None,
    "changes": None,
}

THREAD_END = {
    "returnCode": 0,
    "summary": "The failing test passes",
    "start": h("start"),
    "lastStep": h("step 9"),
    "completedAt": 1_790_000_900_000,
}

CONTENT = {"text": "Two phases.", "artifacts": [h("phase 1"), h("phase 2")]}

SESSION = {
    "agent": h("react agent"),
    "role": "coder",
    "turns": [h("turn 1"), h("turn 2")],
    "totalTokens": 12_580,
    "durationMs": 45_000,
}

TURN = {
    "input": h("prompt"),
    "output": h("answer"),
    "toolCalls": [h("call 1"), h("call 2")],
    "tokens": {"input": 3_200, "output": 850},
    "latencyMs": 2_300,
}

TOOL_CALL = {
    "name": "read_file",
    "arguments": h("arguments"),
    "result": h("result"),
    "durationMs": 120,
}

EDIT = {
    **TOOL_CALL,
    "kind": "edit",
    "status": "completed",
    "locations": [{"path": "a.txt", "line": 3}, {"path": "/etc/x", "line": None}],
    "diffs": [{"path": "a.txt", "old": None, "new": h("after")}],
    "more": h("more"),
}
PLANNED = {"content": "Look.", "priority": "high", "status": "pending"}
OF_ACP = {
    "sessionId": "s-1",
    "agentName": "agent 1.0",
    "stopReason": "end_turn",
    "malformedLines": 1,
    "malformed": h("line"),
    "stderr": h("errors"),
}

FILE = {"name": "run.sh", "digest": sized("run.sh", 120), "is_executable": True}
BYTES_FILE = {"name_base64": "/w==", "digest": sized("bytes", 0), "is_executable": False}
SUBDIR = {"name": "src", "digest": sized("src", 300)}
LINK = {"name": "latest", "target": "../src/main.py"}
EMPTY_DIRECTORY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}
TIMES: dict[str, Any] = {
    "own": "1790000000000000001",
    "newest": "-1",
    "files": [None, "0"],
    "directories": [h("times"), None],
    "symlinks": ["4294967296123456789"],
}
PRESERVED = {"mtime": {"seconds": -1, "nanos": 999_999_999}, "unix_mode": 0o4750}


def directory(**lists: list[Any]) -> dict[str, Any]:
    return {**EMPTY_DIRECTORY, **lists}


COMMENT = {
    "number": 1,
    "tree": h("root 3"),
    "path": "a%20b",
    "isOld": False,
    "line": 2,
    "count": 1,
    "text": "Why?",
    "suggestion": None,
    "round": 1,
    "handledAt": None,
    "answer": "",
}
ROUND = {
    "message": h("message"),
    "state": "sent",
    "sentAt": 1,
    "way": "hook",
    "offeredAt": 2,
    "offset": 3,
    "pid": 4,
    "heardAt": 0,
}
CHECKPOINT = {
    "root": h("root 3"),
    "previous": h("older checkpoint"),
    "name": "demo",
    "createdAt": 1_790_000_000_000,
    "message": "",
    "stats": {"files": 12, "bytes": 3_400, "added": 1, "modified": 1, "deleted": 0},
    "changed_files": ["README.md", "src/main.py"],
}

COMMAND_DETAIL = {
    "argv": ["sh", "-c", "make test"],
    "exitCode": -9,
    "stdout": h("stdout"),
    "stderr": h("stderr"),
    "durationMs": 900,
}

ACTION = {
    "argv": ["cc", "-c", "-o", "out/main.o", "main.c"],
    "cwd": "src",
    "env": {"CC": "", "PATH": "/usr/bin:/bin"},
    "inputRoot": h("root 0"),
    "outputs": ["src/out/main.o"],
    "platform": {"os": "linux", "arch": "x86_64", "libc": "glibc 2.36"},
    "timeoutMs": 60_000,
    "step": None,
}
STEP = {
    "role": h("planner"),
    "name": "planner",
    "index": 1,
    "depth": 0,
    "agent": h("planner agent"),
    "prompt": h("prompt"),
    "parts": h("parts of the prompt"),
}
STEP_ACTION = {**ACTION, "argv": [], "outputs": [], "timeoutMs": None, "step": STEP}

ACTION_RESULT = {
    "action": h("action"),
    "exitCode": 0,
    "stdout": h("stdout"),
    "stderr": h("stderr"),
    "outputs": h("root 3"),
    "detail": None,
    "artifacts": [],
    "durationMs": 900,
    "createdAt": 1_790_000_000_000,
}

HERMES_TURN = {
    "index": 1,
    "role": "assistant",
    "content": "Let me see.",
    "toolCalls": [{"name": "terminal", "args": '{"command": "ls"}'}],
    "reasoning": "I should look first.",
}
HERMES_DETAIL = {
    "sessionId": "20260518_223724_45ab80",
    "model": "qwen-plus",
    "durationMs": 12345,
    "turnCount": 2,
    "turns": [h("turn 1"), h("turn 2")],
}
CURSOR_TURN = {
    "index": 1,
    "kind": "tool",
    "name": "read",
    "text": h("tool arguments"),
    "result": h("tool result"),
}
CURSOR_DETAIL = {
    "sessionId": "c6b62c6f-7ead-4fd6-9922-e952131177ff",
    "model": "auto",
    "durationMs": 5234,
    "turns": [h("turn 1"), h("turn 2")],
    "stream": h("stream"),
}
