"""docs/history.md: its story runs."""

from __future__ import annotations

from pathlib import Path

from tests.support import console_docs
from tests.support.engine import kill

PAGE = Path(__file__).resolve().parents[2] / "docs/history.md"


def test_the_story(tmp_path: Path) -> None:
    text, pid = PAGE.read_text("utf-8"), None
    for name, content in console_docs.files(text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    try:
        for line, shown in console_docs.commands(text):
            said = console_docs.run(line, shown, tmp_path)
            if line == "casfs daemon":
                pid = int(said.split()[0])
    finally:
        if pid is not None:
            kill(pid)
