"""Attached agents: what a hook takes, what a session takes on disk.

    python -m benchmarks.attach hooks [--dir DIR] [--files 100000] [--turns 40]
    python -m benchmarks.attach disk [--dir DIR] [--gigabytes 1] [--turns 1000]
    python -m benchmarks.attach rewind [--dir DIR] [--files 60000]

`hooks`: with that many files, and as many loose objects of git, the time from the start of a hook
to its end as an agent would wait for it, before a call and after one that has changed a file. Half
a second lies between two calls, as an agent asks its model for the next one.
`disk`: so many calls, each of which writes a file of 10 KB anew, in a directory of files of 50 KB
and a twentieth as many of 10 KB, which do not compress; what the store takes is compared with all
the bytes that were ever there. A file takes whole blocks of 4 KiB, here as in the directory.
`rewind`: a call deletes so many files of 9.5 KB, and `rewind`, `undo` and `redo` bring them back or
delete them again, beside a `cp -a` of them; then a call changes one line of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import machine, table, workplace
from casfs.attach import spool
from casfs.attach.agents import CLAUDE
from casfs.attach.attachments import command
from casfs.system import daemon_socket

FILES_IN_DIRECTORY = 200
FILE_BYTES = 50_000
WRITTEN_BYTES = 10_000  # of the files that are written anew
WRITTEN_SHARE = 20  # one of so many
SEED = 1
MODEL_S = 0.5
REWOUND_BYTES = 9500


class Agent:
    """One that reports a session in a project by the hook program, as claude does."""

    def __init__(self, home: Path, project: Path) -> None:
        self.root = home / ".local/share/casfs"
        self.project = project
        self.env = {**os.environ, "HOME": str(home)}
        self.env.pop("XDG_DATA_HOME", None)
        self.calls = 0
        self._argv = ["/bin/sh", "-c", command(self.root / spool.HOOKS / spool.PROGRAM, CLAUDE)]

    def casfs(self, *arguments: str) -> None:
        argv = [sys.executable, "-m", "casfs", *arguments]
        subprocess.run(argv, cwd=self.project, env=self.env, check=True, capture_output=True)

    def report(self, event: str, **fields: Any) -> float:
        """Runs the hook; returns how many milliseconds it took."""
        payload = {"hook_event_name": event, "session_id": "one", "cwd": str(self.project)}
        data = json.dumps({**payload, **fields}).encode()
        began = time.perf_counter()
        subprocess.run(self._argv, input=data, env=self.env, check=True)
        return (time.perf_counter() - began) * 1000

    def call(self, act: Callable[[], object]) -> tuple[float, float]:
        """Reports a call that does something; returns the times before and after it."""
        self.calls += 1
        fields = {"tool_name": "Bash", "tool_input": {"command": "x"}}
        fields["tool_use_id"] = f"c{self.calls}"
        before = self.report("PreToolUse", **fields)
        act()
        return before, self.report("PostToolUse", tool_response="ok", **fields)

    def wait(self) -> None:
        while spool.names(self.root):
            time.sleep(0.2)


@contextmanager
def attached(folder: Path, project: Path) -> Iterator[Agent]:
    home = folder / "home"
    home.mkdir()
    agent = Agent(home, project)
    agent.casfs("attach", "claude", "--no-service")
    try:
        agent.report("SessionStart", source="startup")
        agent.report("UserPromptSubmit", prompt="go")
        agent.wait()  # for the first look
        yield agent
    finally:
        daemon_socket.stop(agent.root)


def make_files(project: Path, count: int, size: int, chance: random.Random) -> list[Path]:
    files = []
    for number in range(count):
        file = project / f"d{number // FILES_IN_DIRECTORY}/f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(size))
        files.append(file)
    return files


def hooks(folder: Path, count: int, turns: int) -> None:
    chance = random.Random(SEED)
    project = folder / "project"
    files = make_files(project, count, 20, chance)
    for arguments in (("init", "-q"), ("-c", "gc.auto=0", "add", ".")):
        subprocess.run(["git", *arguments], cwd=project, check=True)
    with attached(folder, project) as agent:
        times = []
        for _ in range(turns):
            file = chance.choice(files)
            time.sleep(MODEL_S)
            times.append(agent.call(partial(file.write_bytes, chance.randbytes(20))))
    rows = []
    for name, column in (("before a call", 0), ("after it", 1)):
        ordered = sorted(row[column] for row in times)
        rows.append([name, f"{statistics.median(ordered):.0f}", f"{ordered[-1]:.0f}"])
    title = f"{turns} calls, {count:,} files. {machine(folder)}"
    table(title, ["hook", "p50, ms", "longest, ms"], rows)


def disk(folder: Path, gigabytes: float, turns: int) -> None:
    chance = random.Random(SEED)
    project = folder / "project"
    count = round(gigabytes * 1e9 / FILE_BYTES)
    make_files(project, count, FILE_BYTES, chance)
    files = make_files(project / "src", count // WRITTEN_SHARE, WRITTEN_BYTES, chance)
    distinct = count * FILE_BYTES + len(files) * WRITTEN_BYTES
    with attached(folder, project) as agent:
        for _ in range(turns):
            file = chance.choice(files)
            agent.call(partial(file.write_bytes, chance.randbytes(WRITTEN_BYTES)))
            distinct += WRITTEN_BYTES
        agent.report("Stop", last_assistant_message="done")
        agent.wait()
        root = agent.root
    reserve = (root / "reserve").stat().st_blocks * 512 if (root / "reserve").exists() else 0
    taken = sum(path.lstat().st_blocks * 512 for path in root.rglob("*")) - reserve
    row = [f"{turns:,}", f"{distinct / 1e9:.3f}", f"{taken / 1e9:.3f}", f"{taken / distinct:.3f}"]
    table(machine(folder), ["calls", "distinct, GB", "on disk, GB", "ratio"], [row])


def rewind(folder: Path, count: int) -> None:
    chance = random.Random(SEED)
    project = folder / "project"
    files = make_files(project / "src", count, REWOUND_BYTES, chance)
    line = project / "line.py"
    line.write_text("one\ntwo\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    subprocess.run(["git", "-c", "gc.auto=0", "add", "."], cwd=project, check=True)
    rows: list[list[str]] = []

    def timed(name: str, *argv: str) -> None:
        os.sync()
        began = time.perf_counter()
        subprocess.run(argv, cwd=project, env=agent.env, check=True, capture_output=True)
        seconds = time.perf_counter() - began
        rows.append([name, f"{seconds:.2f}", f"{seconds / copying:.2f}"])

    with attached(folder, project) as agent:
        casfs = sys.executable, "-m", "casfs"
        copying = 1.0
        timed("cp -a", "cp", "-a", str(project / "src"), str(folder / "copy"))
        copying = float(rows.pop()[1])
        rows.append(["cp -a", f"{copying:.2f}", "1.00"])
        agent.call(partial(shutil.rmtree, project / "src"))
        agent.wait()
        timed("rewind: they come back", *casfs, "rewind", "--last")
        timed("undo: they go", *casfs, "undo")
        timed("redo: they come back", *casfs, "redo")
        agent.call(partial(line.write_text, "one\n2\n"))
        agent.wait()
        timed("rewind of one line", *casfs, "rewind", "--last")
        timed("undo of one line", *casfs, "undo")
    assert all(file.exists() for file in files)
    title = f"{count:,} files, {count * REWOUND_BYTES / 1e6:,.0f} MB. {machine(folder)}"
    table(title, ["", "s", "x cp -a"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("hooks", "disk", "rewind"))
    parser.add_argument("--files", type=int)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--dir", type=Path, help="where to work")
    options = parser.parse_args()
    with workplace(options.dir) as folder:
        if options.what == "hooks":
            hooks(folder, options.files or 100_000, options.turns or 40)
        elif options.what == "rewind":
            rewind(folder, options.files or 60_000)
        else:
            disk(folder, options.gigabytes, options.turns or 1000)


if __name__ == "__main__":
    main()
