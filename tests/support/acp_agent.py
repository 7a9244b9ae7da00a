"""A scripted agent that speaks ACP: `python acp_agent.py SCRIPT`, plain JSON lines on stdio.

SCRIPT is a JSON file:
{"load": bool, "name": TEXT, "version": n, "log": FILE, "prompts": [[action, …], …], …}.
Each prompt of a process plays the next list of actions; of a session that was loaded, of the lists
of `again` where there are some. An action is one object:

    say, think        a chunk of text
    tool              a tool call: {id, title, kind, input, output, diffs, locations, status, more}
    update            any `session/update`, as it stands
    raw               a line as it stands; {"bytes": n} for one of that length
    permission        asks; {tool, options}; the outcome is logged
    at_once           asks for several tools: [tool, …]
    request           any request: {method, params}; the answer is logged
    stderr, exit, kill, sleep, wait (for a file), hang, ignore (session/cancel)
    stop              the stop reason, usage: of the answer

Everything that it gets is a line of JSON in the log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


class Agent:
    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.session = ""
        self.loaded = self.cancelled = self.deaf = False
        self.prompts = self.ids = 0
        self.stop: dict[str, Any] = {}

    # -- lines ----------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        self.log({"sent": message})
        self.raw(json.dumps({"jsonrpc": "2.0", **message}))

    def raw(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def log(self, entry: Any) -> None:
        with open(self.script["log"], "a") as file:
            file.write(json.dumps(entry) + "\n")

    def receive(self) -> dict[str, Any]:
        while True:
            line = sys.stdin.readline()
            if not line:
                raise SystemExit(0)
            message = json.loads(line)
            self.log({"pid": os.getpid(), **message})
            if message.get("method") == "session/cancel":
                self.cancelled = not self.deaf
                if self.cancelled:
                    raise Cancelled
                continue
            return message

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.ids += 1
        self.send({"id": self.ids, "method": method, "params": params})
        while True:
            message = self.receive()
            if message.get("id") == self.ids and "method" not in message:
                return message

    def update(self, update: dict[str, Any]) -> None:
        params = {"sessionId": self.session, "update": update}
        self.send({"method": "session/update", "params": params})

    # -- the protocol ---------------------------------------------------------------------

    def serve(self) -> None:
        while True:
            try:
                message = self.receive()
            except Cancelled:
                continue
            method, params, id = (message.get(key) for key in ("method", "params", "id"))
            if id is None or method is None:
                continue
            try:
                self.send({"id": id, **self.answer(method, params)})
            except Cancelled:
                self.send({"id": id, "result": {"stopReason": "cancelled"}})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        script = self.script
        if method in script.get("errors", {}):
            error = script["errors"].pop(method)
            return {"error": error}
        if method == "initialize":
            capabilities = {"loadSession": script.get("load", False)}
            found = {"protocolVersion": script.get("version", 1), "agentCapabilities": capabilities}
            info = {"name": script.get("name", "scripted"), "version": "1.0"}
            return {"result": {**found, "agentInfo": info}}
        if method == "session/new":
            self.session = f"session-{os.getpid()}"
            return {"result": {"sessionId": self.session, **script.get("new", {})}}
        if method == "session/load":
            self.session, self.loaded = params["sessionId"], True
            self.play(script.get("replay", []))
            return {"result": {}}
        if method == "session/prompt":
            lists = script["prompts"]
            if self.loaded and "again" in script:
                lists = script["again"]
            self.prompts += 1
            self.stop = {"stopReason": "end_turn"}
            self.play(lists[min(self.prompts, len(lists)) - 1])
            return {"result": self.stop}
        return {"result": {}}

    def play(self, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            ((name, value),) = ((key, one) for key, one in action.items() if key != "usage")
            if name == "stop":
                usage = {"usage": action["usage"]} if "usage" in action else {}
                self.stop = {"stopReason": value, **usage}
            else:
                getattr(self, f"do_{name}")(value)

    # -- actions --------------------------------------------------------------------------

    def do_say(self, text: str) -> None:
        block = {"type": "text", "text": text}
        self.update({"sessionUpdate": "agent_message_chunk", "content": block})

    def do_think(self, text: str) -> None:
        block = {"type": "text", "text": text}
        self.update({"sessionUpdate": "agent_thought_chunk", "content": block})

    def do_update(self, update: dict[str, Any]) -> None:
        self.update(update)

    def do_tool(self, tool: dict[str, Any]) -> None:
        call = {"toolCallId": tool["id"]}
        start = {**call, "title": tool.get("title", tool["id"]), "status": "in_progress"}
        for name, member in (("kind", "kind"), ("input", "rawInput"), ("locations", "locations")):
            if name in tool:
                start[member] = tool[name]
        self.update({"sessionUpdate": "tool_call", **start, **tool.get("more", {})})
        if "write" in tool:
            with open(tool["write"], "a") as file:
                file.write(tool.get("output", "") + "\n")
        block = {"type": "content", "content": {"type": "text", "text": tool.get("output", "")}}
        content = [block, *({"type": "diff", **diff} for diff in tool.get("diffs", []))]
        status = tool.get("status", "completed")
        self.update(
            {"sessionUpdate": "tool_call_update", **call, "status": status, "content": content}
        )

    def do_raw(self, line: Any) -> None:
        self.raw("x" * line["bytes"] if isinstance(line, dict) else line)

    def do_permission(self, asked: dict[str, Any]) -> None:
        options = asked.get("options", OPTIONS)
        given = {"sessionId": self.session, "toolCall": asked["tool"], "options": options}
        answer = self.ask("session/request_permission", given)
        outcome = answer["result"]["outcome"]
        if outcome["outcome"] == "cancelled":
            self.receive()  # session/cancel
        self.play(asked.get(outcome["optionId"], []))

    def do_at_once(self, tools: list[dict[str, Any]]) -> None:
        """Asks permission for several tool calls, and waits for all answers."""
        wanted = set(range(self.ids + 1, self.ids + 1 + len(tools)))
        for tool in tools:
            self.ids += 1
            params = {"sessionId": self.session, "toolCall": tool, "options": OPTIONS}
            self.send({"id": self.ids, "method": "session/request_permission", "params": params})
        outcomes = []
        while wanted:
            message = self.receive()
            wanted.discard(message["id"])
            outcomes.append(message["result"]["outcome"]["outcome"])
        if "cancelled" in outcomes:
            self.receive()  # session/cancel

    def do_request(self, request: dict[str, Any]) -> None:
        params = {"sessionId": self.session, **request.get("params", {})}
        answer = self.ask(request["method"], params)
        found = answer.get("result") or {}
        if "terminalId" in found:
            for one in request.get("then", []):
                more = {**one, "params": {**one.get("params", {}), **found}}
                self.do_request(more)

    def do_here(self, path: str) -> None:
        """Reads a file by its absolute path."""
        self.do_request({"method": "fs/read_text_file", "params": {"path": os.path.abspath(path)}})

    def do_spawn(self, seconds: int) -> None:
        """Starts a process in a session of its own, without the environment."""
        argv = ["setsid", "env", "-i", "sleep", str(seconds)]
        child = subprocess.Popen(argv, stdin=-3, stdout=-3, stderr=-3)
        self.log({"child": child.pid})

    def do_stderr(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def do_exit(self, code: int) -> None:
        raise SystemExit(code)

    def do_kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_once(self, action: dict[str, Any]) -> None:
        """Plays an action unless its `file` is there, which it makes."""
        try:
            os.close(os.open(action["file"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.play(action["do"])

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_wait(self, path: str) -> None:
        """Until a file is there."""
        while not os.path.exists(path):
            time.sleep(0.02)

    def do_hang(self, how: str) -> None:
        """Until it is cancelled; where it ignores that, until it is killed."""
        self.deaf = how == "deaf"
        if self.deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            if self.deaf:
                time.sleep(60)
            self.receive()


class Cancelled(BaseException):
    """The client sent session/cancel."""


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        Agent(json.load(file)).serve()
