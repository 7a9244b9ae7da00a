"""The extractor model: finds the meta in an output without a fitting block.

It is tried before the corrections: cheaper than asking the agent again, and for agents that do
not follow a format. The server is made to answer with an object that fits the role-schema; it is
validated like any other. The call is recorded as a `react-turn`, which becomes an artifact of the
step, and its tokens count as the step's. Errors are logged and left to the corrections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from casfs.agents import AgentContext
from casfs.errors import CasfsError, Failed
from casfs.store.nodes.schema import Schema
from casfs.system.log import Log, silent
from engine.blocking import blocking
from engine.llm import client, response_schema
from engine.llm.client import Endpoint, Message
from engine.llm.react_session import put_turn
from engine.llm.tools import truncate
from engine.output.parser import Extracted, parse_exact

SYSTEM = (
    "You are given a report. Find the facts that are asked for in it, and answer with one JSON "
    "object that holds them. What the report does not say, you do not make up."
)
MAX_OUTPUT_CHARS = 60_000


@dataclass(frozen=True)
class ModelExtraction:
    """`turn`: the node of the call; `tokens`: spent by it; `extracted`: None where the answer
    does not fit."""

    extracted: Extracted | None
    turn: str
    tokens: int


@dataclass(frozen=True)
class Extractor:
    """`key_env`: the variable that holds the key, which is a secret of every thread."""

    endpoint: Endpoint
    key_env: str | None = None
    log: Log = silent

    async def __call__(
        self, context: AgentContext, output: str, schema: Schema
    ) -> ModelExtraction | None:
        """Asks the model for the meta of an output; None where it gave no answer."""
        messages = _messages(context, output)
        form = response_schema.portable(context.prompt.schema)
        try:
            reply = await client.complete(self.endpoint, messages, schema=form)
        except CasfsError as error:
            self._log_failure(context, error)
            return None
        prompt = "\n\n".join(message["content"] for message in messages)
        turn = await blocking(partial(put_turn, context.store, prompt, reply, []))
        tokens = reply.input_tokens + reply.output_tokens
        try:
            text = context.secrets.redact(reply.text)
            extracted = await blocking(partial(parse_exact, text, schema, context.store))
        except CasfsError as error:
            self._log_failure(context, error)
            return ModelExtraction(None, turn, tokens)
        return ModelExtraction(extracted, turn, tokens)

    def _log_failure(self, context: AgentContext, error: CasfsError) -> None:
        log_fields = {"thread": context.thread, "index": context.step, "role": context.role}
        self.log("extractor failed", **log_fields, error=context.secrets.redact(str(error)))


def from_settings(
    settings: Mapping[str, str], env: Mapping[str, str], log: Log = silent
) -> Extractor | None:
    """Returns the extractor of the settings `extractor.*`; None where they name no model.

    Raises Failed where a part is missing.
    """
    url = settings["extractor.url"]
    model = settings["extractor.model"]
    key_env = settings["extractor.key_env"] or None
    if not model:
        return None
    if not url:
        raise Failed("extractor.model is set and extractor.url is not; see `casfs config`")
    if key_env is not None and not env.get(key_env):
        raise Failed(f"extractor.key_env names {key_env}, which is not set in the environment")
    key = None if key_env is None else env[key_env]
    return Extractor(Endpoint(url, model, key), key_env, log)


def _messages(context: AgentContext, output: str) -> list[Message]:
    report = truncate(output, MAX_OUTPUT_CHARS)
    question = f"# The report\n\n{report}\n\n# What is asked\n\n{context.prompt.ask}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
