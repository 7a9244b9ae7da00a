"""Messages and helps say the standard noun, then what to do: words that they do not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import test_layers

PHRASES = {
    r"\b(?:is|are) no (?!longer\b|more\b)[a-z]": "is not a …, invalid …",
    r"if you mean it|say which": "name the option",
    r"\bkeeper\b": "supervisor",
    r"\brests\b|laid to rest|closed off": "suspended, not visible",
    r"[Ii]n flight": "pending, running",
    r"(?<!\$\.)\bmaxRounds\b.{0,20}reached": "step limit (--max-steps)",
    r"delete-foreign|max-rounds|threads\.limit": "--delete-untracked, --max-steps, runs.limit",
    r"A word on|At most so many|What it reads|The same again": "the noun",
    r"\bthe mutable names\b$": "refs",
}
EXEMPT = {"casfs.mount.registry"}  # keys of a file


@cache
def texts(module: str) -> list[tuple[int, str]]:
    return list(_texts(module))


def _texts(module: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string of a module that is no docstring of a function that is not
    a command."""
    tree = ast.parse(test_layers.modules()[module].read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            is_command = any("command" in one or "group" in one for one in decorators)
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and not is_command:
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield node.lineno, node.value


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_not_used(phrase: str) -> None:
    found = [
        f"{module}:{line}: {text!r}; say: {PHRASES[phrase]}"
        for module in sorted(test_layers.modules())
        if module not in EXEMPT
        for line, text in texts(module)
        if re.search(phrase, text)
    ]
    assert found == []


def test_the_docs_have_the_headings_of_the_field() -> None:
    pages = [*Path(test_layers.ROOT / "docs").glob("*.md"), test_layers.ROOT / "README.md"]
    headings = {line for page in pages for line in page.read_text("utf-8").splitlines()}
    assert not {"## Is it whole?", "## Room", "## What you may rely on"} & headings
