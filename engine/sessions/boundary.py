"""What the directory of a session held at an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from casfs.trees.recorded_state import RecordedState


@dataclass(frozen=True)
class InterruptedCall:
    """A call that is over without a report of its end. `id`: of the agent; `foreign`: as of
    Boundary."""

    id: str
    foreign: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Boundary:
    """The directory of a session at an event. `state`: None where it is not recorded; `is_late`: it
    was looked at after the agent had gone on; `foreign`: paths that changed while the call ran and
    that are not known to be its changes, with the reason; `is_unseen`: the daemon did not see the
    call begin, so no change can be attributed to it; `is_torn`: a git repository in it never stood
    still; `interrupted`: calls of the session that are over without a report, up to here; `fault`:
    why `state` is None, or does not have all that the call can have changed."""

    state: RecordedState | None = None
    is_late: bool = False
    foreign: Mapping[str, str] = field(default_factory=dict)
    is_unseen: bool = False
    is_torn: bool = False
    interrupted: tuple[InterruptedCall, ...] = ()
    fault: str | None = None
