"""Templates: the environment, the page or one block of it, and the static files beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.system import safe_text
from casfs.system.clock import age, rfc3339
from casfs.system.sizes import readable
from casfs.version import VERSION
from casfs.web.markdown import to_html

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHORT_HASH = 12
SCREENS = [  # of the navigation: path, title
    ("/", "Board"),
    ("/workflows", "Workflows"),
    ("/search", "Search"),
    ("/compare", "Compare"),
    ("/store", "Store"),
]


def name(path: bytes) -> str:
    """Returns a name or path of a tree in one line; bytes that are not UTF-8 as \\xXX."""
    return safe_text.escape(path.decode("utf-8", "backslashreplace"), one_line=True)


def url_part(text: str | bytes) -> str:
    """Returns a text, or a path in bytes, as a part of a URL."""
    return quote(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))


FILTERS: dict[str, Callable[..., Any]] = {
    "age": age,
    "markdown": to_html,
    "name": name,
    "rfc3339": rfc3339,
    "size": lambda size: f"{readable(size)}B",
    "urlencode": url_part,
}


class Rendering:
    """Thread-safe."""

    def __init__(self) -> None:
        self.static = _static_files()
        self._environment = Environment(
            loader=PackageLoader("casfs.web"),
            autoescape=True,
            finalize=_visible,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= FILTERS
        self._environment.globals |= {
            "static": self.static_url,
            "version": self.version,
            "SCREENS": SCREENS,
        }
        macros: Any = self._environment.get_template("macros.html").module
        self._environment.globals["ui"] = macros  # also where one block is rendered

    @cached_property
    def version(self) -> str:
        """What URLs of immutable fragments carry (`?v=`), so that another program's are fetched."""
        sources = resources.files("casfs.web") / "templates"
        texts = sorted(source.read_bytes() for source in sources.iterdir() if source.is_file())
        return hash_bytes(b"\0".join([VERSION.encode(), *texts]))[:SHORT_HASH]

    def static_url(self, name: str) -> str:
        return f"/static/{hash_bytes(self.static[name])[:SHORT_HASH]}/{name}"

    def render(self, template: str, block: str | None, values: dict[str, Any]) -> str:
        """Returns the page, or one block of it. Raises NotFound for a block that it has not."""
        page_template = self._environment.get_template(template)
        if block is None:
            return page_template.render(values)
        if block not in page_template.blocks:
            raise NotFound(f"the page has no part {block!r}")
        return "".join(page_template.blocks[block](page_template.new_context(values)))


def _visible(value: Any) -> Any:
    """Returns what a template prints, with controls and bidirectional marks made visible."""
    if not isinstance(value, str):
        return value
    shown = safe_text.escape(value)
    return Markup(shown) if isinstance(value, Markup) else shown


def _static_files() -> dict[str, bytes]:
    folder = resources.files("casfs.web") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
