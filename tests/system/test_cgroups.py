"""Where groups of this process are made, as the kernel's tables say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.system import cgroups

OWN = r"0::/my slice/unit\x2da.service/casfs-1"
TABLE = r"""
21 1 0:5 / /proc rw - proc proc rw
30 21 0:27 /my\040slice/unit\134x2da.service /mnt/with\040space rw - cgroup2 cgroup2 rw
"""


def test_escapes_of_the_mount_table_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"cgroup": [OWN], "mountinfo": TABLE.split("\n")[1:-1]}
    monkeypatch.setattr(cgroups, "_lines", tables.__getitem__)
    assert cgroups.parents() == {cgroups.UNIFIED: Path("/mnt/with space")}
