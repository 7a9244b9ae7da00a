"""Kill a reviewed agent, its hooks, the daemon at any instant: is a comment lost, or doubled?

    python -m tests.harness.review_kills --kills 200 --seed 1

An agent is a process that reports its calls by the hook program, and writes into its transcript
what a hook has printed, as claude does. It is killed with its hook, before or after it has written
that, and goes on with the same session; or the daemon is killed, and started again. Meanwhile a
person comments. At the end each message stands in the transcript once, and is known to be heard.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from casfs.attach import spool
from casfs.review import comments, message, subject
from casfs.review.comments import HEARD, Comment
from casfs.system import daemon_socket
from casfs.threads import sessions
from tests.support.engine import kill, spawn, until
from tests.support.new_store import init_store
from tests.support.sessions import PYTHON, ClaudeEvents

CALLS = 4  # of a prompt
LONGEST_S = 1.2  # until the next kill
SESSION = "one"
AGENT = "import sys; from tests.harness.review_kills import play; play(*sys.argv[1:])"


def play(root: str, project: str, transcript: str) -> None:
    """Reports events until it is killed; gives its model what the hooks print."""
    events = ClaudeEvents(Path(project), session=SESSION)

    def writes(line: dict[str, Any]) -> None:
        with open(transcript, "a") as file:
            file.write(json.dumps(line) + "\n")

    def tell(payload: dict[str, Any]) -> bool:
        """Returns whether the hook has kept the agent from ending its turn."""
        argv = [PYTHON, "-IS", f"{root}/hooks/report.py", "claude"]
        payload = {**payload, "transcript_path": transcript}
        ended = subprocess.run(argv, input=json.dumps(payload).encode(), capture_output=True)
        output = json.loads(ended.stdout) if ended.stdout else {}
        if "reason" in output:
            writes({"type": "user", "message": {"content": f"Feedback: {output['reason']}"}})
        elif output:
            context = [output["hookSpecificOutput"]["additionalContext"]]
            attachment = {"type": "hook_additional_context", "content": context}
            writes({"type": "attachment", "attachment": attachment})
        return "reason" in output

    tell(events.payload("SessionStart", source="resume"))
    number = os.getpid() * 1000
    while True:
        tell(events.prompt(f"prompt {number}"))
        goes_on = True
        while goes_on:
            for _ in range(CALLS):
                number += 1
                tell(events.call(f"c{number}", command="x"))
                tell(events.result(f"c{number}", response="done"))
            goes_on = tell(events.stop(f"answer {number}"))


class Run:
    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.store = init_store(folder / "store")
        self.root = self.store.root
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "a").write_text("1\n")
        self.transcript = folder / "projects/x/transcript.jsonl"
        self.transcript.parent.mkdir(parents=True)
        self.transcript.touch()
        self._chance = chance
        self.kills: Counter[str] = Counter()
        spool.prepare(self.root, os.environ)
        (self.root / "hooks/start-daemon").write_text("#!/bin/sh\n")

    def start_agent(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", AGENT, self.root, self.project, self.transcript]
        return subprocess.Popen(argv, start_new_session=True)

    def start_daemon(self) -> int:
        started = spawn("--store", self.root, "daemon")
        assert started.returncode == 0, started.stderr
        return int(started.stdout.split()[0])

    def comment(self) -> None:
        thread = next(sessions.newest_first(self.store))
        tree = subject.newest_tree(self.store, thread)
        draft = Comment(0, tree, b"a", 1, count=1, text="Why?")
        comments.change(self.store, thread.id, lambda old, _: comments.add(old, draft))
        message.send(self.store, thread)

    def play(self, kills: int) -> None:
        agent = self.start_agent()
        daemon = self.start_daemon()
        until(lambda: list(sessions.newest_first(self.store)), "the session")
        while self.kills.total() < kills:
            self.comment()
            time.sleep(self._chance.random() * LONGEST_S)
            victim = self._chance.choice(("agent", "daemon", "both"))
            if victim != "daemon":
                os.killpg(agent.pid, signal.SIGKILL)  # with the hook that it runs
                agent.wait()
                self.kills["agent"] += 1
                agent = self.start_agent()
            if victim != "agent":
                kill(daemon)
                self.kills["daemon"] += 1
                daemon = self.start_daemon()
        end = time.monotonic() + 60
        while self.unheard() and time.monotonic() < end:
            time.sleep(0.2)
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        daemon_socket.stop(self.root)

    def unheard(self) -> list[int]:
        thread = next(sessions.newest_first(self.store))
        return comments.load(self.store, thread.id).waiting

    def check(self) -> tuple[int, list[str]]:
        """Returns how many messages were sent, and what is wrong."""
        thread = next(sessions.newest_first(self.store))
        review = comments.load(self.store, thread.id)
        transcript = self.transcript.read_text()
        faults = []
        for number, sent in enumerate(review.rounds, 1):
            times = transcript.count(message.mark(thread.id, number))
            if times != 1:
                faults.append(f"round {number} was delivered {times} times")
            if sent.state != HEARD:
                faults.append(f"round {number} is {sent.state}")
        return len(review.rounds), faults


def run(kills: int, seed: int) -> tuple[dict[str, int], int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="review-kills-") as folder:
        played = Run(Path(folder), random.Random(seed))
        try:
            played.play(kills)
            return dict(played.kills), *played.check()
        finally:
            played.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kills, count, faults = run(options.kills, options.seed)
    print(json.dumps({"kills": kills, "messages": count, "faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
