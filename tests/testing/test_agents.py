"""The fakes for authors of agents: an agent runs for one step without the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import casfs
from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Call, Called, Waiting
from casfs.digest import Digest
from casfs.testing import fake_context, run_agent
from tests.support.helpers import ABSENT

ENDED = Called("0" * 26, "", 0, "", "They said.", {"x": 1}, None, 3)


async def answer(context: AgentContext, output: str = "Done.", **more: Any) -> AgentResult:
    detail = context.store.put_node("content", {"text": "how", "artifacts": []})
    return AgentResult(output, detail, **more)


def of(agent: AgentFn) -> Any:
    return lambda config: agent


def test_it_is_given_a_task_a_workspace_and_a_store(tmp_path: Path) -> None:
    async def agent(context: AgentContext) -> AgentResult:
        assert context.workspace is not None
        (context.workspace / "file").write_text(context.prompt.task)
        return await answer(context, f"{context.role} {context.step}")

    with casfs.Store.memory() as store:
        run = run_agent(of(agent), store=store, task="Ada", role="coder", workspace=tmp_path)
        assert run.store is store
        assert run.result.output == "coder 1"
        assert store.node(run.result.detail, "content").payload["text"] == "how"
    assert (tmp_path / "file").read_text() == "Ada"


def test_what_it_reports_is_kept() -> None:
    async def agent(context: AgentContext) -> AgentResult:
        await context.started(17)
        await context.turn(context.store.put(b"turn").hash)
        called = await context.call(Call("w", "Ask.", {}))
        return await answer(context, called.output)

    run = run_agent(of(agent), answer_call=lambda call: ENDED)
    assert (run.pids, run.turns) == ([17], [Digest.of(b"turn").hash])
    assert [call.input for call in run.calls] == ["Ask."]
    assert run.result.output == "They said."
    with pytest.raises(casfs.Failed, match="answer_call"):
        run_agent(of(agent))


def test_a_package_has_its_schemas_and_its_config_checked() -> None:
    def create_agent(config: dict[str, int]) -> AgentFn:
        async def agent(context: AgentContext) -> AgentResult:
            return AgentResult("", context.store.put_node("mine-detail", {"n": config["n"]}))

        return agent

    descriptor = {
        "configSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "schemas": [{"$id": "mine-detail", "type": "object", "required": ["n"]}],
    }
    package = SimpleNamespace(package_descriptor=descriptor, create_agent=create_agent)
    run = run_agent(package, {"n": 3})
    assert run.store.node(run.result.detail, "mine-detail").payload == {"n": 3}
    with pytest.raises(casfs.Invalid, match=r"config \$\.n"):
        run_agent(package, {"n": "three"})


def test_what_it_raises_comes_out_and_waiting_has_an_end() -> None:
    for error in (AgentFailed("broken"), Waiting("human", "asks")):

        async def agent(context: AgentContext, error: Exception = error) -> AgentResult:
            raise error

        with pytest.raises(type(error), match=str(error)):
            run_agent(of(agent))

    async def sleeper(context: AgentContext) -> AgentResult:
        await trio.sleep_forever()

    with pytest.raises(trio.TooSlowError):
        run_agent(of(sleeper), timeout_s=0.01)


def test_a_result_that_the_engine_would_refuse_fails() -> None:
    async def text(context: AgentContext) -> Any:
        return "Done"

    async def absent(context: AgentContext) -> AgentResult:
        return replace(await answer(context), artifacts=(ABSENT,))

    async def no_tree(context: AgentContext) -> AgentResult:
        return replace(await answer(context), workspace=context.store.put(b"").hash)

    with pytest.raises(AssertionError, match="not an AgentResult: 'Done'"):
        run_agent(of(text))
    with pytest.raises(AssertionError, match=f"not in the store: {ABSENT}"):
        run_agent(of(absent))
    with pytest.raises(casfs.NotFound, match="not a node"):
        run_agent(of(no_tree))


async def test_async_code_awaits_the_agent_with_a_context() -> None:
    context = fake_context(answer="yes", conversation={"session": 1})
    assert (context.answer, context.conversation) == ("yes", {"session": 1})
    assert (await answer(context)).output == "Done."
    assert context.store.node(context.agent, "agent").payload["package"] == "tester"
