"""The command agent, with real commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import HUMAN, AgentContext, AgentFailed, AgentResult, Waiting
from casfs.agents.prompt import Prompt
from casfs.errors import Failed
from casfs.store.store import Store
from engine import content
from engine.agents.command import create_agent
from engine.processes.subprocesses import TimedOut
from engine.threads.record import truncate_reason
from tests.support.agents import RUN
from tests.support.engine import OPEN, shell

PROMPT = Prompt("You are it.", "Grüße.", (), "Say it.", OPEN)


def context(store: Store, **more: Any) -> AgentContext:
    settings: dict[str, Any] = {
        "thread": "01K00000000000000000000000",
        "role": "tester",
        "step": 7,
        "prompt": PROMPT,
        "workspace": None,
        "run": RUN,
        "env": {"PATH": os.environ["PATH"], "OWN": "kept", "CASFS_STORE": "another"},
        **more,
    }
    return AgentContext(store=store, **settings)


def asked(store: Store, script: str, **more: Any) -> Awaitable[AgentResult]:
    return create_agent(shell(script))(context(store, **more))


async def test_the_prompt_comes_on_stdin(store: Store) -> None:
    assert (await asked(store, "cat")).output == PROMPT.text()


async def test_what_it_sees(disk_store: Store, tmp_path: Path) -> None:
    names = "STORE THREAD ROLE STEP RUN".split()
    script = "pwd; " + "; ".join(f'echo "$CASFS_{name}"' for name in names) + '; echo "$OWN"'
    result = await asked(disk_store, script, workspace=tmp_path)
    assert result.output.split() == [
        str(tmp_path),
        str(disk_store.root),
        "01K00000000000000000000000",
        "tester",
        "7",
        RUN,
        "kept",
    ]


async def test_casfs_is_found_last_on_its_path(store: Store) -> None:
    path = (await asked(store, 'echo "$PATH"', env={"PATH": "/usr/bin:/bin"})).output.strip()
    assert path == f"/usr/bin:/bin:{Path(sys.executable).parent}"


async def test_the_detail_says_what_happened(store: Store) -> None:
    result = await asked(store, "echo out; echo err >&2")
    detail = store.node(result.detail.hash, "command-detail").payload
    assert detail["argv"] == shell("echo out; echo err >&2")["argv"]
    assert detail["exitCode"] == 0
    assert store.get(detail["stdout"]) == b"out\n"
    assert store.get(detail["stderr"]) == b"err\n"
    assert result.artifacts == ()


async def test_output_that_is_not_utf_8_is_kept_as_it_was(store: Store) -> None:
    result = await asked(store, r"printf 'caf\351 \303\251\n'")
    assert result.output == "caf\ufffd é\n"
    assert [store.get(hash) for hash in result.artifacts] == [b"caf\xe9 \xc3\xa9\n"]


async def test_a_replacement_character_of_its_own_is_no_damage(store: Store) -> None:
    result = await asked(store, r"printf '\357\277\275'")
    assert (result.output, result.artifacts) == ("\ufffd", ())


async def test_a_failure_keeps_its_detail(store: Store) -> None:
    with pytest.raises(AgentFailed) as raised:
        await asked(store, "echo half; printf 'first\nlast words\n' >&2; exit 3")
    assert str(raised.value) == "sh exited with 3: last words"
    assert raised.value.detail is not None
    detail = store.node(raised.value.detail, "command-detail").payload
    assert detail["exitCode"] == 3
    assert store.get(detail["stdout"]) == b"half\n"


async def test_a_failure_without_a_word(store: Store) -> None:
    with pytest.raises(AgentFailed, match=r"^sh exited with -15: no output$"):
        await asked(store, "kill $$")


async def test_a_failure_without_stderr_has_the_last_line_of_stdout(store: Store) -> None:
    with pytest.raises(AgentFailed, match=r"^sh exited with 1: 2 tests failed$"):
        await asked(store, "printf 'testing\n2 tests failed\n\n'; exit 1")


async def test_the_last_of_many_words(store: Store) -> None:
    with pytest.raises(AgentFailed) as raised:
        await asked(store, "yes long | head -c 5000 | tr '\\n' ' ' >&2; echo end >&2; exit 1")
    assert str(raised.value).endswith("long end")
    assert len(str(raised.value)) < 400


async def test_the_end_of_stderr_survives_the_record_of_the_reason(store: Store) -> None:
    """Whose limit counts bytes, and cuts the other end."""
    with pytest.raises(AgentFailed) as raised:
        await asked(store, "yes 日本語 | head -n 500 | tr '\\n' ' ' >&2; echo end >&2; exit 1")
    assert truncate_reason(f"tester: {raised.value}").endswith(" end")


async def test_what_does_not_work_is_raised(store: Store) -> None:
    with pytest.raises(Failed, match="cannot run /no/such"):
        await create_agent({"argv": ["/no/such"]})(context(store))


async def test_what_it_had_said_when_its_time_was_up(store: Store) -> None:
    agent = create_agent({"argv": ["sh", "-c", "echo begun; exec sleep 600"], "timeoutS": 0.5})
    with pytest.raises(AgentFailed, match=r"sh took longer than 0\.5 s") as raised:
        await agent(context(store))
    assert isinstance(raised.value.__cause__, TimedOut)
    assert raised.value.detail is not None
    detail = store.node(raised.value.detail, "command-detail").payload
    assert (store.get(detail["stdout"]), detail["exitCode"]) == (b"begun\n", -15)


async def test_a_program_asks_a_person_by_its_exit_code(store: Store) -> None:
    script = """
    if [ -z "$CASFS_ANSWER" ]; then printf 'Which one?\\nThe red or the blue?\\n'; exit 75; fi
    echo "$CASFS_ANSWER"; tail -n 1
    """
    with pytest.raises(Waiting, match=r"^tester: Which one\?$") as caught:
        await asked(store, script)
    assert caught.value.cause == HUMAN
    assert caught.value.question is not None
    assert content.text(store, caught.value.question) == "Which one?\nThe red or the blue?"
    assert (await asked(store, script, answer="blue")).output == "blue\nblue\n"


async def test_exit_75_without_a_question_is_a_failure(store: Store) -> None:
    with pytest.raises(AgentFailed, match="exited with 75"):
        await asked(store, "exit 75")
