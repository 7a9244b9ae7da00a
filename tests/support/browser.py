"""A real browser: headless Chromium by Selenium, told what to do and asked what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support import programs

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".venv/axe-core-4.14.1/node_modules/axe-core/axe.min.js"  # by tests/run.sh
FLAGS = (
    "--headless=new --no-sandbox --disable-dev-shm-usage --disable-gpu --disable-quic"
    " --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    " --window-size=1280,900 --hide-scrollbars"
).split()
DEADLINE_S = 60.0  # for what a page must come to show
WIDE, PHONE = 1280, 390

# Runs in each page before its own scripts: what a policy refused, and what had the focus.
WATCH = """
window.refused = [];
window.focused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
}, true);
document.addEventListener("focusin", (event) => {
  const style = getComputedStyle(event.target);
  focused.push([event.target, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0]);
}, true);
"""
# What the keyboard must reach: what can be used, is shown, and is no radio button of a group,
# which the arrow keys go through.
MAX_IDLE_ROUNDS = 3  # of 20 keys each
UNREACHED = """
const can = "a[href], button, input:not([type=hidden]), select, textarea, summary";
const reached = new Set(focused.map(([one]) => one));
return [...document.querySelectorAll(can)]
  .filter((one) => !one.disabled && one.checkVisibility({ visibilityProperty: true }))
  .filter((one) => one.type !== "radio" && !reached.has(one))
  .map((one) => one.outerHTML.slice(0, 200));
"""


class Browser:
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._do("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self._axe = AXE.read_text("utf-8")
        self.size(WIDE)
        self.scheme("light")

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a script in the page, past its policy; returns what it returns."""
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def text(self, selector: str = "body") -> str:
        """The text that a person sees, with one blank between words; empty where it is not."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return " ".join(self.run(script, selector).split())

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits until `condition` returns something true, and returns that."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"timed out waiting for {what}: {self.text()}"
            time.sleep(0.02)
        return found

    # -- how it is looked at ---------------------------------------------------------------

    def size(self, width: int, height: int = 900) -> None:
        self._do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width == PHONE,
        )

    def scheme(self, value: str) -> None:
        """Sets the preferred colours: dark or light. Nothing moves."""
        given = {"prefers-color-scheme": value, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": one} for name, one in given.items()]
        self._do("Emulation.setEmulatedMedia", features=features)

    @contextmanager
    def without_javascript(self) -> Iterator[None]:
        self._do("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield
        finally:
            self._do("Emulation.setScriptExecutionDisabled", value=False)

    # -- the keyboard ----------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Presses Tab, Enter or the space bar."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}[key]
        fields = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self._do("Input.dispatchKeyEvent", type="keyDown", **fields)
        self._do("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text: str) -> None:
        self._do("Input.insertText", text=text)

    def tab_to(self, selector: str) -> None:
        """Moves the focus to an element by the tabulator alone."""
        for _ in range(500):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press("Tab")
        raise AssertionError("the tabulator does not reach it")

    def tab_through(self) -> tuple[list[str], list[str]]:
        """Goes through the page by the tabulator; returns what it did not reach, and what did not
        show that it had the focus."""
        self.run("focused.length = 0; document.activeElement.blur(); scrollTo(0, 0)")
        # On a busy machine a key may be handled after the page was asked: only several rounds
        # without progress are an end.
        idle_rounds = 0
        reached = -1
        while idle_rounds < MAX_IDLE_ROUNDS and self.run(UNREACHED):
            for _ in range(20):
                self.press("Tab")
            before = reached
            reached = self.run("return new Set(focused.map(([one]) => one)).size")
            idle_rounds = 0 if reached > before else idle_rounds + 1
        hidden = "return focused.filter(([, seen]) => !seen).map(([one]) => one.outerHTML)"
        return self.run(UNREACHED), self.run(hidden)

    # -- what is wrong ---------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Returns what the console and the policy complained of since it was asked last."""
        console = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        return console + list(self.run("return window.refused ?? []"))

    def axe(self, rules: Sequence[str] = ()) -> list[str]:
        """Returns what axe-core finds by these rules, or against WCAG A and AA: rule, and the
        elements."""
        self.run(self._axe)
        found = self.driver.execute_async_script(  # type: ignore[no-untyped-call]
            """
            const options = { runOnly: arguments[0], resultTypes: ["violations"] };
            axe.run(document, options).then((found) => arguments[1](found.violations));
            """,
            list(rules or ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")),
        )
        return [
            f"{rule['id']}: {rule['help']}: {node['html'][:300]}: {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]

    def overflow(self) -> int:
        """How far the page can be scrolled to the right."""
        script = "const all = document.scrollingElement; return all.scrollWidth - innerWidth"
        return max(0, int(self.run(script)))

    def heap(self) -> int:
        """Bytes in use by the scripts and the elements of the page, after a collection."""
        self._do("HeapProfiler.collectGarbage")
        found = self._do("Runtime.getHeapUsage")
        return int(found["usedSize"] + found["embedderHeapUsedSize"] + found["backingStorageSize"])

    def picture(self) -> bytes:
        return self.driver.get_screenshot_as_png()

    def _do(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)  # type: ignore[no-untyped-call]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Starts Chromium with a new profile in an empty directory."""
    options = ChromeOptions()
    options.binary_location = programs.path("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = Chrome(options, Service(programs.path("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
