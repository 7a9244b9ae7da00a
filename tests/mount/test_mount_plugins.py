"""Plugins on a real mount: there at once, and a version that was refreshed as well."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from casfs.plugins import transfer
from tests.support.helpers import Program, write_tree
from tests.support.programs import needs_device
from tests.support.served import Mount

pytestmark = needs_device


def test_plugins_are_shown_as_they_are_synced(mount: Mount, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "p", {"run": Program(b"#!/bin/sh\necho it runs\n"), "d": {}})
    shown = mount.path / "trees" / "plugins"
    assert not shown.exists()
    env = {"PATH": os.defpath}
    transfer.sync(mount.store, "linter", "1.0", str(source), env)
    assert os.listdir(mount.path / "trees") == ["plugins"]
    assert os.listdir(shown / "linter") == ["1.0"]
    diff = ["diff", "-r", source, shown / "linter" / "1.0"]
    assert subprocess.run(diff, capture_output=True).returncode == 0
    ran = subprocess.run([shown / "linter" / "1.0" / "run"], capture_output=True, check=True)
    assert ran.stdout == b"it runs\n"

    (source / "run").write_text("#!/bin/sh\necho anew\n")
    (source / "new").write_text("new\n")
    assert not (shown / "linter" / "1.0" / "new").exists()
    transfer.sync(mount.store, "linter", "1.0", str(source), env, refresh=True)
    ran = subprocess.run([shown / "linter" / "1.0" / "run"], capture_output=True, check=True)
    assert ran.stdout == b"anew\n"
    assert (shown / "linter" / "1.0" / "new").read_text() == "new\n"
    transfer.sync(mount.store, "linter", "1.1", str(source), env)
    assert sorted(os.listdir(shown / "linter")) == ["1.0", "1.1"]
