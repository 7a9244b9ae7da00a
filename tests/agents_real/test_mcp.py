"""Real agents call the tools of `casfs mcp`, which `mcp: true` gives them."""

from __future__ import annotations

import pytest

from casfs.maintenance import names
from casfs.threads.threads import ENDED
from tests.agents_real.conftest import REPORT, Play
from tests.agents_real.test_threads import calls
from tests.support.agent_model import script
from tests.support.engine import daemon, steps

pytestmark = pytest.mark.agents
NOTE = "Put by a tool of the store."
# qwen tells its model of such tools only when it asks for them; hermes needs more than its extra.
FIRST = {"qwen": {"query": "select:mcp__casfs__cas_put,mcp__casfs__read_thread"}}


@pytest.mark.parametrize("play", ["opencode", "qwen"], indirect=True)
def test_an_agent_puts_content_and_reads_its_thread(play: Play) -> None:
    tools = [("cas_put", {"text": NOTE}), ("read_thread", {})]
    if play.name in FIRST:
        tools.insert(0, ("tool_search", FIRST[play.name]))
    work = script(*(("tool", *one) for one in tools), ("say", REPORT))
    with daemon(play.root):
        ended = play.wait(play.start({"coder": work}, permissions="allow", mcp=True))
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    texts = [play.text(hash) for hash, _ in names.of_type(play.store, "content")]
    assert NOTE in texts
    (step,) = steps(play.store, ended)
    put, read = calls(play, step["detail"])[-2:]
    assert put["status"] == read["status"] == "completed"
    assert ended.id in play.text(read["result"]), "its own thread"
