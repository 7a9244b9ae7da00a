"""What ignored data of a project cost threads that work in it; prints Markdown.

    python -m benchmarks.workspaces_ignored [--dir DIR] [--mib N] [--files N] [--threads N]

A project with so many files that `.casfsignore` names, and threads that are started in it one after
the other, whose agents wait until all of them run: the time of each start, until its agent runs,
and what the store has grown by on the disk meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import in_seconds, megabytes, table
from benchmarks.engine_daemon import daemon
from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.workflow import registry as workflows
from tests.support.engine import loop, says

MIB = 1 << 20


def make_project(project: Path, mib: int, files: int) -> None:
    (project / "data").mkdir(parents=True)
    (project / ".casfsignore").write_text("/data/\n")
    (project / "main.py").write_text("print(1)\n")
    for number in range(files):
        (project / f"data/{number}").write_bytes(os.urandom(mib * MIB // files))
    # A file that has just changed is copied again: it could change within the same tick.
    time.sleep(3)


def allocated(store: Path) -> int:
    """Bytes on this file system, a file with several names once."""
    command = ["du", "-sx", "-B1", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def start(store: Path, project: Path, ready: Path, go: Path) -> float:
    """Returns the seconds until the agent of a new thread runs."""
    script = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.05; done; echo 1 >>log"
    agent = "a=command:" + json.dumps(says({}, script))
    begin = time.perf_counter()
    command = ["-m", "casfs", "--store", str(store), "thread", "start", "sample", "--input", "Go."]
    options = ["--agent", agent, "--workspace", str(project)]
    done = subprocess.run([sys.executable, *command, *options], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    while not ready.exists():
        time.sleep(0.005)
    return time.perf_counter() - begin


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dir", type=Path, help="Where to work.")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        work = Path(folder)
        make_project(work / "project", options.mib, options.files)
        with Store.init(work / "store") as store:
            workflows.add(store, loop(2))
        with daemon(work / "store", options.threads):
            last = allocated(work / "store")
            for number in range(options.threads):
                ready = work / f"ready-{number}"
                taken = start(work / "store", work / "project", ready=ready, go=work / "go")
                used = allocated(work / "store")
                rows.append([str(number + 1), in_seconds(taken), megabytes(used - last)])
                last = used
            (work / "go").touch()
            for path in (work / "store/workspaces").iterdir():
                daemon_socket.request(work / "store", "wait", id=path.name)
    title = f"Threads in a project with {options.mib} MiB of ignored files ({options.files:,})"
    table(title, ["thread", "start", "grown by"], rows)


if __name__ == "__main__":
    main(sys.argv[1:])
