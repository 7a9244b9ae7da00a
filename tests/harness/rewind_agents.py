"""Real agents that are attached, in a project with git, npm, make and a nested repository, beside
copies of it at each call; then a rewind to each call.

    python -m tests.harness.rewind_agents --agents claude-code,codex-cli --turns 200 --seed 1

Each turn is one call of a tool: an edit, `sed -i`, a heredoc, a formatter, a commit, `git reset
--hard`, `rm -rf` of untracked files, `npm install`, a commit in the nested repository, `make`. The
server that plays the model makes a copy (`cp -a`) before it answers, so between two calls. After
- `rewind --exact` to a point, the project equals the copy, byte by byte, with modes and links, and
  its repositories as git sees them,
- `make` and pytest in it say what they say in the copy without what was built.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.attach import spool
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice
from casfs.sessions import session_steps
from casfs.sessions.session_steps import Point, StepRecord
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import sessions
from tests.agents_real.test_attached import PROGRAMS
from tests.support import agent_model, real_agents
from tests.support.agent_model import Model, script
from tests.support.agent_wire import Answer, Asked
from tests.support.attached_agent import contents
from tests.support.repositories import seen_by_git

TURNS_OF_PROMPT = 20
BUILT_EVERY = 10  # at how many points make and pytest are run
GIT = "git -c user.name=agent -c user.email=agent@example.com"
MAKEFILE = """\
SOURCES := $(wildcard src/*.in)
all: $(SOURCES:src/%.in=out/%.txt) out/total
out/%.txt: src/%.in
\t@mkdir -p out
\t@tr a-z A-Z < $< > $@
out/total: $(SOURCES)
\t@mkdir -p out
\t@cat $(SOURCES) | wc -l > $@
"""
TEST = "from app import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
APP = "def add(a, b):\n    return a + b\n"
IGNORED = "node_modules/\nout/\n__pycache__/\n.pytest_cache/\n"


@dataclass
class Play:
    """One agent in its project. `copies`: of the project, by prompt and by the id of the call that
    comes next."""

    name: str
    folder: Path
    model: Model
    env: dict[str, str]
    chance: random.Random
    copies: dict[int, dict[str, Path]] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def run(self, *argv: str | Path, **options: Any) -> str:
        ended = subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, **options
        )
        if ended.returncode != 0:
            raise AssertionError(f"{argv[0]} {argv[1]}: {ended.stdout} {ended.stderr}")
        return ended.stdout

    def casfs(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "casfs", *arguments)

    def copy(self, asked: Asked, answer: Answer) -> None:
        """Copies the project: the model is asked between two calls."""
        texts = [said for kind, said in asked.turns if kind == "user" and "PROMPT" in said]
        if not texts or answer.call is None:
            return
        found = re.search(r"PROMPT (\d+)", texts[-1])
        assert found is not None
        target = self.folder / "copies" / answer.call[0]
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", self.project, target], check=True)
        self.copies.setdefault(int(found[1]), {})[answer.call[0]] = target

    def copies_by_point(self, steps: list[StepRecord]) -> dict[str, Path]:
        """The copy before each recorded call. A call that the agent refuses before its hook runs
        is not recorded. gemini reports no ids of calls, so its calls are matched by their order."""
        points = {}
        for step in steps:
            copies = self.copies[step.index]
            ids = [call.id for call in step.calls]
            if not copies.keys() & set(ids) and len(copies) == len(ids):
                ids = list(copies)
            for number, id in enumerate(ids, 1):
                if id in copies:
                    points[f"{step.index}.{number}"] = copies[id]
        return points

    def actions(self, prompt: int) -> list[tuple[Any, ...]]:
        return [
            self.chance.choice(ACTIONS)(self.chance, f"{prompt}n{number}")
            for number in range(TURNS_OF_PROMPT)
        ]


def _write(chance: random.Random, name: str) -> tuple[Any, ...]:
    file = chance.choice(["src/a.in", "src/b.in", f"src/n{name}.in", "scratch/kept"])
    return ("write", file, f"{name}\n" * chance.randrange(1, 40))


def _sed(chance: random.Random, name: str) -> tuple[Any, ...]:
    return ("run", f"sed -i 's/^/{name} /' $(ls src/*.in | head -{chance.randrange(1, 4)})")


def _app(chance: random.Random, name: str) -> tuple[Any, ...]:
    # As long as before, within the same second: what was compiled must not be taken for it.
    sign = chance.choice("+-*")
    return ("run", f"sed -i 's/return a . b/return a {sign} b/' app.py")


def command(text: str) -> Callable[[random.Random, str], tuple[Any, ...]]:
    return lambda chance, name: ("run", text.replace("NAME", name))


ACTIONS = [
    _write,
    _write,
    _sed,
    _app,
    command("cat > notes-NAME.md <<'END'\n# NAME\n\na line\nEND"),
    command("ruff format -q app.py test_app.py; printf '\\n\\n\\nx=[1,2,\\n3]\\n' >> app.py"),
    command(f"git add -A && {GIT} commit -qm NAME || true"),
    command("git reset -q --hard HEAD"),
    command("git checkout -q -B branch-NAME; git branch -q | wc -l"),
    command("mkdir -p scratch && echo NAME >> scratch/f && ln -sf f scratch/link"),
    command("rm -rf scratch notes-*.md"),
    command("npm install --offline --no-audit --no-fund --silent; ls node_modules"),
    command("rm -rf node_modules"),
    command(f"(cd nested && echo NAME >> f && git add -A && {GIT} commit -qm NAME)"),
    command("(cd nested && git reset -q --hard HEAD~1) || true"),
    command("make -s"),
    command("python3 -m pytest -q test_app.py; true"),
    command("chmod +x app.py; mv src/b.in src/b2.in; mv src/b2.in src/b.in; echo NAME > .env"),
]


def make_project(play: Play) -> None:
    project = play.project
    for name, text in {
        "Makefile": MAKEFILE,
        "app.py": APP,
        "test_app.py": TEST,
        ".gitignore": IGNORED,
        ".env": "TOKEN=hunter2hunter2\n",
        "src/a.in": "a\n",
        "src/b.in": "b\n",
        "vendor/pkg/package.json": json.dumps({"name": "pkg", "version": "1.0.0"}),
        "vendor/pkg/index.js": "module.exports = 1\n",
        "package.json": json.dumps({"name": "p", "dependencies": {"pkg": "file:vendor/pkg"}}),
        "nested/f": "nested\n",
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    first = f"git init -q && git add -A && {GIT} commit -qm 0 && {GIT} commit -qm 1 --allow-empty"
    play.run("sh", "-c", f"cd nested && {first}")
    play.run("sh", "-c", f"git init -q && git add Makefile src app.py && {GIT} commit -qm 0")


def act(play: Play, turns: int) -> None:
    """Gives the agent prompts until its model has asked for so many calls."""
    program = PROGRAMS[play.name]
    session = None
    for prompt in range(1, turns // TURNS_OF_PROMPT + 1):
        text = f"PROMPT {prompt}\n{script(*play.actions(prompt), ('say', 'Done.'))}"
        argv = program.argv(session)
        if program.by_stdin:
            play.run(*argv, input=text, timeout=600)
        else:
            play.run(*argv, text, stdin=subprocess.DEVNULL, timeout=600)
        session = session or json.loads(play.casfs("sessions", "list", "--json"))[0]["id"]


def check(play: Play, steps: list[StepRecord], store: Store) -> dict[str, Any]:
    """Rewinds to each call, in random order; returns what was wrong."""
    late = {f"{call.step}.{call.number}" for step in steps for call in step.calls if call.is_late}
    copies = play.copies_by_point(steps)
    points = list(copies)
    play.chance.shuffle(points)
    unequal: list[str] = []
    untrue: list[str] = []
    built = 0
    for number, point in enumerate(points):
        plan = rewind_files.plan(
            store, play.project, steps, Choice(Point.parse(point), is_exact=True)
        )
        rewind_files.do(store, play.project, plan)
        if point in late:
            continue
        expected = look(copies[point])
        seen = look(play.project)
        if seen != expected:
            names = sorted(
                name
                for name in seen.keys() | expected.keys()
                if seen.get(name) != expected.get(name)
            )
            unequal.append(f"{point}: {names[:5]}")
        if number % BUILT_EVERY == 0:
            built += 1
            if (said := build(play.project)) != (truth := build(_clean_copy(play, copies[point]))):
                untrue.append(f"{point}: {said} instead of {truth}")
    return {
        "points": len(points),
        "late": len(late),
        "unequal": unequal,
        "built": built,
        "untrue": untrue,
    }


def look(directory: Path) -> dict[str, object]:
    """Returns each file and link by its path, and for each repository what git sees in it."""
    seen: dict[str, object] = {
        name: entry
        for name, entry in contents(directory).items()
        if ".git" not in Path(name).parts[:-1]
    }
    for head in directory.rglob(".git/HEAD"):
        top = head.parent.parent
        seen[str(top.relative_to(directory))] = seen_by_git(top)
    return seen


def _clean_copy(play: Play, copy: Path) -> Path:
    target = play.folder / "truth"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", copy, target], check=True)
    for name in ("out", "__pycache__", ".pytest_cache"):
        shutil.rmtree(target / name, ignore_errors=True)
    return target


def build(directory: Path) -> tuple[Any, ...]:
    """What make and pytest say of a directory."""
    made = subprocess.run(["make", "-s"], cwd=directory, capture_output=True, text=True)
    total = (directory / "out/total").read_text() if made.returncode == 0 else ""
    texts = {
        path.stem: (directory / f"out/{path.stem}.txt").read_text()
        for path in sorted((directory / "src").glob("*.in"))
        if made.returncode == 0
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    tested = subprocess.run(argv, cwd=directory, capture_output=True, env=env)
    return made.returncode, total.strip(), texts, tested.returncode


def play_agent(name: str, turns: int, seed: int) -> Mapping[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"rewind-{name}-"))
    home = folder / "home"
    home.mkdir()
    (folder / "project").mkdir()
    with agent_model.served() as model:
        programs = f"{real_agents.install(name)}{os.pathsep}{Path(sys.executable).parent}"
        env = {**os.environ, **real_agents.set_up(name, home, model.url)}
        env |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PWD": str(folder / "project"),
        }
        env.pop("CASFS_STORE", None)
        play = Play(name, folder, model, env, random.Random(seed))
        make_project(play)
        agent = PROGRAMS[name].agent
        play.casfs("attach", agent, *["--trust"] * (agent == "codex"))
        model.observe = play.copy
        began = time.monotonic()
        act(play, turns)
        played_s = time.monotonic() - began
        assert model.faults == [], model.faults
    root = home / ".local/share/casfs"
    while spool.names(root):
        time.sleep(0.1)
    daemon_socket.stop(root)
    with Store.open(root) as store:
        thread = next(iter(sessions.newest_first(store)))
        steps = session_steps.load(store, thread)
        began = time.monotonic()
        result = check(play, steps, store)
        result["calls"] = sum(len(step.calls) for step in steps)
        result["playedS"] = round(played_s)
        result["rewoundS"] = round(time.monotonic() - began)
    if not (result["unequal"] or result["untrue"]):  # else a person will look at it
        shutil.rmtree(folder)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", default=",".join(PROGRAMS))
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for name in options.agents.split(","):
        result = play_agent(name, options.turns, options.seed)
        failed |= bool(result["unequal"] or result["untrue"])
        print(name, json.dumps(result), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
