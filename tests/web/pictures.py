"""Make the pictures of docs/pictures/ anew: `.venv/bin/python -m tests.web.pictures`.

Threads of a small team run on a sample project, by a daemon, with agents that are shell scripts; an
attached agent works on it, and one that speaks ACP asks for permission.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.acp import Script
from tests.support.attached_agent import AttachedAgent
from tests.support.browser import PHONE, WIDE, Browser, browser
from tests.support.engine import ONE, daemon, role, rule, shell, until, workflow
from tests.support.following import OwnSessionDirectory
from tests.support.helpers import put_tree
from tests.support.web import serving

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
PROJECT = {
    "README.md": b"# feeds\n\nReads feeds and keeps what is new.\n",
    "feeds": {
        "__init__.py": b"",
        "dates.py": b'"""Dates of entries."""\n\nfrom datetime import datetime\n\n\n'
        b"def parse(text: str) -> datetime:\n    return datetime.strptime(text, '%Y-%m-%d')\n\n\n"
        b"def newest(dates: list[datetime]) -> datetime:\n    return sorted(dates)[-1]\n",
    },
}
PATCH = r"""
cat >feeds/dates.py <<'END'
\"\"\"Dates of entries.\"\"\"

from datetime import UTC, datetime


def parse(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def newest(dates: list[datetime]) -> datetime | None:
    return max(dates, default=None)
END
mkdir -p tests; printf 'def test_no_dates():\n    assert newest([]) is None\n' >tests/test_dates.py
""".replace('\\"', '"')
VERDICT = {
    "name": "verdict",
    "type": "object",
    "properties": {
        "verdict": {"enum": ["release", "change", "stop"], "description": "What is to be done?"},
        "note": {"type": "string", "description": "For the coder and the changelog."},
    },
    "required": ["verdict"],
}
STATUS = {"name": "status", "type": "object", "properties": {"status": {"type": "string"}}}
ROLES = {"planner": STATUS, "coder": STATUS, "reviewer": STATUS, "lead": VERDICT}


def flow() -> dict[str, Any]:
    roles = {name: role(name, schema) for name, schema in ROLES.items()}
    roles["coder"]["policy"] = {"retries": 2}
    roles["lead"]["extractPrompt"] = "Is this good enough to be released?"
    again = "$steps[-1].meta.status = 'changes wanted' and $count($steps) < 5"
    edges = [
        rule("__start__", "planner"),
        rule("planner", "coder"),
        rule("coder", "reviewer"),
        rule("reviewer", "coder", again),
        rule("reviewer", "lead"),
        rule("lead", "__end__"),
    ]
    return {**workflow(edges, "deliver"), "description": "Plan, write, review.", "roles": roles}


def runs(script: str, *arguments: str) -> dict[str, Any]:
    return {"name": "command", "config": shell(script, *arguments)}


def says(text: str, first: str = "sleep 0.3", **meta: str) -> dict[str, Any]:
    report = f"{text}\n\n```json\n{json.dumps(meta)}\n```\n"
    return runs(f'{first}\nprintf "%s" "$1"', report)


PLAN = """## Plan

1. `parse` fails for dates with a time: use `fromisoformat`.
2. `newest` fails for an empty list: return `None`.
3. A test for each."""
REVIEW = """The parser now takes **every** ISO date, and a naive one is UTC.

Left for another time: dates in the future."""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        root, profile = Path(work) / "store", Path(work) / "profile"
        with Store.init(root) as store, daemon(root), serving(root) as web:
            workflows.add(store, flow())
            tree = put_tree(store, PROJECT)
            mark = Path(work) / "tried"
            once = f"[ -e {mark} ] || {{ touch {mark}; echo 'no network' >&2; exit 1; }}; sleep 0.7"
            agents = {
                "planner": says(PLAN, status="planned"),
                "coder": says("Both functions are mended.", once + PATCH, status="done"),
                "reviewer": says(REVIEW, status="fine"),
                "lead": {"name": "human", "config": {"question": "Shall this be released?"}},
            }

            def start(task: str, **other: Any) -> str:
                made = daemon_socket.request(
                    root,
                    "start",
                    workflow="deliver",
                    input=task,
                    agents={**agents, **other},
                    workspace=tree,
                )
                return str(made["id"])

            def comes_to(status: str, id: str) -> None:
                found = threads.ThreadId(id)
                until(lambda: threads.get(store, found).status == status, status)

            asks = start("Dates with a time of day are refused, and no entries are a crash.")
            comes_to("suspended", asks)
            broken = runs("echo 'model overloaded, try again later' >&2; exit 1")
            comes_to("suspended", start("Say which feed an entry came from.", planner=broken))
            lead = says("Released.", verdict="release")
            for task in ("Keep the order of equal dates.", "Read feeds that are compressed."):
                comes_to("ended", start(task, lead=lead))
            session = attached(store, Path(work) / "feeds")
            asking = start_asking(store, Path(work))
            comes_to("suspended", asking)
            slow = runs("echo 'Writing tests/test_feeds.py'; sleep 300")
            tasks = ("Feeds in Atom format.", "A limit for the size of a feed.")
            going = [start(task, coder=slow) for task in tasks]
            with browser(profile) as page:
                page.open(web.url)
                page.until(
                    lambda: page.text().count("Writing tests") == len(going), "what they say"
                )
                save(page, "board", 860)
                page.open(f"{web.origin}/threads/{asks}")
                save(page, "thread", 1000)
                page.open(f"{web.origin}/compare?a={asks}@0&b={asks}&view=split")
                save(page, "compare", 800)
                page.open(f"{web.origin}/threads/{session}")
                save(page, "session", 1100)
                page.size(PHONE, 844)
                page.open(f"{web.origin}/threads/{asking}/answer")
                save(page, "answer", 844, PHONE)
            for id in (*going, asking):
                daemon_socket.request(root, "cancel", id=id)


def attached(store: Store, project: Path) -> str:
    """The session of an agent that has mended the project for a prompt; returns its thread."""
    dates = project / "feeds" / "dates.py"
    dates.parent.mkdir(parents=True)
    dates.write_bytes(PROJECT["feeds"]["dates.py"])
    git = "git -c user.name=Ada -c user.email=ada@example.org"
    begin = f"{git} init --quiet -b main && {git} add . && {git} commit --quiet -m 'Read dates'"
    subprocess.run(begin, shell=True, cwd=project, check=True)
    followed = OwnSessionDirectory(store, project, None)
    agent = AttachedAgent(store, project, followed)
    agent.prompt("The newest date of an empty list is a crash. Mend it, with a test.")
    agent.call(lambda: None, "Read", "feeds/dates.py")
    mended = (
        "def newest(dates: list[datetime]) -> datetime | None:\n    return max(dates, default=None)"
    )
    before, _, _ = dates.read_text().partition("def newest")
    agent.write("feeds/dates.py", f"{before}{mended}\n")
    agent.call(lambda: None, command="python -m pytest -q", fault="Exit code 1\n1 failed in 0.02s")
    agent.write("tests/test_dates.py", "def test_no_dates():\n    assert newest([]) is None\n")
    commit = f"{git} add . && {git} commit --quiet -m 'newest: None for no dates'"
    agent.call(lambda: subprocess.run(commit, shell=True, cwd=project), command="git commit -a")
    agent.stop("`newest` is **None** for an empty list now, and a test says so.")
    followed.close()
    return agent.thread.id


def start_asking(store: Store, folder: Path) -> str:
    """A thread whose agent asks for permission; returns its id."""
    given = {"command": "git push --force origin main"}
    tool = {"toolCallId": "1", "title": "Push it", "kind": "execute", "rawInput": given}
    script = Script(folder, [{"permission": {"tool": tool}}])
    workflows.add(store, ONE)
    agents = {"a": {"name": "acp", "config": script.config()}}
    made = daemon_socket.request(
        store.root,
        "start",
        workflow=ONE["name"],
        input="Publish the mended parser.",
        agents=agents,
        workspace=put_tree(store, PROJECT),
    )
    return str(made["id"])


def save(page: Browser, name: str, height: int, width: int = WIDE) -> None:
    page.size(width, height)
    (FOLDER / f"{name}.png").write_bytes(page.picture())


if __name__ == "__main__":
    main()
