"""A session of an outside agent that types, prints and reads the thirty planted secrets: in its
prompts, calls, results, errors and answers, in its transcript and in that of a subagent."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from casfs.attach import spool
from tests.support.engine import until
from tests.support.planted_project import PLANTED
from tests.support.sessions import ClaudeEvents, report

SESSION = "planted"
# Of these what is looked for is a part of the secret, which alone is a word as any other.
PARTS = ("config/id_ed25519", "src/web.txt")


def _spoken() -> str:
    """The secrets as a tool prints them: as they stand, escaped, coded; and alone, as a person
    types them."""
    texts = []
    for name, planted in PLANTED.items():
        text = planted.content.decode("utf-8", "replace")
        texts += [text, json.dumps({"content": text}), base64.b64encode(planted.content).decode()]
        if name not in PARTS:
            texts.append(f"it is {planted.secret}, as I said")
    return "\n".join(texts)


SPOKEN = _spoken()


def play(root: Path, place: Path, home: Path) -> None:
    """Reports the session to the daemon of the store at `root`. `home`: of the transcripts."""
    spool.prepare(root, os.environ)
    transcript = home / f"{SESSION}.jsonl"
    subagents = home / SESSION / "subagents"
    subagents.mkdir(parents=True)
    events = ClaudeEvents(place, session=SESSION)

    def tell(payload: dict[str, Any]) -> None:
        report(root, {**payload, "transcript_path": str(transcript)})

    for number in range(2):
        bash = {"command": f"cat <<'END'\n{SPOKEN}\nEND", "description": SPOKEN}
        read = {"file_path": str(place / "src" / SPOKEN[-60:].strip())}
        write = {"file_path": str(place / "src/alone.txt"), "content": SPOKEN}
        tell(events.prompt(SPOKEN))
        tell(events.call(f"b{number}", **bash))
        response = {"stdout": SPOKEN, "stderr": SPOKEN, "interrupted": False}
        tell(events.result(f"b{number}", response=response, **bash))
        tell(events.call(f"w{number}", "Write", **write))
        tell(events.result(f"w{number}", "Write", response=write, **write))
        tell(events.call(f"f{number}", "Read", **read))
        tell({**events.failure(f"f{number}", SPOKEN), "tool_name": "Read", "tool_input": read})
        tell(events.call(f"t{number}", "Task", prompt=SPOKEN))
        _append(subagents / f"agent-{number}.jsonl", *_messages(f"s{number}"))
        link = json.dumps({"toolUseId": f"t{number}"})
        (subagents / f"agent-{number}.meta.json").write_text(link)
        tell(events.result(f"t{number}", "Task", response=SPOKEN, prompt=SPOKEN))
        _append(transcript, *_messages(f"b{number}"))
        tell(events.stop(SPOKEN))
    until(lambda: not spool.names(root), "an empty spool")
    assert spool.set_aside_count(root) == 0


def _append(path: Path, *values: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)


def _messages(call: str) -> list[dict[str, Any]]:
    """What a transcript says of a prompt, a call and its result, a summary and an answer."""
    asked = [
        {"type": "thinking", "thinking": SPOKEN},
        {"type": "text", "text": SPOKEN},
        {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": SPOKEN}},
    ]
    answered = [{"type": "tool_result", "tool_use_id": call, "content": SPOKEN}]
    return [
        {"type": "user", "message": {"content": SPOKEN}},
        {"type": "assistant", "message": {"id": "1", "model": "opus", "content": asked}},
        {"type": "user", "message": {"content": answered}},
        {"type": "user", "isCompactSummary": True, "message": {"content": SPOKEN}},
        {"type": "assistant", "message": {"id": "2", "model": "opus", "content": SPOKEN}},
    ]
