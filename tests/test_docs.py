"""The docs name only modules, tests, files and decisions that exist, and the map is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import test_layers
from tests.support import journeys

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
DECISIONS = sorted(DOCS.glob("decisions/[0-9]*.md"))

MODULE = re.compile(r"(?<![\w./-])(?:casfs|engine|schemas|tests|benchmarks)(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w./-])(?:casfs|engine|schemas|tests|benchmarks|docs)/[\w./-]*")
TEST = re.compile(r"`((?:\w+/)*(?:test|contract)_\w+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def ids(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@cache
def text(page: Path) -> str:
    return page.read_text("utf-8")


@cache
def section(page: Path, title: str) -> str:
    found = re.search(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", text(page), re.M | re.S)
    assert found, f"{page.name} has no section {title!r}"
    return found[1]


def words(text: str) -> str:
    """A text in lower case, its names split at underscores, hyphens and capitals."""
    return re.sub(r"[\s_-]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


@cache
def source() -> str:
    files = [*test_layers.modules().values(), *(ROOT / "schemas").glob("*.json")]
    return words("\n".join([*map(text, files), *(str(path.relative_to(ROOT)) for path in files)]))


@cache
def glossary() -> list[str]:
    """The words: first cells of the rows, without a remark in brackets, split at commas."""
    cells = re.findall(r"^\| (?!word \|)(?!-)(.+?) \|", text(DOCS / "glossary.md"), re.M)
    return [word for cell in cells for word in re.sub(r" \(.*\)", "", cell).split(", ")]


def module_file(name: str) -> Path | None:
    path = ROOT / name.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def exists(name: str) -> bool:
    """Whether `name` is a module, or the path of a name that a module defines or imports."""
    parent, rest = name, ""
    while (file := module_file(parent)) is None:
        parent, _, rest = parent.rpartition(".")
        if not parent:
            return False
    return not rest or re.search(rf"\b{rest}\b", text(file)) is not None


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_modules_and_paths_that_a_page_names_exist(page: Path) -> None:
    assert {name for name in MODULE.findall(text(page)) if not exists(name)} == set()
    paths = {name.rstrip("./") for name in PATH.findall(TEST.sub("", text(page)))}
    assert {name for name in paths if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_tests_that_a_page_names_exist(page: Path) -> None:
    assert [t for t in TEST.findall(text(page)) if not (ROOT / f"tests/{t}.py").is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in LINK.findall(text(page)) if not link.startswith("<")]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("word", glossary())
def test_a_word_of_the_glossary_is_used(word: str) -> None:
    assert re.search(rf"\b{words(word)}(?:s|es)?\b", source())


def test_a_word_of_the_glossary_has_one_row() -> None:
    assert sorted(glossary()) == sorted(set(glossary()))


def test_every_invariant_names_a_test() -> None:
    lines = re.findall(r"^(\d+)\. (.*)$", section(DOCS / "design.md", "Invariants"), re.M)
    assert [int(number) for number, _ in lines] == [*range(1, len(lines) + 1)]
    assert [number for number, line in lines if not TEST.search(line)] == []


def test_the_map_has_the_packages_in_their_order() -> None:
    named = re.findall(r"^\| `([\w.]+)` \| \S", section(DOCS / "architecture.md", "Packages"), re.M)
    branches = [place for branch in test_layers.BRANCHES.values() for place in branch]
    assert named == [*test_layers.TRUNK, *branches, test_layers.TOP[0]]


@pytest.mark.parametrize("name", journeys.JOURNEYS)
def test_a_journey_passes_its_modules_in_order(name: str, tmp_path: Path) -> None:
    page = section(DOCS / "architecture.md", f"Life of a {name}")
    named = re.findall(r"^\| `([\w.]+)` \|", page, re.M)
    source = tmp_path / "source"
    source.mkdir()
    (source / "small").write_text("small")
    (source / "large").write_bytes(b"large" * 1000)
    command = [sys.executable, "-m", "tests.support.journeys", name, tmp_path / "store", source]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    entered = iter(done.stdout.split())
    assert [name for name in named if name not in entered] == []  # consumes what it passes


def test_every_outside_library_is_named_with_its_importer() -> None:
    layers = re.sub(r"\s+", " ", section(DOCS / "design.md", "Layers"))
    for library, place in test_layers.LIBRARIES.items():
        assert re.search(rf"\b{library.replace('_', '[-_]')}\b[^,.]*(?:and \S+ )?`{place}`", layers)


def test_decisions_are_numbered_and_listed() -> None:
    numbers = [int(page.name[:3]) for page in DECISIONS]
    assert numbers == [*range(1, len(DECISIONS) + 1)]
    index = re.findall(
        r"^\| \[\d+\]\(([^)]+)\) \| (.*) \| [\d-]+ \|$", text(DOCS / "decisions/README.md"), re.M
    )
    titles = [(page.name, text(page).splitlines()[0][len("# 000. ") :]) for page in DECISIONS]
    assert index == titles


@pytest.mark.parametrize("page", DECISIONS, ids=ids(DECISIONS))
def test_a_decision_has_its_parts(page: Path) -> None:
    assert re.match(rf"# {page.name[:3]}\. .+\n\nStatus: \w.*\n", text(page))
    headings = re.findall(r"^## (\w+)$", text(page), re.M)
    order = ["Context", "Decision", "Consequences", "Alternatives"]
    assert headings[:2] == order[:2]
    assert headings == [part for part in order if part in headings]


def test_the_index_links_to_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(index.parent / name).resolve() for name in LINK.findall(text(index))}
    assert {page for page in DOCS.glob("*.md") if page != index} - linked == set()


MAX_WORDS = 30  # of a sentence


def sentences(page: Path) -> list[str]:
    """The sentences of a page, without code, tables and headings."""
    prose = re.sub(r"```.*?```", "", text(page), flags=re.S)
    lines = ["" if line.lstrip().startswith(("|", "#")) else line for line in prose.splitlines()]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    return [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[(])|(?<=[.!?])\s+", block.strip())
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_sentences_are_short(page: Path) -> None:
    assert [one for one in sentences(page) if len(one.split()) > MAX_WORDS] == []
