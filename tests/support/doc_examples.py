"""Runs the Python examples of a page: every fenced block marked `python`, in order, in one
namespace, as a reader would paste them one after the other.

    Store.put(b"x").size_bytes  # => 1

A line that is an expression with `# => REPR` behind it must have a value with that repr.
Blocks with another mark (`text`, `toml`, none) are not run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"  # => (.*)$")


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """(line of the page at which it begins, code) of each example."""
    text = page.read_text("utf-8")
    for found in FENCE.finditer(text):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def run(page: Path, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the examples of `page`; returns the namespace they left.

    Tracebacks name the page and its line. Raises AssertionError where a value is not what
    the page says, or the page has no example.
    """
    names = {"__name__": page.stem} if namespace is None else namespace
    found = list(blocks(page))
    assert found, f"{page.name} has no example"
    for first_line, code in found:
        for statement in ast.parse(code).body:
            _run_statement(statement, code.splitlines(), page, first_line, names)
    return names


def _run_statement(
    statement: ast.stmt, lines: list[str], page: Path, first_line: int, names: dict[str, Any]
) -> None:
    expected = EXPECTED.search(lines[(statement.end_lineno or statement.lineno) - 1])
    where = f"{page.name}:{statement.lineno + first_line - 1}"
    ast.increment_lineno(statement, first_line - 1)
    if isinstance(statement, ast.Expr):
        value = eval(compile(ast.Expression(statement.value), str(page), "eval"), names)
        if expected is not None:
            assert repr(value) == expected[1], f"{where}: {value!r}, the page says {expected[1]}"
    else:
        assert expected is None, f"{where}: only an expression has a value"
        exec(compile(ast.Module([statement], []), str(page), "exec"), names)
