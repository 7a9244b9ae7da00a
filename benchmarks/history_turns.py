"""The cost of a tree for each tool call (`turnTrees`): the time of a turn, on and off.

    python -m benchmarks.history turns [DIR] [--turns N] [--files N] [--made N] [--rounds N]
                                             [--no-model]

A thread of one `react` step over a tree of 10,000 files, in the daemon's overlay workspace (native
where that works), with a model that answers at once from a script: each turn writes a file of
1 KiB, or only reads one; or does so after a first call that wrote 2,000 files. Best of three. Then,
without `--no-model`, the small real model of the tests (a download), which does what it likes: once
each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from casfs.checkpoints import revisions
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces.desk import unmount_all
from engine.runtime.run_services import RunServices
from engine.runtime.thread_run import ThreadRun
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import real_model
from tests.support.desks import OVER_IMAGES
from tests.support.engine import ONE
from tests.support.helpers import put_tree
from tests.support.model_server import Say, served, text, tool_calls

FILES_PER_DIRECTORY = 100
LLM = Path(__file__).resolve().parents[1] / ".venv/llm"
DONE = '```json\n{"status": "done"}\n```'
READ = tool_calls(("read_file", '{"path": "d1/f1"}'))


def write(turn: int) -> Say:
    given = {"path": f"new{turn}", "text": f"{turn}\n" * 300}
    return tool_calls(("write_file", json.dumps(given)))


def run(root: Path, files: int, turns: int, script: list[Say], on: bool) -> float:
    """Returns the ms of a turn of the last `turns`: in a longer script the first one prepares."""
    with Store.init(root) as store:
        hash, _ = workflows.add(store, ONE)
        names = {f"f{n}": b"%d" % n for n in range(FILES_PER_DIRECTORY)}
        directories = files // FILES_PER_DIRECTORY + 1  # from d1 on, which READ reads
        tree = put_tree(store, {f"d{n}": names for n in range(1, directories)})
        with served(*script, text(DONE)) as model:
            config = {"baseUrl": model.url, "model": "m", "maxTurns": turns + 3, "allowShell": True}
            bound = {"a": Binding("react", {**config, **({"turnTrees": True} if on else {})})}
            made = lifecycle.create(
                store, ThreadRequest(hash, "Do it.", bound, RecordedState(tree))
            )
            places = OVER_IMAGES
            times: list[float] = []
            for place, say in enumerate(model.script):
                model.script[place] = partial(noted, say, times)
            services = RunServices(store, workspaces=places)
            ended = trio.run(ThreadRun(services, made, dict(os.environ)))
        assert ended.status == "ended", ended.record["reason"]
    begin = times[1] if len(script) > turns else times[0]
    return (times[-1] - begin) / turns * 1000


def played(root: Path, url: str, on: bool) -> tuple[int, float]:
    """Returns how many turns the real model took, and the seconds of each."""
    with Store.init(root) as store:
        hash, _ = workflows.add(store, ONE)
        tree = put_tree(store, {"add.py": b"def add(a, b):\n    return a - b\n"})
        config = {"baseUrl": url, "model": real_model.MODEL, "temperature": 0, "maxTokens": 200}
        config |= {"timeoutS": 300, "longestString": 40, "maxTurns": 12, "turnTrees": on}
        bound = {"a": Binding("react", config)}
        made = lifecycle.create(
            store, ThreadRequest(hash, "Mend add.py.", bound, RecordedState(tree))
        )
        places = OVER_IMAGES
        begin = time.monotonic()
        try:
            services = RunServices(store, workspaces=places)
            ended = trio.run(ThreadRun(services, made, dict(os.environ)))
        finally:
            unmount_all(root)
        seconds = time.monotonic() - begin
        detail = store.node(ended.hash).payload.get("detail") or ended.record["attempts"][-1]
        turns = len(revisions.turns(store, detail))
    return turns, seconds / max(turns, 1)


def noted(say: Say, times: list[float], handler: object) -> None:
    times.append(time.monotonic())
    say(handler)  # type: ignore[arg-type]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("dir", type=Path, nargs="?", help="Where to work.")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--files", type=int, default=10_000, help="Of the tree; in hundreds.")
    parser.add_argument("--made", type=int, default=2000, help="Files of the first call.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-model", action="store_true", help="Without the small real model.")
    options = parser.parse_args(argv)
    turns, made = options.turns, options.made
    print("| each turn | off | on |\n|---|---|---|")
    command = f"for n in $(seq {made}); do echo $n >made$n; done; sleep 3"  # they come to rest
    make = [tool_calls(("run_command", json.dumps({"command": command})))]
    cases = {
        "writes a file": [write(n) for n in range(turns)],
        "reads a file": [READ] * turns,
        f"writes a file, beside {made:,} new ones": make + [write(n) for n in range(turns)],
        f"reads a file, beside {made:,} new ones": make + [READ] * turns,
    }
    for name, script in cases.items():
        best = {True: 1e9, False: 1e9}
        for _ in range(options.rounds):
            for on in best:
                with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                    found = run(Path(folder) / "s", options.files, turns, list(script), on)
                    best[on] = min(best[on], found)
        print(f"| {name} | {best[False]:.1f} ms | {best[True]:.1f} ms |", flush=True)
    if options.no_model:
        return
    with real_model.served(real_model.install(LLM)) as url:
        for on in (False, True, False, True):  # the first one also warms the model's cache
            with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                count, seconds = played(Path(folder) / "s", url, on)
            print(f"{real_model.MODEL}, {'on' if on else 'off'}: {count} turns of {seconds:.2f} s")
