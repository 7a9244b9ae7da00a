"""What the demo's agents share: run tools in the workspace, read the prompt, report.

An agent here is a script. It gets the prompt on stdin and the workspace as its current directory;
what it prints is its output: Markdown that ends with one fenced JSON block, the role's meta. It
keeps nothing anywhere else, so a step that is run again starts from the same workspace and does
the same. It exits with 0 unless it could not do its work at all.

Tools run with a clean environment: no bytecode files, no colours, nothing of the user's git
configuration, and no git repository above the workspace.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]

HASH = re.compile(r"[0-9a-f]{64}")
SUITE = (sys.executable, "-m", "unittest", "discover", "-s", "tests")


def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool in the workspace and return its exit code and output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON"))}
    environment = kept | {
        "GIT_CEILING_DIRECTORIES": str(Path.cwd().parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        argv,
        input=stdin,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def must(*argv: str, stdin: str = "") -> str:
    """Run a tool that has to succeed; return what it printed."""
    result = run(*argv, stdin=stdin)
    if result.returncode != 0:
        reason, _, _ = result.stderr.strip().partition("\n")
        sys.exit(f"{' '.join(argv)}: exit code {result.returncode}: {reason}")
    return result.stdout


def run_suite() -> tuple[bool, str]:
    """Run the project's tests; return whether they passed and what they printed."""
    result = run(*SUITE)
    output = result.stdout + result.stderr
    return result.returncode == 0, output.replace(f"{Path.cwd()}{os.sep}", "")


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, the new ones too."""
    tracked = must("git", "diff", "--name-only", "-z", "HEAD")
    new = must("git", "ls-files", "--others", "--exclude-standard", "-z")
    return sorted(name for name in (tracked + new).split("\0") if name)


def put_content(text: str) -> str:
    """Store a text as a `content` node; return its hash."""
    node = json.dumps({"text": text, "artifacts": []})
    return must("casfs", "node", "put", "content", "-", stdin=node).split()[0]


def json_objects(text: str) -> list[JsonObject]:
    """Return every JSON object that stands in a text, in order, the inner ones too."""
    found: list[JsonObject] = []

    def collect(value: JsonObject) -> JsonObject:
        found.append(value)
        return value

    decoder = json.JSONDecoder(object_hook=collect)
    position = text.find("{")
    while position >= 0:
        try:
            _, position = decoder.raw_decode(text, position)
        except ValueError:
            position += 1
        position = text.find("{", position)
    return found


def phases(prompt: str) -> list[dict[str, str]]:
    """Return the phases of the latest plan in the prompt, each with its hash and title."""
    plans = [found["phases"] for found in json_objects(prompt) if is_plan(found)]
    if not plans:
        sys.exit("the prompt holds no plan: run the planner before this agent")
    latest: list[dict[str, str]] = plans[-1]
    return latest


def is_plan(value: JsonObject) -> bool:
    """Tell whether a JSON object is what a planner reports."""
    listed = value.get("phases") if value.get("status") == "planned" else None
    return isinstance(listed, list) and all(
        isinstance(phase, dict) and HASH.fullmatch(str(phase.get("hash"))) for phase in listed
    )


def fenced(text: str, language: str = "text") -> str:
    """Return a text as a Markdown code block."""
    return f"```{language}\n{text.strip()}\n```"


def report(*paragraphs: str, meta: JsonObject) -> None:
    """Print the agent's output: its paragraphs, then its meta."""
    block = fenced(json.dumps(meta, indent=2, ensure_ascii=False), "json")
    print("\n\n".join([*paragraphs, block]))
