"""Where a program is missing the tests that need it are skipped, and fail in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import programs

ROOT = Path(__file__).resolve().parent.parent
NEEDS_GIT = "tests/trees/snapshot/test_gitignore.py"


@pytest.mark.parametrize(("env", "code"), [({}, 0), ({"CI": "true"}, 1)], ids=["local", "CI"])
def test_a_missing_program(env: dict[str, str], code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-rs", "-x", "-p", "no:cacheprovider", NEEDS_GIT]
    plain = {name: value for name, value in os.environ.items() if name != "CI"}
    env = {**plain, "PATH": str(tmp_path), **env}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "missing: git (Debian: git)" in done.stdout
    assert (" passed" in done.stdout) is False


def test_one_place_looks_for_programs() -> None:
    found = [
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if "shutil." + "which" in path.read_text("utf-8")
    ]
    assert found == [Path(programs.__file__).relative_to(ROOT)]


def test_a_program_that_is_not_listed() -> None:
    """What a test needs, tests/run.sh installs."""
    with pytest.raises(KeyError):
        programs.needs("sh")
