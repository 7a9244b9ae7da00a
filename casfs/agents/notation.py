"""How people write agents: `NAME`, `NAME:TEXT`, `NAME:JSON`, or a table in a file.

`parse` and `from_table` read one; the result is an AgentSpec, JSON that a request can carry.
`resolved` replaces a profile's name by what the profile holds. A profile is an AgentSpec under a
name of its own (`[agents.NAME]`); its own name is that of a package, never of another profile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from casfs import canonical
from casfs.agents.acp_profiles import PROFILES
from casfs.errors import Invalid

SHORT_FORMS = {  # package: the field of its config that TEXT is
    "acp": "argv",
    "command": "argv",
    "llm": "model",
    "react": "model",
    "hermes": "model",
    "cursor": "model",
    "human": "question",
    "replay": "thread",
}
URL_VARIABLE = "OPENAI_BASE_URL"  # of `llm:MODEL`, `react:MODEL`
KEY_VARIABLE = "OPENAI_API_KEY"
FIELDS = ("package", "version", "config")
_NAME = re.compile(r"(?P<name>[^<>=!~\s:]+)(?P<version>(?:\s*[<>=!~][^:]*)?)", re.S)


class AgentSpec(TypedDict):
    """`name`: of a profile, a package or an agent node's hash; `version`: a PEP 440 specifier, ""
    for any; `text`: a short form that is still to be read."""

    name: str
    version: str
    config: dict[str, Any]
    text: NotRequired[str]


def parse(text: str) -> AgentSpec:
    """Reads NAME[VERSION], optionally with :TEXT or :JSON. Raises Invalid."""
    named, colon, config_text = text.partition(":")
    name_match = _NAME.fullmatch(named)
    if name_match is None:
        raise Invalid("give NAME, NAME:TEXT or NAME:JSON")
    spec = AgentSpec(name=name_match["name"], version=name_match["version"].strip(), config={})
    if not colon or not config_text.lstrip().startswith(("{", "[")):
        return {**spec, "text": config_text} if colon else spec
    try:
        config = canonical.parse(config_text)
    except Invalid as error:
        raise Invalid(f"config is {error}") from None
    if not isinstance(config, dict):
        raise Invalid("config must be a JSON object")
    return {**spec, "config": config}


def from_value(value: object) -> AgentSpec:
    """Reads what a file holds: a text as for `parse`, or {package, version, config}. Raises
    Invalid."""
    if isinstance(value, str):
        return parse(value)
    if not isinstance(value, Mapping):
        raise Invalid("must be a string, or a table of package, version, config")
    if unknown := [name for name in value if name not in FIELDS]:
        raise Invalid(f"{unknown[0]}: no such field; there are {', '.join(FIELDS)}")
    name = value.get("package")
    version = value.get("version", "")
    config = value.get("config")
    if not isinstance(name, str) or not name:
        raise Invalid("package is required: the name of an agent")
    if not isinstance(version, str):
        raise Invalid("version must be a string")
    if config is not None and not isinstance(config, Mapping):
        raise Invalid("config must be a table")
    plain = dict(config or {})
    canonical.encode(plain)
    spec = parse(name) if ":" in name else AgentSpec(name=name, version="", config={})
    config = {**spec["config"], **plain}
    return {**spec, "version": version or spec["version"], "config": config}


def package(value: object) -> AgentSpec:
    """Reads what a file holds where no profile is meant; `name` of a call's agent, the older word,
    stands for `package`. Raises Invalid."""
    if isinstance(value, Mapping) and "name" in value and "package" not in value:
        value = {"package" if key == "name" else key: part for key, part in value.items()}
    return resolved(from_value(value), {})


def resolved(spec: AgentSpec, profiles: Mapping[str, AgentSpec]) -> AgentSpec:
    """Returns the spec of a package: a profile's version and config stand where this one has none,
    a short form is read. Raises Invalid."""
    base = profiles.get(spec["name"])
    if base is not None:
        base = resolved(base, {})
    package = spec["name"] if base is None else base["name"]
    config = {**(base["config"] if base else {}), **spec["config"]}
    if "text" in spec:
        config |= _short_form(package, spec["text"], config)
    version = spec["version"] or (base["version"] if base else "")
    return AgentSpec(name=package, version=version, config=config)


def _short_form(package: str, text: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if package not in SHORT_FORMS:
        import difflib

        near = difflib.get_close_matches(package, SHORT_FORMS, 1)
        hint = f"did you mean {near[0]}?" if near else f"give {package}:{{JSON}}"
        raise Invalid(f"{package} has no short form; {hint}")
    field = SHORT_FORMS[package]
    if not text.strip():
        raise Invalid(f"{package}: must be followed by its {field}")
    if package == "acp" and (profile := PROFILES.get(text.strip())):
        return {**profile.extra_config, **config, "argv": list(profile.argv)}
    if field == "argv":
        try:
            return {"argv": shlex.split(text)}
        except ValueError as error:
            raise Invalid(f"{text!r} is not a command: {error}") from None
    if package in ("llm", "react") and not config.keys() & {"baseUrl", "baseUrlEnv"}:
        return {field: text, "apiKeyEnv": KEY_VARIABLE, **config, "baseUrlEnv": URL_VARIABLE}
    return {field: text}
