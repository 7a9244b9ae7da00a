"""Markdown that an agent wrote, as HTML that can do nothing: no HTML of its own, no images, links
to the web alone."""

from __future__ import annotations

from functools import cache

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

MAX_CHARS = 200_000  # a longer text is cut: a page is read by a person
TAGS = set(
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead"
    " tr ul".split()
)
SCHEMES = {"http", "https", "mailto"}


def to_html(text: str) -> Markup:
    """Returns Markdown as HTML."""
    html = _parser().render(text[:MAX_CHARS])
    return Markup(
        nh3.clean(
            html,
            tags=TAGS,
            attributes={"a": {"href", "title"}, "ol": {"start"}},
            url_schemes=SCHEMES,
            link_rel="noopener noreferrer nofollow",
        )
    )


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
