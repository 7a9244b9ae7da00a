"""docs/workflows.md: the tutorial runs, and the reference is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from casfs.store.nodes.registry import builtin
from engine.moderator.conditions import BINDINGS, FUNCTIONS
from engine.moderator.rules import REFUSED
from engine.workflow import file
from tests.support import console_docs
from tests.support.engine import kill

PAGE = Path(__file__).resolve().parent.parent / "docs/workflows.md"
TEXT = PAGE.read_text("utf-8")
FILES, COMMANDS = console_docs.files(TEXT), console_docs.commands(TEXT)
EXAMPLES = re.findall(r"^\| `([^|]*)` \| (?:the|a|any) ", TEXT.split("| when | |")[1], re.M)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "tutorial"
    for name, content in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def test_the_tutorial(home: Path) -> None:
    pid = None
    try:
        for line, shown in COMMANDS:
            said = console_docs.run(line, shown, home)
            if line == "casfs daemon":
                pid = int(said.split()[0])
    finally:
        if pid is not None:
            kill(pid)


def test_the_tutorial_is_short() -> None:
    tutorial = TEXT.partition("## The file")[0]
    files, commands = console_docs.files(tutorial), console_docs.commands(tutorial)
    lines = [line for _, content in files for line in content.splitlines()]
    assert 20 < len(lines) + len(commands) <= 40


def test_every_field_is_explained() -> None:
    schema = file.schema()
    rule, role = (schema["$defs"][name]["properties"] for name in ("rule", "role"))
    fields = {*schema["properties"], *rule, *role, *role["policy"]["properties"]}
    fields |= {*schema["$defs"]["agent"]["oneOf"][1]["properties"]}
    for type in ("thread-step", "thread-start"):
        fields |= {*builtin()[type]["properties"]}
    fields |= {f"${name}" for name in (*BINDINGS, *REFUSED)} | BINDINGS
    assert {name for name in fields if f"`{name}`" not in TEXT} == set()
    assert {name for name in FUNCTIONS if f"`${name}('ROLE')`" not in TEXT} == set()


@pytest.mark.parametrize("when", EXAMPLES)
def test_an_example_is_a_rule_without_a_fault(when: str) -> None:
    data = dict(FILES)["essay.yaml"]
    given = data + f'  - {{from: critic, to: writer, when: "{when}"}}\n'
    lines = given.splitlines()
    lines.insert(-2, lines.pop())  # before the rule that always matches
    report = file.read("\n".join(lines).encode(), "essay.yaml").check()
    assert (report.errors, report.warnings) == ([], [])


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
