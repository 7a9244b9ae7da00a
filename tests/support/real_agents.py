"""The real agents of the tests: pinned, installed from npm and PyPI, and pointed at a server here.

Each stands in a directory of its own below `.venv/agents`; its programs are linked into `bin`
there. Nothing of the product needs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.support.programs import installing

ROOT = Path(__file__).resolve().parents[2] / ".venv/agents"
BIN = ROOT / "bin"
MODEL = "scripted"
KEY = "key-of-the-test"
SetUp = Callable[[Path, str], Mapping[str, object]]


class Missing(Exception):
    """An agent is not here and cannot be had."""


class Agent(NamedTuple):
    """`package`: with its version; `programs`: as installed; `set_up`: writes its files into a home
    directory and returns its environment, for a model server's URL; `config`: of the `acp` agent,
    so that it asks permission."""

    package: str
    programs: tuple[str, ...]
    set_up: SetUp
    config: Mapping[str, str] = MappingProxyType({})


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def _opencode(home: Path, url: str) -> Mapping[str, object]:
    limits = {"context": 32_000, "output": 4_000}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {MODEL: {"limit": limits}},
    }
    config = {
        "autoupdate": False,
        "model": f"local/{MODEL}",
        "small_model": f"local/{MODEL}",
        "provider": {"local": provider},
        "permission": {"edit": "ask", "bash": "ask"},
    }
    _write(home / ".config/opencode/opencode.json", config)
    return {"XDG_CONFIG_HOME": home / ".config"}


def _qwen(home: Path, url: str) -> Mapping[str, object]:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    _write(home / ".qwen/settings.json", settings)
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}


def _hermes(home: Path, url: str) -> Mapping[str, object]:
    model = {"provider": "custom", "default": MODEL, "base_url": f"{url}/v1", "api_key": KEY}
    _write(home / ".hermes/config.yaml", {"model": {**model, "context_length": 70_000}})
    return {}


def _claude(home: Path, url: str) -> Mapping[str, object]:
    _write(home / ".claude/settings.json", {"permissions": {"defaultMode": "default"}})
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": 1,
        "DISABLE_AUTOUPDATER": 1,
        "IS_SANDBOX": 1,  # it refuses root elsewhere
    }


def _codex(home: Path, url: str) -> Mapping[str, object]:
    config = f"""model = "{MODEL}"
model_provider = "local"
approval_policy = "on-request"
approvals_reviewer = "user"
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
"""
    _write(home / ".codex/config.toml", config)
    return {}


def _opencode_cli(home: Path, url: str) -> Mapping[str, object]:
    variables = _opencode(home, url)
    config = home / ".config/opencode/opencode.json"
    settings = json.loads(config.read_text())
    del settings["permission"]
    _write(config, settings)
    return variables


def _codex_cli(home: Path, url: str) -> Mapping[str, object]:
    _codex(home, url)
    config = home / ".codex/config.toml"
    asks = 'approval_policy = "on-request"\napprovals_reviewer = "user"\n'
    never = 'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
    config.write_text(config.read_text().replace(asks, never))
    return {}


def _gemini(home: Path, url: str) -> Mapping[str, object]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        "model": {"name": "gemini-2.5-pro"},
    }
    _write(home / ".gemini/settings.json", settings)
    return {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url}


CLAUDE = "@agentclientprotocol/claude-agent-acp@0.101.0"
CODEX = "@agentclientprotocol/codex-acp@2.6.0"
AGENTS: Mapping[str, Agent] = {
    "opencode": Agent("opencode-ai@1.18.33", ("opencode",), _opencode),
    "qwen": Agent("@qwen-code/qwen-code@0.15.10", ("qwen",), _qwen),
    "hermes": Agent("hermes-agent[acp]==0.19.0", ("hermes-acp", "hermes"), _hermes),
    "claude": Agent(
        "@agentclientprotocol/claude-agent-acp@0.101.0", ("claude-agent-acp",), _claude
    ),
    "codex": Agent(CODEX, ("codex-acp",), _codex, {"mode": "workspace-write"}),
    "gemini": Agent("@google/gemini-cli@0.61.0", ("gemini",), _gemini),
}


# As people run them, outside casfs.
OUTSIDE: Mapping[str, Agent] = {
    "claude-code": Agent("@anthropic-ai/claude-code@2.1.330", ("claude",), _claude),
    "opencode-cli": Agent("opencode-ai@1.18.33", ("opencode",), _opencode_cli),
    "codex-cli": Agent("@openai/codex@0.169.0", ("codex",), _codex_cli),
}


def _known(name: str) -> Agent:
    return {**AGENTS, **OUTSIDE}[name]


def install(name: str) -> Path:
    """Brings an agent here, once; returns the directory of its programs. Raises Missing."""
    agent = _known(name)
    folder = ROOT / name
    done = folder / "done"
    with installing(folder):
        if done.is_file() and done.read_text() == agent.package:
            return BIN
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        where = _from_pypi(folder, agent) if "==" in agent.package else _from_npm(folder, agent)
        BIN.mkdir(exist_ok=True)
        for program in agent.programs:
            (BIN / program).unlink(missing_ok=True)
            (BIN / program).symlink_to(where / program)
        done.write_text(agent.package)
    return BIN


def _from_pypi(folder: Path, agent: Agent) -> Path:
    _run(sys.executable, "-P", "-m", "venv", folder / "venv")
    pip = (folder / "venv/bin/python", "-P", "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", agent.package)
    return folder / "venv/bin"


def _from_npm(folder: Path, agent: Agent) -> Path:
    options = ("--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder)
    _run("npm", "install", *options, agent.package)
    package = folder / "node_modules" / agent.package.rpartition("@")[0]
    for script in (package / "postinstall.mjs", package / "install.cjs"):
        if script.exists():  # links the program for this machine; downloads nothing
            _run("node", script)
    return folder / "node_modules/.bin"


def _run(*argv: str | Path) -> None:
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, env=_plain_env())
    except FileNotFoundError as error:
        raise Missing(str(error)) from None
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"{argv[0]} ended with {ended.returncode}"]
        raise Missing(said[-1])


def _plain_env() -> dict[str, str]:
    """The environment without the settings of a virtual environment."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def set_up(name: str, home: Path, url: str) -> dict[str, str]:
    """Sets an agent up in `home`; returns its environment."""
    found = _known(name).set_up(home, url)
    return {"HOME": str(home), **{key: str(value) for key, value in found.items()}}
