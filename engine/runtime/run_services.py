"""What all threads of a daemon share while they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from casfs.store.store import Store
from casfs.system.log import Log, silent
from engine.moderator.decision import Evaluator
from engine.runtime.commit_queue import CommitQueue
from engine.runtime.single_flight import SingleFlight
from engine.runtime.workspace import COPYING, Workspaces

if TYPE_CHECKING:
    from engine.llm.llm_extractor import Extractor


def _evaluator_in_process() -> Evaluator:
    from engine.moderator.conditions import LocalEvaluator  # 60 ms; a daemon has a pool instead

    return LocalEvaluator()


@dataclass(frozen=True)
class RunServices:
    """`store`: without redaction, which each thread adds for its own secrets; `evaluator`: of the
    rules of moderators, by default in this process; `extractor`: the model that finds the meta of
    an output; `single_flight`: of equal steps; `commits`: of all threads, so that they share
    transactions; `keep_waiting_s`: seconds for which an agent's process waits for a person."""

    store: Store
    log: Log = silent
    workspaces: Workspaces = COPYING
    evaluator: Evaluator = field(default_factory=_evaluator_in_process)
    extractor: Extractor | None = None
    single_flight: SingleFlight = field(default_factory=SingleFlight)
    commits: CommitQueue = field(default_factory=CommitQueue)
    keep_waiting_s: int = 0
