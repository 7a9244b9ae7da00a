"""The demonstration: a workflow on a sample project, looked at through a mount.

Every command is shown, then run by a shell, as a person would; the results are checked, so that the
demonstration fails where one is not what it should be.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import click

from casfs.cli.common import store_root
from casfs.cli.output import echo
from casfs.errors import Failed

ROLES = ("planner", "coder", "reviewer", "tester", "committer")
DIFFERENT = 1  # exit code of diff


@click.command()
@click.argument("directory", default="./mnt")
def demo(directory: str) -> None:
    """Run a workflow on a sample project and look at what it left, mounted at DIRECTORY.

    Makes the store and starts the daemon and the mount where they are missing; they go on running.

    \b
    casfs demo
    """
    if missing := [name for name in ("git", "diff") if shutil.which(name) is None]:
        raise Failed(f"{missing[0]}: not found; install it to run the demo")
    with tempfile.TemporaryDirectory(prefix="casfs-demo.") as scratch:
        _Demo(store_root(), Path(directory), Path(scratch)).run()


class _Demo:
    def __init__(self, root: Path, point: Path, scratch: Path) -> None:
        self._root = root
        self._point = point
        self._scratch = scratch
        self._source = Path(str(resources.files("engine"))) / "demo"
        own = {"CASFS_STORE": str(root), "GIT_PAGER": "cat", "NO_COLOR": "1"}
        own |= dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self._env = {**os.environ, **own, "PATH": path}

    def run(self) -> None:
        self._start()
        project = self._scratch / "tally"
        self._shell(shlex.join([sys.executable, f"{self._source}/prepare.py", str(project)]))
        thread = self._run_workflow(project)
        echo(f"\n$ cd {shlex.quote(str(self._point))}/threads/{thread}")
        self._show_thread(self._point.absolute() / "threads" / thread, project)
        self._show_restore(project)
        end = f"casfs umount {self._point}; casfs daemon stop"
        echo(f"\nStill mounted at {self._point}; to end it: {end}")
        echo("To write a workflow of your own: casfs workflow new mine")

    def _start(self) -> None:
        from casfs.system import daemon_socket, store_mounts

        self._shell("casfs init")
        if not daemon_socket.runs(self._root):
            self._shell("casfs daemon")
        if self._point.absolute() not in store_mounts.mounted(self._root):
            self._point.mkdir(parents=True, exist_ok=True)
            self._shell(f"casfs mount {shlex.quote(str(self._point))}")

    def _run_workflow(self, project: Path) -> str:
        agents = {
            role: f"command:{shlex.join([sys.executable, f'{self._source}/agents/{role}.py'])}"
            for role in ROLES
        }
        file = self._scratch / "agents.toml"
        lines = [f"{role} = {json.dumps(agent)}" for role, agent in agents.items()]
        file.write_text("\n".join(["[agents]", *lines, ""]), encoding="utf-8")
        tally = shlex.quote(str(project))
        task = shlex.quote(f"@{self._source}/task.md")
        self._show(f"casfs checkpoint create demo {tally} -m before")
        self._show(f"cat {shlex.quote(str(file))}")
        return self._show(
            f"casfs thread start develop --input {task} --workspace {tally}"
            f" --agents {shlex.quote(str(file))} --wait"
        ).split()[0]

    def _show_thread(self, thread: Path, project: Path) -> None:
        """Looks at the thread with ordinary tools."""
        self._show("ls steps", thread)
        self._show("cat status", thread)
        end = json.loads((thread / "end.json").read_text("utf-8"))
        if end["returnCode"] != 0:
            raise Failed(f"the thread ended with return code {end['returnCode']}, not 0")
        tests = self._show("grep -rnE --include=output.md '^(FAILED|OK)' steps", thread)
        if "FAILED" not in tests:
            raise Failed("no round of tests failed; one should")
        steps = sorted(step.name for step in (thread / "steps").iterdir())
        first = f"steps/{steps[0]}"
        last = f"steps/{steps[-1]}"
        self._show(f"diff -r {first}/workspace {last}/workspace", thread, DIFFERENT)
        copy = shlex.quote(str(self._scratch / "committed"))
        self._show(f"cp -a {last}/workspace/. {copy}", thread)
        self._show(f"cd {copy} && {shlex.quote(sys.executable)} -B -m unittest discover -s tests")
        meta = json.loads((thread / last / "meta.json").read_text("utf-8"))
        self._show_commit(thread.name, shlex.quote(str(project)), meta)

    def _show_commit(self, thread: str, tally: str, meta: Mapping[str, str]) -> None:
        """Brings the agent's commit into the project's repository, on a branch of its own."""
        self._show(f"casfs thread apply {thread} {tally} --commits")
        branch = shlex.quote(f"casfs/{thread}/{meta['branch']}")
        self._show(f"git -C {tally} log -1 --stat --format='%h %an: %s' {branch}")
        commit = self._shell(f"git -C {tally} rev-parse {branch}").strip()
        self._same("commit in meta.json and in the project", meta["commitSha"], commit)
        self._same("status of the project", self._shell(f"git -C {tally} status --porcelain"), "")

    def _show_restore(self, project: Path) -> None:
        """Copies the checkpoint out of the mount; compares it with the project and a restore."""
        tree = f"{shlex.quote(str(self._point))}/trees/demo/latest"
        tally, copied, restored = (
            shlex.quote(str(path))
            for path in (project, self._scratch / "copied", self._scratch / "restored")
        )
        diff = "diff -r --no-dereference"
        self._show(f"cp -a {tree}/. {copied}")
        self._show(f"{diff} -x .git {tally} {copied} && echo identical")
        self._show(f"casfs checkpoint restore demo {restored}")
        self._show(f"{diff} {copied} {restored} && echo identical")
        trees = [
            self._shell(f"casfs tree build {directory}").split()[0] for directory in (tally, copied)
        ]
        self._same("tree of project and copy", *trees)

    def _same(self, what: str, text: str, other: str) -> None:
        if text != other:
            raise Failed(f"{what} differ: {text!r} and {other!r}")

    def _show(self, line: str, cwd: Path | None = None, code: int = 0) -> str:
        """Prints a command line, runs it and prints its output."""
        echo(f"\n$ {line}")
        return self._shell(line, cwd, code, shown=True)

    def _shell(
        self, line: str, cwd: Path | None = None, code: int = 0, *, shown: bool = False
    ) -> str:
        """Runs a command line; returns its output. Raises Failed for another exit code."""
        done = subprocess.run(
            ["sh", "-c", line], env=self._env, cwd=cwd, capture_output=True, encoding="utf-8"
        )
        output = done.stdout + done.stderr
        if shown and output:
            echo(output.rstrip("\n"))
        if done.returncode != code:
            said = "" if shown else f": {output.strip()}"
            raise Failed(f"exit code {done.returncode} from: {line}{said}")
        return done.stdout
