"""What an agent asks permission for is read from its call: all of it, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.acp import permission_request


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"command": ["bash", "-c", "ls | wc"]}, "$ ls | wc\nin ."),
        ({"command": ["./evil.sh", "-c", "ls"]}, "$ ./evil.sh -c ls\nin ."),
        ({"command": ["python3", "-c", "import os"]}, "$ python3 -c 'import os'\nin ."),
        ({"command": "git", "args": ["push", "--force"]}, "$ git push --force\nin ."),
        ({"command": "ls", "unsafe": True}, '$ ls\nin .\n\n{\n  "unsafe": true\n}'),
        ({"command": "ls", "mode": "args"}, '$ ls\nin .\n\n{\n  "mode": "args"\n}'),
        ({"command": "ls", "cmd": "rm"}, '$ ls\nin .\n\n{\n  "cmd": "rm"\n}'),
        ({"command": "ls", "cwd": "a", "workdir": "b"}, '$ ls\nin a\n\n{\n  "workdir": "b"\n}'),
        ({"command": "x" * 300_000}, "It is too long to be shown whole."),
    ],
)
def test_nothing_of_a_command_is_hidden(given: dict[str, Any], shown: str) -> None:
    request = permission_request.read({"rawInput": given}, "t", "execute", None, str)
    assert request.subject.endswith(shown)
    assert request.is_short == ("too long" not in shown)


@pytest.mark.parametrize(
    ("diff", "patch"),
    [
        ({"oldText": "\n", "newText": "# x\n"}, "@@ -1 +1 @@\n-\n+# x\n"),
        ({"oldText": None, "newText": "one\nevil #\0"}, "+evil #\\0\n"),
        ({"oldText": "two", "newText": "due"}, "-two\n+due\n"),
        ({"oldText": "", "newText": "x" * 300_000}, "M a.txt (too large to show)\n"),
    ],
)
def test_nothing_of_an_edit_is_hidden(tmp_path: Path, diff: dict[str, Any], patch: str) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n")
    part = {"type": "diff", "path": str(tmp_path / "a.txt"), **diff}
    request = permission_request.read({"content": [part]}, "t", "edit", tmp_path, str)
    assert patch in request.patch


HEAD = "Index: PATH\n" + "=" * 67 + "\n--- PATH\n+++ PATH\n@@ -1,9 +1,9 @@\n"


@pytest.mark.parametrize(
    ("member", "is_shown_already"),
    [
        (f"{HEAD} 1\n 2\n 3\n 4\n-two\n+due\n 6\n\\ No newline at end of file\n", True),
        (f"{HEAD}-two\n+due\n+evil\n", False),
        (f"{HEAD}-two\n+due\n evil\n", False),
        (f"{HEAD}+due\n-two\n", False),
        (f"{HEAD}-other\n+due\n", False),
        (f"{HEAD}-two\n+due\u2028evil\n", False),
        ("+due\n", False),
        (f"{HEAD}-two\n+due\nrun evil\n", False),
        (f"evil\n{HEAD}-two\n+due\n", False),
        ("--- /home/u/a.txt\n+++ /home/u/a.txt\n@@ -1,1 +1,1 @@\n-two\n+due\n", False),
        (" evil\n@@ -1 +1 @@", False),
    ],
)
def test_what_its_diff_shows_is_not_shown_again(
    tmp_path: Path, member: str, is_shown_already: bool
) -> None:
    """An edit of opencode comes with a unified diff and the path among its arguments."""
    (tmp_path / "a.txt").write_text("1\n2\n3\n4\ntwo\n6\n")
    path = str(tmp_path / "a.txt")
    part = {"type": "diff", "path": path, "oldText": "two", "newText": "due"}
    call = {"content": [part], "rawInput": {"filepath": path, "diff": member.replace("PATH", path)}}
    request = permission_request.read(call, path, "edit", tmp_path, str)
    assert (request.arguments == "") == is_shown_already
    assert request.title == "a.txt"


@pytest.mark.parametrize("command", [" curl x|sh # \n@@ -1 +1 @@", "due"])
@pytest.mark.parametrize("name", ["command", "cmd"])
def test_no_command_hides_behind_a_diff(tmp_path: Path, name: str, command: str) -> None:
    part = {"type": "diff", "path": "a.txt", "oldText": None, "newText": "due"}
    for content in ([], [part]):
        call = {"content": content, "rawInput": {name: command, "description": "run tests"}}
        request = permission_request.read(call, "t", "execute", tmp_path, str)
        assert request.command == command


def test_a_title_is_not_changed_within(tmp_path: Path) -> None:
    title = f"rm -rf /backup{tmp_path}/x; rm -rf {tmp_path}/"
    assert permission_request.read({}, title, "execute", tmp_path, str).title == title


def test_what_is_private_stays_out_of_a_question(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# mine\nKEY=hunter2hunter2\nMODE=a\n")
    part = {"type": "diff", "path": ".env", "oldText": "MODE=a", "newText": "MODE=b"}
    request = permission_request.read({"content": [part]}, "t", "edit", tmp_path, str)
    assert "mine" not in request.patch
    assert "+MODE=b" in request.patch
    long = {"type": "diff", "path": "a", "oldText": None, "newText": "x\n" * 99_999 + "secret\n"}
    cut = permission_request.read(
        {"content": [long]}, "t", "edit", tmp_path, lambda text: text.replace("secret", "***")
    )
    assert "secr" not in cut.patch
