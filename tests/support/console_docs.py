"""Runs the console examples of a page, in order, as a reader would type them one after the other.

A fenced block after a line with only a file's name in backticks and a colon is that file. In
a block marked `console`, a line that begins with `$ ` is a command, the lines below are what it
prints: `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def files(text: str) -> list[tuple[str, str]]:
    """(name, content) of each file of a page."""
    return re.findall(r"^`([\w./-]+)`:\n```\w+\n(.*?)^```$", text, re.M | re.S)


def commands(text: str) -> list[tuple[str, str]]:
    """(command line, the output that the page shows)."""
    blocks = re.findall(r"^(`{3,4})console\n(.*?)^\1$", text, re.M | re.S)
    return [
        (line, shown)
        for _, block in blocks
        for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    ]


def run(line: str, shown: str, folder: Path, **more: Any) -> str:
    """Runs a command; returns what it printed. Raises AssertionError where that is not what the
    page shows."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=env, stdout=subprocess.PIPE, text=True, timeout=60,
        **more,
    )  # fmt: skip
    wanted = "".join(map(_pattern, shown.splitlines(keepends=True)))
    assert re.fullmatch(wanted, done.stdout), f"{line}\n{done.stdout}\nthe page has:\n{shown}"
    return str(done.stdout)


def _pattern(line: str) -> str:
    return "(?:.*\n)*" if line == "…\n" else re.escape(line).replace("…", ".*")
