"""Valid and invalid payloads of every node type, and the refs of the valid ones.

``EXAMPLES[type]["valid"]`` fit the schema. ``invalid`` are pairs of a payload and the JSON path at
which it fails; a missing or unknown member fails at the object that lacks or has it. ``refs`` are
the refs of the first valid payload, sorted, each once; the node's own ``type`` is not among them.
"""

from __future__ import annotations

from typing import Any, TypedDict

from tests.support.schema_payloads import (
    ACTION,
    ACTION_RESULT,
    AGENT,
    BYTES_FILE,
    CHECKPOINT,
    COMMAND_DETAIL,
    COMMENT,
    CONTENT,
    CURSOR_DETAIL,
    CURSOR_TURN,
    EDIT,
    EMPTY_DIRECTORY,
    FILE,
    FIRST_STEP,
    HERMES_DETAIL,
    HERMES_TURN,
    LINK,
    OF_ACP,
    PLANNED,
    PLANNER_META,
    PRESERVED,
    ROLE,
    ROUND,
    RULE,
    SESSION,
    STEP,
    STEP_ACTION,
    SUBDIR,
    THREAD_END,
    THREAD_START,
    THREAD_STEP,
    TIMES,
    TOOL_CALL,
    TURN,
    WORKFLOW,
    directory,
    h,
    refs,
    sized,
    without,
)


class Examples(TypedDict):
    valid: list[Any]
    invalid: list[tuple[Any, str]]
    refs: list[str]


