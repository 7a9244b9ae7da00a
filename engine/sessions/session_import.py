"""Sessions that are over, or were not attached: threads from the transcripts that agents have left.

A transcript says what was asked, said and done, but not what the directory held: such a thread has
no trees. One whose session is recorded already is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads.threads import Thread
from casfs.transcripts import claude, codex, gemini, json_lines, transcript_files
from casfs.transcripts.json_lines import Lines
from casfs.transcripts.messages import Message, ModelMessage, PromptMessage, ResultMessage
from engine.sessions import session_thread, transcript_reader
from engine.sessions.boundary import Boundary
from engine.sessions.events import Kind, SessionEvent, ToolResult, absolute_path, session_id
from engine.sessions.hook_events import NAMES, tool_call
from engine.sessions.recorder import SessionRecorder

PROMPTS = {"claude": claude.prompts, "codex": codex.prompts, "gemini": gemini.prompts}


def import_session(
    store: Store, env: Mapping[str, str], agent: str, transcript: Path
) -> Thread | None:
    """Stores the thread of a session; returns None where it is there already, or nothing was asked.
    Raises NotFound, Failed, Invalid."""
    lines = json_lines.read(transcript)
    id, directory = transcript_files.ABOUT[agent](transcript, lines)
    try:
        first = SessionEvent(
            Kind.BEGIN, agent, session_id(id), absolute_path(directory), 0, 0, str(transcript)
        )
    except ValueError as error:
        raise Invalid(f"{transcript} has no {error} that can be one") from None
    if session_thread.find(store, first) is not None:
        return None
    recorder = SessionRecorder(store, env)
    thread = None
    begin = 0
    steps = list(_steps(agent, lines))
    for number, raw in enumerate(steps):
        part = transcript_reader.store_part(store, agent, raw, begin)
        begin = part.end
        # A subagent that no step is known to have called is of the last one.
        if raw is not steps[-1]:
            part = replace(part, callers=part.by_call.keys())
        for index, event in enumerate(_events(first, part.messages)):
            name = f"import-{hash_bytes(transcript.name.encode())[:8]}-{number}-{index}"
            is_end = event.kind is Kind.ANSWER
            thread = recorder.record(event, Boundary(), name, part if is_end else None) or thread
    return thread


def _steps(agent: str, lines: Lines) -> Iterator[bytes]:
    """Yields the lines of each prompt, up to the next one; what is before the first belongs to
    it."""
    begins = [number for number, _, _ in PROMPTS[agent](lines)]
    if not begins:  # it was opened, and nothing was asked
        return
    for begin, end in zip(begins, [*begins[1:], len(lines.raw)], strict=True):
        yield b"".join(lines.raw[0 if begin == begins[0] else begin : end])


def _events(first: SessionEvent, messages: tuple[Message, ...]) -> Iterator[SessionEvent]:
    """Yields what hooks would have reported of one prompt."""
    agent = first.agent
    answer = ""
    time = 0
    tools = {}
    for message in messages:
        time = getattr(message, "time_ms", 0) or time
        moment = replace(first, reported_ms=time)
        match message:
            case PromptMessage():
                yield replace(moment, kind=Kind.PROMPT, text=message.text, id=message.id)
            case ModelMessage():
                for call in message.calls:
                    requested = tool_call(NAMES[agent], call.id, call.tool, call.arguments)
                    tools[call.id] = requested
                    yield replace(moment, kind=Kind.CALL, call=requested)
                answer = message.text if not message.calls else answer
            case ResultMessage() if message.call_id in tools:
                result = ToolResult(message.text, message.is_failure)
                made_call = tools[message.call_id]
                yield replace(moment, kind=Kind.RESULT, call=made_call, result=result)
    yield replace(first, kind=Kind.ANSWER, text=answer, reported_ms=time)
