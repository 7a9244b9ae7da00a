"""A real `casfs web` on loopback, and a client of it with its cookie."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

TIMEOUT_S = 30


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Web:
    """`url`: with the token; `cookie`: of a browser that opened it."""

    url: str
    process: subprocess.Popen[bytes] | None
    cookie: str = field(default="")
    killed: bool = False

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """Sends a request with these headers alone (`_` stands for `-`)."""
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, sent)
            found = connection.getresponse()
            names = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, names, found.read())
        finally:
            connection.close()

    def get(self, path: str = "/", status: int = 200) -> Answer:
        found = self.ask("GET", path, Cookie=self.cookie)
        assert found.status == status, found.text
        return found

    def post(self, path: str, status: int = 303, **form: str) -> Answer:
        """Sends a form as the browser does."""
        found = self.ask(
            "POST",
            path,
            urlencode(form),
            Cookie=self.cookie,
            Origin=self.origin,
            Content_Type="application/x-www-form-urlencoded",
        )
        assert found.status == status, found.text
        return found

    @contextmanager
    def events(self, query: str = "", **headers: str) -> Iterator[Iterator[dict[str, str]]]:
        """Yields the live events, as dicts of their fields."""
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", f"/events{query}", None, {"Cookie": self.cookie, **sent})
            found = connection.getresponse()
            assert found.status == 200
            assert found.headers["content-type"] == "text/event-stream"
            yield _events(found)
        finally:
            connection.close()

    def kill(self) -> None:
        """Ends the process by SIGKILL."""
        self.killed = True
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def log_in(self) -> Answer:
        path = self.url.removeprefix(self.origin)
        found = self.ask("GET", path)
        self.cookie = found.headers["set-cookie"].partition(";")[0]
        return found


def _events(stream: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


def names(event: dict[str, str]) -> list[str]:
    found: list[str] = json.loads(event["data"])["names"]
    return found


@contextmanager
def serving(root: Path, *options: str) -> Iterator[Web]:
    """Starts `casfs web` and logs in; at the end it stops without a word on stderr."""
    command = [sys.executable, "-W", "error", "-P", "-m", "casfs", "--store", str(root)]
    errors = root.parent / "web.err"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*command, "web", "--json", *options], stdout=subprocess.PIPE, stderr=file
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        web = Web(json.loads(line)["url"], process)
        if "--socket" not in options:
            web.log_in()
        yield web
    finally:
        process.terminate()
        code = process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()
    assert (code, errors.read_text()) == (-signal.SIGKILL if web.killed else 0, "")


def visible(html: str) -> str:
    """The text of a page, with one blank between words."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())