EXAMPLES: dict[str, Examples] = {
    "schema": {
        "valid": [
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$id": "note",
                "type": "object",
                "properties": {"about": {"type": "string", "format": "cas_ref"}},
            },
            {"$id": "a"},
            {"$id": "a" * 64, "title": "Longest name"},
        ],
        "invalid": [
            ({"type": "object"}, "$"),
            ([], "$"),
            ({"$id": 7}, '$["$id"]'),
            ({"$id": ""}, '$["$id"]'),
            ({"$id": "Note"}, '$["$id"]'),
            ({"$id": "9lives"}, '$["$id"]'),
            ({"$id": "a" * 65}, '$["$id"]'),
            ({"$id": "https://example.org/note"}, '$["$id"]'),
        ],
        "refs": [],
    },
    "agent": {
        "valid": [AGENT, {**AGENT, "version": "", "config": {}}],
        "invalid": [
            (without(AGENT, "version"), "$"),
            ({**AGENT, "model": "m"}, "$"),
            ({**AGENT, "package": ""}, "$.package"),
            ({**AGENT, "version": None}, "$.version"),
            ({**AGENT, "config": []}, "$.config"),
        ],
        "refs": [],
    },
    "role-schema": {
        "valid": [PLANNER_META, {"name": "anything"}],
        "invalid": [
            (without(PLANNER_META, "name"), "$"),
            (True, "$"),
            ({"name": 1}, "$.name"),
            ({"name": ""}, "$.name"),
        ],
        "refs": [],
    },
    "role": {
        "valid": [
            ROLE,
            {**ROLE, "cacheable": True},
            {**ROLE, "description": "", "systemPrompt": "", "extractPrompt": ""},
        ],
        "invalid": [
            (without(ROLE, "extractPrompt"), "$"),
            ({**ROLE, "agent": h("coder agent")}, "$"),
            ({**ROLE, "name": ""}, "$.name"),
            ({**ROLE, "schema": PLANNER_META}, "$.schema"),
            ({**ROLE, "schema": None}, "$.schema"),
            ({**ROLE, "schema": h("planner-meta")[:63]}, "$.schema"),
            ({**ROLE, "cacheable": False}, "$.cacheable"),
            ({**ROLE, "cacheable": None}, "$.cacheable"),
            ({**ROLE, "cacheable": 1}, "$.cacheable"),
        ],
        "refs": refs("planner-meta"),
    },
    "workflow": {
        "valid": [WORKFLOW, {**WORKFLOW, "roles": {}, "moderator": []}],
        "invalid": [
            (without(WORKFLOW, "description"), "$"),
            ({**WORKFLOW, "roles": [h("planner")]}, "$.roles"),
            ({**WORKFLOW, "roles": {"planner": "planner"}}, "$.roles.planner"),
            ({**WORKFLOW, "roles": {"planner": None}}, "$.roles.planner"),
            ({**WORKFLOW, "moderator": {}}, "$.moderator"),
            ({**WORKFLOW, "moderator": [without(RULE, "when")]}, "$.moderator[0]"),
            ({**WORKFLOW, "moderator": [RULE, {**RULE, "priority": 1}]}, "$.moderator[1]"),
            ({**WORKFLOW, "moderator": [{**RULE, "to": None}]}, "$.moderator[0].to"),
            ({**WORKFLOW, "moderator": [{**RULE, "when": True}]}, "$.moderator[0].when"),
        ],
        "refs": refs("planner", "coder"),
    },
    "thread-start": {
        "valid": [
            THREAD_START,
            {**THREAD_START, "depth": 0, "parentState": None, "workspace": None, "budget": None},
            {**THREAD_START, "maxRounds": 1, "budget": {"tokens": None, "wallMs": 60_000}},
        ],
        "invalid": [
            (without(THREAD_START, "parentState"), "$"),
            ({**THREAD_START, "threadId": "01J0"}, "$"),
            ({**THREAD_START, "input": "Fix the failing test"}, "$.input"),
            ({**THREAD_START, "workflow": h("develop").upper()}, "$.workflow"),
            ({**THREAD_START, "agents": [h("coder agent")]}, "$.agents"),
            ({**THREAD_START, "agents": {"coder": AGENT}}, "$.agents.coder"),
            ({**THREAD_START, "depth": -1}, "$.depth"),
            ({**THREAD_START, "maxRounds": 0}, "$.maxRounds"),
            ({**THREAD_START, "maxRounds": None}, "$.maxRounds"),
            ({**THREAD_START, "budget": {"tokens": 1}}, "$.budget"),
            ({**THREAD_START, "budget": {"tokens": 0.5, "wallMs": 1}}, "$.budget.tokens"),
        ],
        "refs": refs("develop", "task", "parent step", "planner agent", "coder agent", "root 0"),
    },
    "thread-step": {
        "valid": [
            THREAD_STEP,
            FIRST_STEP,
            {**THREAD_STEP, "ancestors": [h(f"step {n}") for n in range(10)]},
            {**THREAD_STEP, "cached": {"action": h("action"), "savedMs": 900}},
        ],
        "invalid": [
            (without(THREAD_STEP, "detail"), "$"),
            (without(FIRST_STEP, "compact"), "$"),
            ({**THREAD_STEP, "childThread": h("child end 1")}, "$"),
            ({**THREAD_STEP, "index": 0}, "$.index"),
            ({**THREAD_STEP, "meta": "completed"}, "$.meta"),
            ({**THREAD_STEP, "content": "done"}, "$.content"),
            ({**THREAD_STEP, "detail": None}, "$.detail"),
            ({**THREAD_STEP, "previous": ""}, "$.previous"),
            ({**THREAD_STEP, "ancestors": None}, "$.ancestors"),
            ({**THREAD_STEP, "ancestors": [h("step 1"), None]}, "$.ancestors[1]"),
            ({**THREAD_STEP, "ancestors": [h("step 1"), h("step 1")]}, "$.ancestors"),
            ({**THREAD_STEP, "ancestors": [h(f"step {n}") for n in range(11)]}, "$.ancestors"),
            ({**THREAD_STEP, "childThreads": ["01J0"]}, "$.childThreads[0]"),
            ({**THREAD_STEP, "attempts": h("failed try")}, "$.attempts"),
            ({**THREAD_STEP, "extraction": "guess"}, "$.extraction"),
            ({**THREAD_STEP, "extraction": None}, "$.extraction"),
            ({**THREAD_STEP, "changes": "--- a\n+++ b\n"}, "$.changes"),
            ({**THREAD_STEP, "completedAt": "2026-11-21T00:00:00Z"}, "$.completedAt"),
            ({**THREAD_STEP, "cached": None}, "$.cached"),
            ({**THREAD_STEP, "cached": {"action": h("action")}}, "$.cached"),
            ({**THREAD_STEP, "cached": {"action": "a", "savedMs": 0}}, "$.cached.action"),
        ],
        "refs": refs(
            "output",
            "detail",
            "coder agent",
            "start",
            "step 2",
            "step 1",
            "summary",
            "child end 1",
            "child end 2",
            "failed try",
            "root 3",
            "diff",
        ),
    },
    "thread-agents": {
        "valid": [{"agents": THREAD_START["agents"]}, {"agents": {}}],
        "invalid": [
            ({}, "$"),
            ({"agents": [h("coder agent")]}, "$.agents"),
            ({"agents": {"coder": "command"}}, "$.agents.coder"),
        ],
        "refs": refs("planner agent", "coder agent"),
    },
    "thread-end": {
        "valid": [THREAD_END, {**THREAD_END, "returnCode": 130, "lastStep": None}],
        "invalid": [
            (without(THREAD_END, "lastStep"), "$"),
            ({**THREAD_END, "returnCode": -1}, "$.returnCode"),
            ({**THREAD_END, "summary": None}, "$.summary"),
            ({**THREAD_END, "start": None}, "$.start"),
            ({**THREAD_END, "lastStep": 9}, "$.lastStep"),
        ],
        "refs": refs("start", "step 9"),
    },
    "content": {
        "valid": [CONTENT, {"text": "", "artifacts": []}],
        "invalid": [
            ({"text": "alone"}, "$"),
            ("text", "$"),
            ({**CONTENT, "text": None}, "$.text"),
            ({**CONTENT, "artifacts": None}, "$.artifacts"),
            ({**CONTENT, "artifacts": [h("phase 1"), "phase 2"]}, "$.artifacts[1]"),
        ],
        "refs": refs("phase 1", "phase 2"),
    },
    "react-session": {
        "valid": [SESSION, {**SESSION, "turns": [], "totalTokens": 0}, {**SESSION, **OF_ACP}],
        "invalid": [
            ({**SESSION, **OF_ACP, "stderr": "oh"}, "$.stderr"),
            (without(SESSION, "role"), "$"),
            ({**SESSION, "turns": [TURN]}, "$.turns[0]"),
            ({**SESSION, "totalTokens": None}, "$.totalTokens"),
            ({**SESSION, "durationMs": 0.5}, "$.durationMs"),
        ],
        "refs": refs("react agent", "turn 1", "turn 2"),
    },
    "react-turn": {
        "valid": [
            TURN,
            {**TURN, "toolCalls": []},
            {**TURN, "thoughts": h("thoughts"), "plan": [PLANNED], "updates": h("updates")},
        ],
        "invalid": [
            ({**TURN, "plan": [{**PLANNED, "_meta": {}}]}, "$.plan[0]"),
            ({**TURN, "thoughts": "Hm."}, "$.thoughts"),
            (without(TURN, "toolCalls"), "$"),
            ({**TURN, "output": "answer"}, "$.output"),
            ({**TURN, "toolCalls": [h("call 1"), 2]}, "$.toolCalls[1]"),
            ({**TURN, "tokens": 4_050}, "$.tokens"),
            ({**TURN, "tokens": {"input": 1}}, "$.tokens"),
            ({**TURN, "tokens": {"input": 1, "output": -1}}, "$.tokens.output"),
        ],
        "refs": refs("prompt", "answer", "call 1", "call 2"),
    },
    "react-tool-call": {
        "valid": [TOOL_CALL, EDIT],
        "invalid": [
            ({**EDIT, "diffs": [{"path": "a", "old": None}]}, "$.diffs[0]"),
            ({**EDIT, "locations": [{"path": "a", "line": -1}]}, "$.locations[0].line"),
            ({**EDIT, "more": {}}, "$.more"),
            (without(TOOL_CALL, "result"), "$"),
            ({**TOOL_CALL, "name": ""}, "$.name"),
            ({**TOOL_CALL, "arguments": {"path": "a"}}, "$.arguments"),
            ({**TOOL_CALL, "result": None}, "$.result"),
        ],
        "refs": refs("arguments", "result"),
    },
    "directory": {
        "valid": [
            {"files": [FILE, BYTES_FILE], "directories": [SUBDIR], "symlinks": [LINK]},
            EMPTY_DIRECTORY,
            directory(
                directories=[{"name_base64": "/v8=", "digest": sized("src", 300)}],
                symlinks=[{"name_base64": "/w==", "target_base64": "gID/"}],
            ),
            {
                **directory(files=[{**FILE, **PRESERVED}], symlinks=[{**LINK, **PRESERVED}]),
                **PRESERVED,
            },
            directory(files=[{**FILE, "name": n} for n in ("\n", "...", "..a", ".a", "\\", "a.")]),
        ],
        "invalid": [
            (without(EMPTY_DIRECTORY, "symlinks"), "$"),
            ({**EMPTY_DIRECTORY, "name": "src"}, "$"),
            (directory(files=[without(FILE, "name")]), "$.files[0]"),
            (directory(files=[{**FILE, "name_base64": "/w=="}]), "$.files[0]"),
            (directory(files=[FILE, without(FILE, "is_executable")]), "$.files[1]"),
            (directory(files=[{**FILE, "digest": h("run.sh")}]), "$.files[0].digest"),
            (directory(files=[{**FILE, "digest": sized("a", -1)}]), "$.files[0].digest.size_bytes"),
            (
                directory(files=[{**FILE, "digest": {"hash": "a", "size_bytes": 1}}]),
                "$.files[0].digest.hash",
            ),
            (directory(files=[{**FILE, "unix_mode": "0644"}]), "$.files[0].unix_mode"),
            (directory(files=[{**FILE, "mtime": {"seconds": 1}}]), "$.files[0].mtime"),
            (directory(files=[{**BYTES_FILE, "name_base64": ""}]), "$.files[0].name_base64"),
            (directory(files=[{**BYTES_FILE, "name_base64": "_w=="}]), "$.files[0].name_base64"),
            (directory(files=[{**BYTES_FILE, "name_base64": "/w"}]), "$.files[0].name_base64"),
            *(
                (directory(directories=[{**SUBDIR, "name": name}]), "$.directories[0].name")
                for name in ("", ".", "..", "/", "a/b", "a\0b", None)
            ),
            (directory(directories=[{**SUBDIR, "is_executable": True}]), "$.directories[0]"),
            (directory(symlinks=[without(LINK, "target")]), "$.symlinks[0]"),
            (directory(symlinks=[without(LINK, "name")]), "$.symlinks[0]"),
            (directory(symlinks=[{**LINK, "target_base64": "/w=="}]), "$.symlinks[0]"),
            (directory(symlinks=[{**LINK, "target": ""}]), "$.symlinks[0].target"),
            (directory(symlinks=[{**LINK, "target": "a\0"}]), "$.symlinks[0].target"),
        ],
        "refs": refs("run.sh", "bytes", "src"),
    },
    "times": {
        "valid": [TIMES, {**TIMES, "own": None, "newest": None, "files": [], "directories": []}],
        "invalid": [
            *((without(TIMES, field), "$") for field in TIMES),
            *(
                ({**TIMES, "own": time}, "$.own")
                for time in (1, "", "+1", "01", "-0", "1.5", "1e9", "1" * 22)
            ),
            ({**TIMES, "files": [0]}, "$.files[0]"),
            ({**TIMES, "symlinks": None}, "$.symlinks"),
            ({**TIMES, "directories": ["x"]}, "$.directories[0]"),
        ],
        "refs": refs("times"),
    },
    "checkpoint": {
        "valid": [
            CHECKPOINT,
            {**CHECKPOINT, "previous": None, "changed_files": []},
            {**CHECKPOINT, "changed_files": [f"f{n}" for n in range(1_000)]},
        ],
        "invalid": [
            (without(CHECKPOINT, "previous"), "$"),
            ({**CHECKPOINT, "root": None}, "$.root"),
            ({**CHECKPOINT, "previous": "demo@1"}, "$.previous"),
            ({**CHECKPOINT, "name": ".demo"}, "$.name"),
            ({**CHECKPOINT, "name": "a/b"}, "$.name"),
            ({**CHECKPOINT, "createdAt": 1.5}, "$.createdAt"),
            ({**CHECKPOINT, "message": None}, "$.message"),
            ({**CHECKPOINT, "stats": {"files": 12}}, "$.stats"),
            ({**CHECKPOINT, "changed_files": [{"path": "a"}]}, "$.changed_files[0]"),
            ({**CHECKPOINT, "changed_files": ["f"] * 1_001}, "$.changed_files"),
        ],
        "refs": refs("root 3"),
    },
    "human-detail": {
        "valid": [{"question": h("question"), "answer": h("answer")}],
        "invalid": [
            ({"question": h("question")}, "$"),
            ({"question": "?", "answer": "!"}, "$.question"),
        ],
        "refs": refs("question", "answer"),
    },
    "review": {
        "valid": [
            {"thread": "T", "comments": [COMMENT], "rounds": [ROUND], "viewed": {"a%20b": ""}},
            {"thread": "T", "comments": [], "rounds": [], "viewed": {}},
        ],
        "invalid": [
            ({"thread": "T", "comments": [], "rounds": []}, "$"),
            (
                {
                    "thread": "T",
                    "comments": [{**COMMENT, "line": -1}],
                    "rounds": [],
                    "viewed": {},
                },
                "$.comments[0].line",
            ),
            (
                {
                    "thread": "T",
                    "comments": [],
                    "rounds": [{**ROUND, "state": "lost"}],
                    "viewed": {},
                },
                "$.rounds[0].state",
            ),
        ],
        "refs": refs("root 3", "message"),
    },
    "call-detail": {
        "valid": [
            {"ends": [h("end 1"), h("end 2")], "totalTokens": 12, "durationMs": 3},
            {"ends": [], "totalTokens": 0, "durationMs": 0},
        ],
        "invalid": [
            ({"ends": [], "totalTokens": -1, "durationMs": 0}, "$.totalTokens"),
            ({"ends": [], "totalTokens": 0}, "$"),
        ],
        "refs": refs("end 1", "end 2"),
    },
    "command-detail": {
        "valid": [COMMAND_DETAIL, {**COMMAND_DETAIL, "argv": ["true"], "exitCode": 0}],
        "invalid": [
            (without(COMMAND_DETAIL, "stderr"), "$"),
            ({**COMMAND_DETAIL, "argv": "make test"}, "$.argv"),
            ({**COMMAND_DETAIL, "argv": []}, "$.argv"),
            ({**COMMAND_DETAIL, "argv": ["sleep", 1]}, "$.argv[1]"),
            ({**COMMAND_DETAIL, "exitCode": None}, "$.exitCode"),
            ({**COMMAND_DETAIL, "stdout": "ok\n"}, "$.stdout"),
        ],
        "refs": refs("stdout", "stderr"),
    },
    "action": {
        "valid": [
            ACTION,
            {**ACTION, "env": {}, "inputRoot": None, "outputs": [], "timeoutMs": None},
            STEP_ACTION,
        ],
        "invalid": [
            (without(ACTION, "timeoutMs"), "$"),
            ({**ACTION, "stdin": ""}, "$"),
            ({**ACTION, "argv": []}, "$.argv"),
            ({**ACTION, "argv": "make"}, "$.argv"),
            ({**ACTION, "cwd": ""}, "$.cwd"),
            ({**ACTION, "cwd": None}, "$.cwd"),
            ({**ACTION, "env": [["CC", "gcc"]]}, "$.env"),
            ({**ACTION, "env": {"CC": None}}, "$.env.CC"),
            ({**ACTION, "inputRoot": h("root 0")[:12]}, "$.inputRoot"),
            ({**ACTION, "outputs": ["a", "a"]}, "$.outputs"),
            ({**ACTION, "outputs": [""]}, "$.outputs[0]"),
            ({**ACTION, "platform": {"os": "linux", "arch": "x86_64"}}, "$.platform"),
            ({**ACTION, "timeoutMs": 0}, "$.timeoutMs"),
            ({**ACTION, "timeoutMs": 0.5}, "$.timeoutMs"),
            (without(ACTION, "step"), "$"),
            ({**STEP_ACTION, "argv": ["make"]}, "$.argv"),
            ({**STEP_ACTION, "step": without(STEP, "parts")}, "$.step"),
            ({**STEP_ACTION, "step": {**STEP, "prompt": "Plan."}}, "$.step.prompt"),
            ({**STEP_ACTION, "step": {**STEP, "parts": "short"}}, "$.step.parts"),
            ({**STEP_ACTION, "step": {**STEP, "index": 0}}, "$.step.index"),
        ],
        "refs": refs("root 0"),
    },
    "action-result": {
        "valid": [
            {**ACTION_RESULT, "detail": h("detail"), "artifacts": [h("phase 1")]},
            ACTION_RESULT,
            {**ACTION_RESULT, "exitCode": -9},
        ],
        "invalid": [
            (without(ACTION_RESULT, "stderr"), "$"),
            ({**ACTION_RESULT, "action": ACTION}, "$.action"),
            ({**ACTION_RESULT, "exitCode": None}, "$.exitCode"),
            ({**ACTION_RESULT, "stdout": "ok\n"}, "$.stdout"),
            ({**ACTION_RESULT, "outputs": None}, "$.outputs"),
            ({**ACTION_RESULT, "outputs": [h("root 3")]}, "$.outputs"),
            ({**ACTION_RESULT, "durationMs": -1}, "$.durationMs"),
            (without(ACTION_RESULT, "detail"), "$"),
            ({**ACTION_RESULT, "artifacts": ["phase 1"]}, "$.artifacts[0]"),
        ],
        "refs": refs("action", "stdout", "stderr", "root 3", "detail", "phase 1"),
    },
    "hermes-turn": {
        "valid": [HERMES_TURN, {**HERMES_TURN, "toolCalls": [], "reasoning": None, "content": ""}],
        "invalid": [
            (without(HERMES_TURN, "reasoning"), "$"),
            ({**HERMES_TURN, "role": ""}, "$.role"),
            ({**HERMES_TURN, "content": None}, "$.content"),
            ({**HERMES_TURN, "toolCalls": [{"name": "ls"}]}, "$.toolCalls[0]"),
        ],
        "refs": [],
    },
    "hermes-detail": {
        "valid": [HERMES_DETAIL, {**HERMES_DETAIL, "model": None, "turnCount": 0, "turns": []}],
        "invalid": [
            (without(HERMES_DETAIL, "turnCount"), "$"),
            ({**HERMES_DETAIL, "sessionId": ""}, "$.sessionId"),
            ({**HERMES_DETAIL, "turns": ["x"]}, "$.turns[0]"),
        ],
        "refs": refs("turn 1", "turn 2"),
    },
    "cursor-detail": {
        "valid": [CURSOR_DETAIL, {**CURSOR_DETAIL, "model": None, "turns": []}],
        "invalid": [
            (without(CURSOR_DETAIL, "stream"), "$"),
            ({**CURSOR_DETAIL, "turns": [{"kind": "text"}]}, "$.turns[0]"),
        ],
        "refs": refs("turn 1", "turn 2", "stream"),
    },
    "cursor-turn": {
        "valid": [CURSOR_TURN, {**CURSOR_TURN, "kind": "text", "name": None, "result": None}],
        "invalid": [
            (without(CURSOR_TURN, "text"), "$"),
            ({**CURSOR_TURN, "kind": "thought"}, "$.kind"),
            ({**CURSOR_TURN, "result": "x"}, "$.result"),
        ],
        "refs": refs("tool arguments", "tool result"),
    },
}
