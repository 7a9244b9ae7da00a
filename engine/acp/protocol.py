"""The messages of the protocol, by the generated models of `agent-client-protocol`.

The models are an extra and take half a second to import: `load` does it in a worker thread, before
anything else here is used. They drop what they do not know, so what is recorded is the message
itself (`engine.acp.recorder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import trio

from casfs.errors import Failed, Invalid
from casfs.system.extras import install_line

VERSION = 1
AUTH_REQUIRED = -32000
COUNTED = (
    ("inputTokens", "promptTokens", "input_tokens"),
    ("outputTokens", "completionTokens", "output_tokens"),
)
_loaded: list[ModuleType] = []


async def load() -> None:
    """Imports the models. Raises Failed where they are not installed."""
    if not _loaded:
        _loaded.append(await trio.to_thread.run_sync(_import))


def _import() -> ModuleType:
    try:
        import acp.schema
    except ImportError as error:
        raise Failed(f"ACP needs an extra: {install_line('acp')} ({error})") from None
    return acp.schema


def make(model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message of ours, of this model."""
    return dump(read(model, fields))


def read(model: str, value: Any) -> Any:
    """Returns a message of the agent as this model. Raises Invalid."""
    try:
        return getattr(_loaded[0], model).model_validate(value)
    except ValueError as error:
        (fault, *_) = error.errors(include_input=False, include_url=False)  # type: ignore[attr-defined]
        location = ".".join(map(str, fault["loc"]))
        raise Invalid(f"not a {model}: {location}: {fault['msg']}") from None


def dump(message: Any) -> dict[str, Any]:
    """Returns a message as JSON, without what its model does not know."""
    document: dict[str, Any] = message.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return document


def current_model(state: Any) -> str:
    """Returns the model that an answer or update names as the session's; empty without one. Many
    agents say it in `models`, which the models of the messages do not know."""
    if not isinstance(state, Mapping):
        return ""
    listed = state.get("configOptions")
    options = listed if isinstance(listed, list) else []
    mappings = [option for option in options if isinstance(option, Mapping)]
    models = [option for option in mappings if option.get("category") == "model"]
    for candidate in (state.get("models"), *models):
        if isinstance(candidate, Mapping):
            name = candidate.get("currentModelId", candidate.get("currentValue"))
            if isinstance(name, str):
                return name
    return ""


def tokens(meta: Any) -> list[int]:
    """Returns the input and output tokens of one model call, or of a prompt, as some agents send
    them; empty without any."""
    meta = meta or {}
    quota = meta.get("quota")
    usage = meta.get("usage", quota.get("token_count") if isinstance(quota, Mapping) else None)
    if not isinstance(usage, Mapping):
        return []
    counts = [next((usage[name] for name in names if name in usage), 0) for names in COUNTED]
    return [count if type(count) is int and count > 0 else 0 for count in counts]
