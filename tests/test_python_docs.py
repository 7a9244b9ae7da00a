"""docs/python.md: its examples run, and it names the whole public API."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import casfs
from casfs.store.store import Store
from engine.workflow import registry as workflows
from tests.support import doc_examples
from tests.support.engine import daemon, rule, workflow

PAGE = Path(__file__).resolve().parents[1] / "docs/python.md"
TEXT = PAGE.read_text("utf-8")
REVIEW = workflow(
    [rule("__start__", "reviewer"), rule("reviewer", "__end__")], "review", reviewer=None
)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    monkeypatch.setenv("CASFS_STORE", str(root))
    monkeypatch.chdir(tmp_path)
    with Store.init(root) as store:
        workflows.add(store, REVIEW)
    with daemon(root):
        doc_examples.run(PAGE)


def test_it_names_the_whole_api_and_nothing_else() -> None:
    assert set(re.findall(r"\bcasfs\.(\w+)", TEXT)) == set(casfs.__all__)


@pytest.mark.parametrize("name", casfs.__all__)
def test_it_names_every_method_and_field(name: str) -> None:
    one = getattr(casfs, name)
    if inspect.isclass(one) and one.__module__.startswith("casfs.api"):
        public = {member for member in vars(one) if not member.startswith("_")}
        if dataclasses.is_dataclass(one):
            public |= {field.name for field in dataclasses.fields(one)}
        assert {member for member in public if not re.search(rf"\b{member}\b", TEXT)} == set()
        described = inspect.getmembers(one, lambda o: callable(o) or isinstance(o, property))
        assert [member for member, o in described if member in public and not o.__doc__] == []


def test_an_example_with_another_value_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\nx + 1  # => 3\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:5: 2, the page says 3"):
        doc_examples.run(page)
    page.write_text("```sh\ntrue\n```\n")
    with pytest.raises(AssertionError, match="has no example"):
        doc_examples.run(page)
