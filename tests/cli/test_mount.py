"""casfs mount and casfs umount."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.engine import (
    Cli,
    alive,
    until,
)
from tests.support.programs import needs_device


def test_mount_points(cli: Cli, project: Path) -> None:
    inside = cli.root / "mnt"
    inside.mkdir()
    assert "is inside the store" in cli.refused("mount", inside, code=4)
    assert "is not empty" in cli.refused("mount", project, code=4)
    assert "is not a directory" in cli.refused("mount", project / "run", code=4)
    assert "make its parent first" in cli.refused("mount", project / "gone/below", code=3)
    assert not (project / "gone").exists()
    refused = cli.refused("mount", cli.root / "inside", code=4)
    assert "is inside the store" in refused
    assert not (cli.root / "inside").exists(), "what a failed mount made is gone"
    assert "no casfs mount" in cli.refused("umount", project, code=3)


@needs_device
def test_mount_and_umount(cli: Cli, tmp_path: Path) -> None:
    point = tmp_path / "point"  # made by the command
    hash = cli("put", "-", stdin=b"seen").word
    try:
        shown = cli("mount", point, "--json").json
        assert (shown["mount"], alive(shown["pid"])) == (str(point), True)
        assert (point / "blobs" / hash).read_bytes() == b"seen"
        assert cli("status", "--json").json["mounts"] == [str(point)]
        assert f"mount   {point}\n" in cli("status").text
        assert "is a mount point already" in cli.refused("mount", point, code=4)
        with (point / "blobs" / hash).open():
            assert "is busy" in cli.refused("umount", point, code=4)
        assert cli("umount", point, "--json").json == {"unmounted": str(point)}
        until(lambda: not alive(shown["pid"]), "the end of the mount")
    finally:
        subprocess.run(["fusermount3", "-u", "-z", point], capture_output=True)
    assert os.listdir(point) == []
