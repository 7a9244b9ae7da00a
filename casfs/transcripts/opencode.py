"""A session of opencode (version 1.18), cut: exported, and imported again without its end.

All ids have to be others: with those of a message that is there already, the import makes an empty
session. They sort by time, so only their ends are changed.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from casfs.errors import Failed, NotFound
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.transcripts import json_lines, resume
from casfs.transcripts.json_lines import CutConversation

IDS = re.compile(r'"((?:ses|msg|prt)_[0-9A-Za-z]{8,})"')
FRESH_CHARS = 6
TIMEOUT_S = 60.0


def cut(session: str, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """As `claude.cut`, of a session by its id."""
    exported = _opencode("export", session)
    try:
        value = json.loads(exported[exported.index("{") :])
        messages: list[Any] = value["messages"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failed(f"opencode exports in an unknown form: {error!r}") from None
    kept = _kept(messages, step, call)
    json_lines.refuse_empty(bool(kept))
    text = json.dumps({**value, "messages": kept})
    fresh = {id: _fresh(id) for id in dict.fromkeys(IDS.findall(text))}
    text = IDS.sub(lambda match: f'"{fresh[match[1]]}"', text)
    id = fresh[session]
    with tempfile.TemporaryDirectory(prefix="casfs-") as folder:
        file = Path(folder) / "session.json"
        file.write_text(text, "utf-8")
        _opencode("import", str(file))
    return CutConversation(id, None, resume.command("opencode", id))


def _kept(messages: list[Any], step: StepRecord, call: CallRecord | None) -> list[Any]:
    """Returns the messages before a prompt, or before a call, with what its message has before."""
    prompts = [
        (number, message["info"]["id"], json_lines.joined_texts(message["parts"]))
        for number, message in enumerate(messages)
        if message["info"]["role"] == "user"
    ]
    if call is None:
        return messages[: json_lines.prompt_line(prompts, step)]
    for number, message in enumerate(messages):
        for index, part in enumerate(message["parts"]):
            if part.get("callID") == call.id:
                before = {**message, "parts": message["parts"][:index]}
                has_said = any(kept.get("type") in ("text", "tool") for kept in before["parts"])
                return [*messages[:number], *[before] * has_said]
    raise json_lines.missing_call(call)


def _fresh(id: str) -> str:
    return id[:-FRESH_CHARS] + secrets.token_hex(FRESH_CHARS // 2)


def _opencode(*words: str) -> str:
    """Raises NotFound, Failed."""
    try:
        ended = subprocess.run(
            ["opencode", *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise NotFound(f"opencode cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"opencode {words[0]} gave no answer in {TIMEOUT_S:g} s") from None
    if ended.returncode != 0:
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failed(f"opencode {words[0]} failed: {said}")
    return ended.stdout
