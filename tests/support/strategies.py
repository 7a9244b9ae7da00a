"""Which workspace strategies this machine and this user have."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.workspaces import strategies, strategy_choice
from tests.support import programs


def skip_without(name: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that opens workspaces by the strategy `name`."""
    reason = strategy_choice.unavailable(strategies.STRATEGIES[name])
    if name == strategies.FUSE:
        reason = programs.missing("fuse-overlayfs", "fusermount3") or reason
    shown = str(reason) if programs.is_missing(reason) else f"{name}: {reason}"
    return pytest.mark.skipif(reason is not None, reason=shown)


def able(name: str) -> Any:
    """Returns the parameter `name`, skipped where that strategy cannot work."""
    return pytest.param(name, marks=skip_without(name))
