"""The extras of the distribution: optional parts, and how to install them here."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

DISTRIBUTION = "casfs-store"


class Extra(NamedTuple):
    """`modules`: those that can be imported where the extra is installed."""

    purpose: str
    modules: tuple[str, ...]


EXTRAS = {
    "acp": Extra("agents that speak ACP", ("acp",)),
    "mcp": Extra("`casfs mcp`; `--http` needs `web`, too", ("mcp", "pydantic")),
    "postgres": Extra("stores on `postgresql://`", ("psycopg",)),
    "pyfuse3": Extra("the mount by libfuse3", ("pyfuse3",)),
    "s3": Extra("remotes on `s3://`", ("obstore",)),
    "web": Extra(
        "the dashboard, `casfs web`",
        ("starlette", "hypercorn", "jinja2", "markdown_it", "nh3"),
    ),
}


def install_line(*names: str) -> str:
    """Returns the shell command that installs extras with the installer of this environment."""
    wanted = f"'{DISTRIBUTION}[{','.join(names)}]'"  # quoted: zsh expands brackets
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}"
    if Path(sys.prefix, "uv-receipt.toml").exists():
        return f"uv tool install {wanted}"
    return f"pip install {wanted}"


def missing(name: str) -> str:
    """Returns the command that installs an extra; empty where it is installed or there is none."""
    modules = EXTRAS[name].modules if name in EXTRAS else ()
    return "" if all(map(find_spec, modules)) else install_line(name)
