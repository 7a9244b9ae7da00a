"""Templates, static files, Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import casfs.web
from casfs.digest import hash_bytes
from casfs.web.markdown import MAX_CHARS, to_html
from casfs.web.rendering import Rendering
from tests.support.web import Web

TEMPLATES = Path(casfs.web.__file__).parent / "templates"


def test_static_files_are_named_by_their_hash(web: Web) -> None:
    for name, data in Rendering().static.items():
        path = f"/static/{hash_bytes(data)[:12]}/{name}"
        # The script of one page alone is loaded by that.
        assert name == "review.js" or f'"{path}"' in web.get("/").text
        found = web.get(path)
        assert found.body == data
        assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
        tag = found.headers["etag"]
        assert web.ask("GET", path, Cookie=web.cookie, If_None_Match=tag).status == 304
        web.get(f"/static/{'0' * 12}/{name}", 404)
    web.get("/static/000000000000/..%2F__init__.py", 404)


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_no_template_breaks_the_policy(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\|\s*safe\b|Markup|autoescape", text)
    assert not re.search(r"<[^>]*\s(style|on\w+)=|javascript:|<style", text)
    scripts = re.findall(r"<script[^>]*>", text)
    own = {f"<script src=\"{{{{ static('{name}.js') }}}}\" defer>" for name in ("casfs", "review")}
    assert set(scripts) <= own


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A\n\n*b* `c`", "<h1>A</h1>\n<p><em>b</em> <code>c</code></p>\n"),
        ("| a |\n|---|\n| b |", "<table>"),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"),
        ("[a](https://e.example)", 'rel="noopener noreferrer nofollow"'),
        ("![a](https://e.example/x.png)", "!<a "),
    ],
)
def test_markdown(text: str, html: str) -> None:
    assert html in to_html(text)


@pytest.mark.parametrize(
    "text",
    [
        "[a](javascript:alert(1))",
        "[a](data:text/html,x)",
        "[a](JaVaScRiPt&colon;alert(1))",
        "<a href='javascript:x'>a</a>",
        '<https://e.example/"onclick=alert(1)>',
        "```<img onerror=x>\n```",
        '[a](https://e.example "x\\" onclick=y")',
        "<svg/onload=alert(1)>",
    ],
)
def test_markdown_can_do_nothing(text: str) -> None:
    found = Tags()
    found.feed(to_html(text))
    assert {tag for tag, _ in found.tags} <= {"p", "a", "pre", "code"}
    for _, attributes in found.tags:
        assert set(attributes) <= {"href", "title", "rel"}
        assert str(attributes.get("href", "https:")).startswith("https:")


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_very_long_markdown_is_cut() -> None:
    assert len(to_html("a " * MAX_CHARS)) < MAX_CHARS + 100


def test_terminal_escapes_and_bidirectional_marks_are_visible(web: Web) -> None:
    page = web.get("/?workflow=a%1b%5b2J%e2%80%ae&q=%3Cb%3E%7f", 200).text
    assert 'value="&lt;b&gt;\\x7f"' in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
