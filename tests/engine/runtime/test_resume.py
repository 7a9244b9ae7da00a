"""What a person gives with `resume`: an answer that fits, or a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.errors import Conflict, Invalid, NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import ONE, STATUS, begin, carry_on, says, steps, workflow


def start(store: Store, agent: Binding) -> threads.Thread:
    flow, _ = workflows.add(store, workflow(ONE["moderator"], a=STATUS))
    return lifecycle.create(store, ThreadRequest(flow, "Do it.", {"a": agent}))


async def test_an_answer_that_does_not_fit_is_refused(disk_store: Store) -> None:
    asks = await carry_on(disk_store, start(disk_store, Binding("human")))
    for answer in ('{"status": "?"}', "no object"):
        with pytest.raises(Invalid):
            suspension.resume(disk_store, asks, answer, check=True)
    assert threads.get(disk_store, asks.id) == asks
    goes = suspension.resume(disk_store, asks, '{"status": "done"}', check=True)
    assert (await carry_on(disk_store, goes)).status == ENDED


async def test_a_hint_is_in_the_prompt_of_the_step_until_it_is_done(
    disk_store: Store, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    agent = says({}, f"cat >{heard}; grep -q 'Try the other door.' {heard} || exit 1")
    rests = await carry_on(disk_store, begin(disk_store, ONE, {"a": agent}))
    assert rests.status == SUSPENDED
    goes = suspension.resume(disk_store, rests, hint="Try the other door.")
    ended = await carry_on(disk_store, goes)
    assert (ended.status, len(steps(disk_store, ended))) == (ENDED, 1)
    assert "# Hint\n\nTry the other door." in heard.read_text()
    assert ended.record["hint"] is None


async def test_a_hint_is_for_a_failed_step_alone(disk_store: Store) -> None:
    asks = await carry_on(disk_store, start(disk_store, Binding("human")))
    with pytest.raises(Conflict, match="no failed step"):
        suspension.resume(disk_store, asks, '{"status": "done"}', hint="x")


@pytest.mark.parametrize(
    ("config", "error", "reason"),
    [
        ({"workflow": "other", "agents": {}}, NotFound, "no workflow 'other'"),
        ({"workflow": "sample", "agents": {}}, Invalid, "no agent for a"),
        (
            {"workflow": "sample", "agents": {"a": {"name": "human"}, "b": {"name": "human"}}},
            Invalid,
            "no role 'b'",
        ),
    ],
)
def test_a_call_is_checked_at_the_start(
    config: dict[str, object], error: type[Exception], reason: str, disk_store: Store
) -> None:
    inner = Binding("workflow", config)
    with pytest.raises(error, match=reason):
        start(disk_store, inner)
    agents = {"a": {"name": "workflow", "config": config}}
    with pytest.raises(error, match=reason):
        start(disk_store, Binding("workflow", {"workflow": "sample", "agents": agents}))
