"""`casfs web`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from casfs.version import VERSION
from tests.support.engine import Cli
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
    assert VERSION
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


def test_without_the_extra_one_line_names_it(cli: Cli) -> None:
    command = [sys.executable, "-c", WITHOUT, "--store", str(cli.root), "web"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "casfs: no module starlette; run `pip install casfs[web]`\n"
