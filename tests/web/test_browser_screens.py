"""Every screen in a real browser, over a store in which all that an agent said is markup."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from casfs.web.app import PAGES
from casfs.web.compare import VIEWS
from tests.support import hostile_store, programs
from tests.support.browser import AXE, PHONE, WIDE, Browser
from tests.support.hostile_store import NAMES, PAYLOADS, SEEN, Site
from tests.support.web import serving

AXE_DIGEST = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"  # 4.14.1, sha256

REVISIONS = "/compare?a={}&b={}"
LAST = len(PAYLOADS) + 1  # prompt of the session
SESSION_STEPS = (f"{LAST}", f"{LAST}?call=2", "1")
ONE_FILE = f"?to={LAST}&path={quote(NAMES[1])}"
# Paths of each screen of `PAGES`, by its name.
SAMPLES: dict[str, Callable[[Site], list[str]]] = {
    "board": lambda site: ["/", "/?q=XSS&state=suspended"],
    "step": lambda site: [
        *(f"/threads/{site.ended.id}/steps/{index}" for index in (2, 3)),
        *(f"/threads/{one.id}/steps/1" for one in (site.failed, site.runs)),
        *(f"/threads/{site.session.id}/steps/{query}" for query in SESSION_STEPS),
    ],
    "trace": lambda site: [
        *(f"/threads/{site.ended.id}/steps/{index}/trace" for index in (2, 3)),
        f"/threads/{site.ended.id}/steps/2/trace?attempt=1",
        f"/threads/{site.failed.id}/steps/1/trace?attempt=1",
    ],
    "answer": lambda site: [f"/threads/{one.id}/answer" for one in (site.asks, site.permission)],
    "rewind": lambda site: [
        f"/threads/{site.session.id}/rewind{query}"
        for query in ("", "?done=1", f"?to={len(PAYLOADS) + 1}", "?to=1&exact=1", ONE_FILE)
    ],
    "review": lambda site: [f"/threads/{site.session.id}/review"],
    "compare": lambda site: [
        f"/compare?a={site.ended.id}@0&b={site.ended.id}&view={view}" for view in VIEWS
    ],
    "thread": lambda site: [
        *(f"/threads/{one.id}" for one in (site.asks, site.failed, site.calls)),
        f"/threads/{site.session.id}",
        f"/threads/{site.ended.id}?from=2&count=2",
    ],
    "search": lambda site: [f"/search?q=XSS07&thread={site.ended.id}", "/search?q=XSS07"],
    "workflows": lambda site: ["/workflows"],
    "workflow": lambda site: [
        "/workflows/hostile",
        f"/workflows/{quote(site.ended.record['workflow'])}",
    ],
    "store": lambda site: ["/store", "/store?gc=1"],
    "node": lambda site: [
        f"/nodes/{hash}?why=1" for hash in (site.steps[0].hash, site.steps[-1].payload["workspace"])
    ],
}

# How many of the payloads a screen shows, where not all.
SHOWN = {"search": 5, "store": 0, "workflows": 1}

# What no page has but a page into which something was injected.
INJECTED = """
const bad = [];
for (const one of document.querySelectorAll("*")) {
  const names = one.getAttributeNames();
  const local = (url) => new URL(url, location).origin === location.origin;
  if (names.some((name) => name.startsWith("on") || ["style", "srcdoc", "autofocus"].includes(name))
    || one.matches("iframe, object, embed, base, img, video, audio, math, style, meta[http-equiv]")
    || one.matches("animate, foreignObject, use, [tabindex]:not([tabindex='0'], [tabindex='-1'])")
    || (one.matches("script, link") && !local(one.src || one.href))
    || (one.matches("script") && !one.src)
    || (one.matches("form") && !local(one.action))
    || (one.matches("[formaction]") && !local(one.formAction))
    || (one.protocol && !/^(https?|mailto):$/.test(one.protocol))
    || (one.protocol && !local(one.href) && !one.rel.includes("noopener")))
    bad.push(one.outerHTML.slice(0, 300));
}
if (window.pwned !== undefined) bad.push("a script ran");
return bad;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return hostile_store.build(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def look(site: Site, chromium: Browser) -> Iterator[Callable[[str], Browser]]:
    """Opens a path of the served store."""
    with serving(site.root) as web:
        chromium.open(web.url)
        chromium.faults()

        def look(path: str) -> Browser:
            chromium.open(web.origin + path)
            return chromium

        yield look


def without_ages(page: Browser) -> str:
    page.run("for (const age of document.querySelectorAll('time')) age.textContent = ''")
    return page.text()


def test_the_checker_is_the_one_that_was_chosen() -> None:
    """`tests/run.sh` takes it from the npm registry."""
    programs.require("npm")
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == AXE_DIGEST


@pytest.mark.parametrize("screen", [name for _, _, name in PAGES])
def test_a_screen(screen: str, site: Site, look: Callable[[str], Browser]) -> None:
    """Markup stays text, the console stays empty, and everybody can use it."""
    seen = set()
    for path in SAMPLES[screen](site):
        page = look(path)
        shown = without_ages(page)
        assert page.run(INJECTED) == []
        page.run("for (const one of document.querySelectorAll('details')) one.open = true")
        seen |= set(SEEN.findall(page.text()))
        assert page.tab_through() == ([], []), "what the keyboard does not reach, or not visibly"
        page.scheme("dark")
        assert page.axe(["color-contrast"]) == []
        page.scheme("light")
        assert page.axe() == []
        for width in (PHONE, WIDE):
            page.size(width)
            assert page.overflow() == 0, f"{path} at {width}"
        assert page.faults() == []
        with page.without_javascript():
            assert without_ages(look(path)) == shown
    assert len(seen) >= SHOWN.get(screen, len(PAYLOADS)), "the payloads are seen as text"


@pytest.mark.parametrize("path", ["/?q={}&state={}&workflow={}", "/{}", "/threads/{}", REVISIONS])
def test_what_an_address_says_stays_text(path: str, look: Callable[[str], Browser]) -> None:
    for payload in (hostile_store.ALL.replace("/", ""), *PAYLOADS[:6]):
        page = look(path.replace("{}", quote(payload, safe="")))
        assert page.run(INJECTED) == []
    page.faults()  # an address that is not found is on the console


def test_a_refused_answer_stays_text(site: Site, look: Callable[[str], Browser]) -> None:
    page = look(f"/threads/{site.asks.id}/answer")
    page.run("document.querySelector('main form').submit()")
    page.until(lambda: "is a required property" in page.text(), "the error")
    assert page.run(INJECTED) == []
    page.faults()
