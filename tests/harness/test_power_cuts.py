"""A short run of the harness of power cuts; and that it can fail."""

from __future__ import annotations

import pytest

from tests.harness import power_cuts
from tests.support import programs
from tests.support.strategies import skip_without

pytestmark = [
    skip_without("erofs-overlay"),  # needs root, as mounting the disk does
    programs.needs("mkfs.ext4", "losetup", "umount"),
]


def test_what_was_synced_is_there() -> None:
    synced, faults = power_cuts.run(2, 1)
    assert faults == []
    assert synced > 20


def test_the_harness_sees_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = power_cuts.WrittenWorktree.stop

    def claim_more(written: power_cuts.WrittenWorktree) -> None:
        stop(written)
        written.files["src/never-written"] = 1
        written.files["src/nor-this"] = 1

    monkeypatch.setattr(power_cuts.WrittenWorktree, "stop", claim_more)
    assert "src/never-written is '', not 1" in "\n".join(power_cuts.run(1, 1)[1])
