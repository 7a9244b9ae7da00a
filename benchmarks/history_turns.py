"""The cost of a tree for each tool call (`turnTrees`): the time of a turn, on and off.

    python -m benchmarks.history turns [DIR]

A thread of one `react` step over a tree of 10,000 files, in the daemon's overlay workspace (native
where that works), with a model that answers at once from a script: each turn writes a file of
1 KiB, or only reads one; or does so after a first call that wrote 2,000 files. Best of three. Then
the small real model of the tests, which does what it likes: once each.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from casfs import revisions
from casfs.store import Store
from engine.runtime.overlay_workspace import OverlayWorkspace, unmount_all
from engine.runtime.thread_run import ThreadRun
from engine.runtime.workspace import Workspaces
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import real_model
from tests.support.engine import ONE
from tests.support.helpers import put_tree
from tests.support.model_server import Say, served, text, tool_calls

TURNS, FILES, MADE, ROUNDS = 40, 10_000, 2_000, 3
LLM = Path(__file__).resolve().parents[1] / ".venv/llm"
DONE = '```json\n{"status": "done"}\n```'
MAKE = f"for n in $(seq {MADE}); do echo $n >made$n; done; sleep 3"  # they come to rest
READ = tool_calls(("read_file", '{"path": "d1/f1"}'))


def write(turn: int) -> Say:
    given = {"path": f"new{turn}", "text": f"{turn}\n" * 300}
    return tool_calls(("write_file", json.dumps(given)))


def run(root: Path, script: list[Say], on: bool, first: bool) -> float:
    """Returns the ms of a turn; `first`: of those after the first."""
    with Store.init(root) as store:
        hash, _ = workflows.add(store, ONE)
        names = {f"f{n}": b"%d" % n for n in range(100)}
        tree = put_tree(store, {f"d{n}": names for n in range(FILES // 100)})
        with served(*script, text(DONE)) as model:
            config = {"baseUrl": model.url, "model": "m", "maxTurns": TURNS + 3, "allowShell": True}
            bound = {"a": Binding("react", {**config, **({"turnTrees": True} if on else {})})}
            made = lifecycle.create(store, ThreadRequest(hash, "Do it.", bound, tree))
            places = Workspaces(
                lambda store, folder: OverlayWorkspace(store, folder, lambda _: folder)
            )
            times: list[float] = []
            for place, say in enumerate(model.script):
                model.script[place] = partial(noted, say, times)
            ended = trio.run(partial(ThreadRun(store, made, dict(os.environ), workspaces=places)))
        assert ended.status == "ended", ended.record["reason"]
    begin = times[1] if first else times[0]
    return (times[-1] - begin) / TURNS * 1000


def played(root: Path, url: str, on: bool) -> tuple[int, float]:
    """Returns how many turns the real model took, and the seconds of each."""
    with Store.init(root) as store:
        hash, _ = workflows.add(store, ONE)
        tree = put_tree(store, {"add.py": b"def add(a, b):\n    return a - b\n"})
        config = {"baseUrl": url, "model": real_model.MODEL, "temperature": 0, "maxTokens": 200}
        config |= {"timeoutS": 300, "longestString": 40, "maxTurns": 12, "turnTrees": on}
        bound = {"a": Binding("react", config)}
        made = lifecycle.create(store, ThreadRequest(hash, "Mend add.py.", bound, tree))
        places = Workspaces(lambda store, folder: OverlayWorkspace(store, folder, lambda _: folder))
        begin = time.monotonic()
        try:
            ended = trio.run(partial(ThreadRun(store, made, dict(os.environ), workspaces=places)))
        finally:
            unmount_all(root)
        seconds = time.monotonic() - begin
        detail = store.node(ended.hash).payload.get("detail") or ended.record["attempts"][-1]
        turns = len(revisions.turns(store, detail))
    return turns, seconds / max(turns, 1)


def noted(say: Say, times: list[float], handler: object) -> None:
    times.append(time.monotonic())
    say(handler)  # type: ignore[arg-type]


def main(parent: str | None = None) -> None:
    print("| each turn | off | on |\n|---|---|---|")
    make = [tool_calls(("run_command", json.dumps({"command": MAKE})))]
    cases = {
        "writes a file": [write(n) for n in range(TURNS)],
        "reads a file": [READ] * TURNS,
        f"writes a file, beside {MADE:,} new ones": make + [write(n) for n in range(TURNS)],
        f"reads a file, beside {MADE:,} new ones": make + [READ] * TURNS,
    }
    for name, script in cases.items():
        best = {True: 1e9, False: 1e9}
        for _ in range(ROUNDS):
            for on in best:
                with tempfile.TemporaryDirectory(dir=parent) as folder:
                    found = run(Path(folder) / "s", list(script), on, len(script) > TURNS)
                    best[on] = min(best[on], found)
        print(f"| {name} | {best[False]:.1f} ms | {best[True]:.1f} ms |", flush=True)
    with real_model.served(real_model.install(LLM)) as url:
        for on in (False, True, False, True):  # the first one also warms the model's cache
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                turns, seconds = played(Path(folder) / "s", url, on)
            print(f"{real_model.MODEL}, {'on' if on else 'off'}: {turns} turns of {seconds:.2f} s")
