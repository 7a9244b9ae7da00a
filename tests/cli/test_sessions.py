"""`sessions`: what is recorded of outside agents, and imports of their transcripts."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.engine import Cli


def transcript(name: str, prompt: str) -> Path:
    path = Path.home() / f".claude/projects/-project/{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    time = "2026-11-27T20:01:45.500Z"
    lines = [
        {"type": "user", "cwd": "/project", "timestamp": time, "message": {"content": prompt}},
        {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "Yes"}]}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_import_and_the_list(cli: Cli) -> None:
    assert "has left no transcript" in cli.refused("sessions", "import", "claude", code=3)
    transcript("one", "Do it")
    transcript("two", "And more")
    assert cli("sessions", "import", "claude").text == "2 sessions imported, 0 known already\n"
    done = cli("sessions", "import", "claude", "--json").json
    assert (done["imported"], len(done["known"])) == ([], 2)
    rows = cli("sessions", "list", "--json").json
    listed = {(row["id"], row["first"], row["directory"], row["prompts"]) for row in rows}
    assert listed == {("one", "Do it", "/project", 1), ("two", "And more", "/project", 1)}
    assert {row["status"] for row in rows} == {"closed"}
    assert len(cli("sessions", "list").text.splitlines()) == 2


def test_one_that_cannot_be_read_does_not_end_the_rest(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    answer = cli("sessions", "import", "claude", bad, transcript("one", "Do it"), code=1)
    assert "does not say in which directory" in answer.err
    assert answer.text == "1 sessions imported, 0 known already\n"
