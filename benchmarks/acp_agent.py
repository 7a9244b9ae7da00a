"""An agent for `benchmarks/agents.py` that speaks ACP, and measures what its client takes.

    python -S acp_agent.py RESULTS turns COUNT CALLS | hang CALLS | correct

`turns`: COUNT turns of CALLS tool calls each. A request follows each turn, whose answer comes when
the client has handled all before it: then the turn is durable. RESULTS gets a line of JSON for
each, in ms: of the turn, and of a request alone. `hang`: one turn, and then nothing more.
`correct`: the first two answers have no report, so the client asks again; a line for each time
from an answer to the next prompt.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

TEXT = "x" * 2000


class Agent:
    def __init__(self, results: str, how: str, *numbers: str) -> None:
        self.results, self.how, self.numbers = results, how, [int(one) for one in numbers]
        self.ids, self.answered = 0, 0.0

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def note(self, **values: Any) -> None:
        with open(self.results, "a") as file:
            file.write(json.dumps(values) + "\n")

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            method, id = message.get("method"), message.get("id")
            if method == "initialize":
                self.send(id=id, result={"protocolVersion": 1})
            elif method == "session/new":
                self.send(id=id, result={"sessionId": "s"})
            elif method == "session/prompt":
                if self.answered:
                    self.note(round=(time.perf_counter() - self.answered) * 1000)
                self.prompt()
                self.answered = time.perf_counter()
                self.send(id=id, result={"stopReason": "end_turn"})

    def prompt(self) -> None:
        if self.how == "correct":
            self.ids += 1
            self.update("agent_message_chunk", content=text("Hm." if self.ids < 3 else REPORT))
            return
        for number in range(self.numbers[0] if self.how == "turns" else 1):
            begin = time.perf_counter()
            self.turn(number, self.numbers[-1])
            self.request()
            middle = time.perf_counter()
            self.request()
            end = time.perf_counter()
            self.note(turn=(middle - begin) * 1000, request=(end - middle) * 1000)
        if self.how == "hang":
            time.sleep(3600)
        self.update("agent_message_chunk", content=text(REPORT))

    def turn(self, number: int, calls: int) -> None:
        self.update("agent_message_chunk", content=text("I look."))
        ids = [f"{number}-{call}" for call in range(calls)]
        for id in ids:
            call = {"toolCallId": id, "title": f"read {id}", "rawInput": {"path": id}}
            self.update("tool_call", **call, status="in_progress")
        for id in ids:
            found = [{"type": "content", "content": text(f"{id} {TEXT}")}]
            self.update("tool_call_update", toolCallId=id, status="completed", content=found)

    def update(self, kind: str, **members: Any) -> None:
        update = {"sessionUpdate": kind, **members}
        self.send(method="session/update", params={"sessionId": "s", "update": update})

    def request(self) -> None:
        self.ids += 1
        self.send(id=self.ids, method="casfs/none", params={})
        while json.loads(sys.stdin.readline()).get("id") != self.ids:
            pass


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


REPORT = "```json\n{}\n```"

if __name__ == "__main__":
    Agent(*sys.argv[1:]).serve()
