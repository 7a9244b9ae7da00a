"""The demo's project, patches and agents, run for real with git and unittest; no engine here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parent.parent / "engine" / "demo"
PHASE = "ab" * 32
PLAN = {"status": "planned", "phases": [{"hash": PHASE, "title": "Make test_formatting pass"}]}
ROLE_SCHEMA = {"properties": {"completedPhase": {"type": "string", "format": "cas_ref"}}}
PROMPT = (
    f"The suite fails.\n{{not JSON\n```json\n{json.dumps(PLAN)}\n```\n{json.dumps(ROLE_SCHEMA)}"
)


def run(
    *argv: str | Path, cwd: Path | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    own = {"PYTHONDONTWRITEBYTECODE": "1", "CASFS_THREAD": "01K00000000000000000000000"}
    return subprocess.run(
        [*map(str, argv)], cwd=cwd, env=kept | own, capture_output=True, text=True, **more
    )


def git(workspace: Path, *arguments: str) -> str:
    return run("git", *arguments, cwd=workspace, check=True).stdout.strip()


def prepare(destination: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, DEMO / "prepare.py", destination)


def agent(role: str, workspace: Path, prompt: str = PROMPT) -> dict[str, Any]:
    script = DEMO / "agents" / f"{role}.py"
    result = run(sys.executable, script, cwd=workspace, input=prompt)
    assert result.returncode == 0, result.stderr
    block = re.search(r"^```json\n(.*)\n```\n\Z", result.stdout, re.DOTALL | re.MULTILINE)
    assert block, result.stdout
    meta = json.loads(block[1])
    assert isinstance(meta, dict)
    return meta


def suite(workspace: Path) -> str:
    argv = (sys.executable, "-m", "unittest", "discover", "-s", "tests")
    return run(*argv, cwd=workspace).stderr.splitlines()[-1]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    destination = tmp_path / "tally"
    assert prepare(destination).returncode == 0
    return destination


def test_each_patch_brings_the_suite_further(workspace: Path) -> None:
    seen = [suite(workspace)]
    for patch in sorted((DEMO / "patches").glob("*.patch")):
        git(workspace, "apply", str(patch))
        seen.append(suite(workspace))
    assert seen == ["FAILED (failures=2)", "FAILED (failures=1)", "OK"]


def test_the_start_is_the_same_everywhere(workspace: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "again")
    assert git(workspace, "rev-parse", "HEAD") == git(tmp_path / "again", "rev-parse", "HEAD")
    assert git(workspace, "status", "--short") == ""
    assert git(workspace, "branch", "--show-current") == "main"


def test_an_existing_destination_is_refused(workspace: Path) -> None:
    result = prepare(workspace)
    assert result.returncode == 4
    assert "exists already" in result.stderr


def test_the_agents_need_two_rounds(workspace: Path) -> None:
    for result in ("failed", "passed"):
        coded = agent("coder", workspace)
        assert (coded["completedPhase"], coded["status"]) == (PHASE, "completed")
        assert coded["filesChanged"] == ["tally/formatting.py"]
        assert agent("reviewer", workspace) == {"status": "approved"}
        assert agent("tester", workspace)["status"] == result
    assert agent("planner", workspace)["status"] == "aborted"
    assert agent("coder", workspace)["status"] == "failed"
    assert not list(workspace.rglob("__pycache__"))


def test_the_coder_takes_the_first_phase_not_done(workspace: Path) -> None:
    second = "cd" * 32
    plan = {"status": "planned", "phases": [*PLAN["phases"], {"hash": second, "title": "More"}]}
    done = {"completedPhase": PHASE, "status": "completed"}
    assert agent("coder", workspace, json.dumps(plan))["completedPhase"] == PHASE
    assert agent("coder", workspace, json.dumps([plan, done]))["completedPhase"] == second


def test_a_coder_without_a_plan_says_so(workspace: Path) -> None:
    result = run(sys.executable, DEMO / "agents" / "coder.py", cwd=workspace, input="fix it")
    assert result.returncode == 1
    assert result.stderr == "the prompt holds no plan: run the planner before this agent\n"
    assert git(workspace, "status", "--short") == ""


@pytest.mark.parametrize(
    ("name", "text", "issue"),
    [
        ("tests/test_formatting.py", "", "the tests are not to be changed"),
        ("tests/test_new.py", "", "the tests are not to be changed"),
        ("tally/formatting.py", "def (", "does not compile"),
        ("tally/extra.py", "x = 1\n" * 41, "41 changed lines are more than 40"),
        ("tally/__init__.py", "import tally.units \n", "trailing whitespace"),
        (None, "", "nothing was changed"),
    ],
)
def test_the_reviewer_rejects(workspace: Path, name: str | None, text: str, issue: str) -> None:
    if name is not None:
        (workspace / name).write_text(text)
    review = agent("reviewer", workspace)
    assert review["status"] == "rejected"
    assert any(issue in found for found in review["issues"]), review


def test_the_committer_commits_on_its_own_branch(workspace: Path) -> None:
    start = git(workspace, "rev-parse", "HEAD")
    agent("coder", workspace)
    committed = agent("committer", workspace)
    assert committed["status"] == "committed"
    assert committed["branch"] == git(workspace, "branch", "--show-current") != "main"
    assert committed["commitSha"] == git(workspace, "rev-parse", "HEAD")
    assert git(workspace, "rev-parse", "HEAD^") == start
    assert git(workspace, "status", "--short") == ""


def test_the_committer_reports_what_git_refused(workspace: Path) -> None:
    refused = agent("committer", workspace)
    assert refused["status"] == "failed"
    assert "nothing to commit" in refused["error"]
