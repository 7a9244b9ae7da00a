"""An agent for `crash_agents.py` that speaks ACP: `python turns_agent.py LOGS PAUSE LOAD`.

It leaves the traces that `crash_engine.py` looks for. Each turn is a tool call whose title no other
has, followed by a request. casfs handles what an agent sends in order, so the answer acknowledges
the turn: it is durable by then, and the agent notes its title.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.acp_agent import Agent

TURNS = 6


class TurnsAgent(Agent):
    def __init__(self, logs: Path, pause: float, load: bool) -> None:
        super().__init__({"load": load, "log": os.devnull, "prompts": [[{"turns": TURNS}]]})
        self.traces = logs / os.environ["CASFS_THREAD"]
        self.pause = pause

    def note(self, *words: str) -> None:
        """One write, so a kill leaves no half line."""
        with open(self.traces, "a") as file:
            file.write(f"{' '.join(words)}\n")

    def do_turns(self, count: int) -> None:
        place = (os.environ["CASFS_STEP"], os.environ["CASFS_RUN"])
        self.note("begin", *place)
        with open(f"seen-{self.traces.name}", "a") as file:
            file.write(f"{place[0]}\n")
        for number in range(count):
            title = f"{place[1]}-{number}"
            self.do_tool({"id": title, "title": title, "output": "x" * random.choice((9, 9000))})
            self.ask("casfs/none", {})
            with open(self.traces.with_suffix(".turns"), "a") as file:
                file.write(f"{title}\n")
            time.sleep(self.pause)
        self.note("end", *place)
        self.do_say("```json\n{}\n```")


def main(logs: str, pause: str, load: str) -> Any:
    TurnsAgent(Path(logs), float(pause), load == "load").serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
