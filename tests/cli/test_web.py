"""`casfs web`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import Cli, until
from tests.support.web import serving

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "starlette":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from casfs.cli.main import main
main()
"""


def test_it_serves_the_store_of_a_directory(cli: Cli) -> None:
    with serving(cli.root) as web:
        assert web.url.startswith("http://127.0.0.1:")
        port = web.host.rpartition(":")[2]
        taken = cli("web", str(cli.root), "--port", port, code=1)
        assert taken.err.startswith(f"casfs: cannot listen on 127.0.0.1, port {port}: ")
        assert web.get("/").status == 200


def test_what_it_refuses(cli: Cli, tmp_path: Path) -> None:
    assert "no store at" in cli("web", str(tmp_path / "nothing"), code=3).err
    assert "--socket excludes" in cli("web", "--socket", "x", "--port", "1", code=2).err
    far = tmp_path / ("x" * 120)
    assert cli("web", "--socket", str(far), code=1).err.startswith("casfs: cannot listen at ")


def test_the_browser_is_opened_without_the_key_in_its_arguments(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    with serving(cli.root, "--open") as web:
        until(lambda: (tmp_path / "arguments").exists() and (tmp_path / "arguments").stat().st_size)
        opened = (tmp_path / "arguments").read_text().strip()
        assert opened == (cli.root / "web.html").as_uri()
        assert f"url={web.url}" in (cli.root / "web.html").read_text()


def test_without_the_extra_one_line_names_it(cli: Cli) -> None:
    command = [sys.executable, "-c", WITHOUT, "--store", str(cli.root), "web"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "casfs: no module starlette; run `pip install 'casfs-store[web]'`\n"
