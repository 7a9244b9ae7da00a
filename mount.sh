#!/usr/bin/env bash
# Set up casfs, start its daemon and mount its store. Safe to run again at any time.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
VENV=$ROOT/.venv
DEFAULT_DIR=$ROOT/mnt
STORE_NOTE=$VENV/casfs-store # the store that was last mounted at DEFAULT_DIR
WEB_NOTE=$VENV/casfs-web     # the process of the demo's dashboard, and what it printed

usage() {
    cat <<'END'
usage: ./mount.sh [DIR]        set up, start the daemon, mount the store at DIR (./mnt)
       ./mount.sh demo [DIR]   the same, then run a workflow on a sample project, show it, and
                               serve the dashboard
       ./mount.sh stop         unmount everything of this store, and of the one that ./mnt
                               shows; stop their daemons, and the dashboard of the demo
       ./mount.sh env          only make the environment (.venv)
       ./mount.sh -h           this text

The store is $CASFS_STORE, else $XDG_DATA_HOME/casfs, else ~/.local/share/casfs.
PYTHON names another python3 (3.11 or newer) to make the environment with.
END
}

say() { printf '%s\n' "$*"; }

# Print a path relative to the current directory, where it is below.
short() {
    local here
    here=$(pwd -P)
    case $1 in
        "$here"/*) say "./${1#"$here"/}" ;;
        *) say "$1" ;;
    esac
}

fail() {
    printf 'mount.sh: %s\n' "$*" >&2
    exit 1
}

# -- the environment ------------------------------------------------------------------

# Print the missing Debian packages without which nothing works, one a line.
required_packages() {
    command -v fusermount3 >/dev/null || say fuse3
    "$1" -I -c 'import ensurepip, venv' 2>/dev/null || say python3-venv
    command -v git >/dev/null || say git
}

# Print the missing packages of optional parts: sandboxed commands of agents, workspaces without
# root, the build of pyfuse3 (the second transport).
optional_packages() {
    command -v bwrap >/dev/null || say bubblewrap
    command -v fuse-overlayfs >/dev/null || say fuse-overlayfs
    build_packages "$1"
}

build_packages() {
    command -v gcc >/dev/null || say gcc
    [ -e /usr/include/stdio.h ] || say libc6-dev
    command -v pkg-config >/dev/null || say pkg-config
    pkg-config --exists fuse3 2>/dev/null || say libfuse3-dev
    "$1" -I - <<'END' || say python3-dev
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
END
}

# Install Debian packages; false where that is not possible.
apt_install() {
    [ $# -gt 0 ] || return 0
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
    say "installing $*"
    export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
    apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

how_to_install() { say "apt-get update && apt-get install -y --no-install-recommends $*"; }

install_packages() {
    local python=$1 required optional
    mapfile -t required < <(required_packages "$python")
    mapfile -t optional < <(optional_packages "$python")
    apt_install "${required[@]}" "${optional[@]}" || apt_install "${required[@]}" || true
    mapfile -t required < <(required_packages "$python")
    mapfile -t optional < <(optional_packages "$python")
    [ ${#required[@]} -eq 0 ] || fail "missing system packages; run this as root, then ./mount.sh again:
  $(how_to_install "${required[@]}" "${optional[@]}")"
    [ ${#optional[@]} -eq 0 ] ||
        say "going on without ${optional[*]}; to have them: $(how_to_install "${optional[@]}")"
}

# Compile once what every command imports. Where PYTHONDONTWRITEBYTECODE is set, as on many build
# machines, each command would do it again: 0.2 s.
compile_modules() {
    (cd "$ROOT" && "$VENV/bin/python" -P -m compileall -q -x /demo/ casfs engine schemas) || true
}

# Print the stamp of the environment: its inputs and the optional packages that are missing.
fingerprint() {
    printf '%s ' "$ROOT"
    cat "$ROOT"/requirements*.lock "$ROOT/pyproject.toml" | sha256sum
    optional_packages "$1"
}

make_env() {
    local python=${PYTHON:-python3} stamp=$VENV/casfs-stamp
    if [ -f "$stamp" ] && [ "$(<"$stamp")" = "$(fingerprint "$python")" ] &&
        [ -x "$VENV/bin/python" ] && [ -x "$VENV/bin/casfs" ] &&
        command -v fusermount3 >/dev/null && command -v git >/dev/null; then
        return
    fi
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python is missing or older than 3.11; install Python 3.11 or set PYTHON"
    install_packages "$python"
    say "making $VENV (a minute at the first time)"
    rm -f "$stamp"
    "$VENV/bin/python" -P -m pip --version >/dev/null 2>&1 || "$python" -P -m venv --clear "$VENV"
    local pip=("$VENV/bin/python" -P -m pip --disable-pip-version-check install -qq)
    # pip warns a root user about a system-wide environment; this one is not.
    export PIP_ROOT_USER_ACTION=ignore
    "${pip[@]}" --require-hashes -r "$ROOT/requirements.lock"
    # The name of the distribution in older environments.
    "$VENV/bin/python" -P -m pip --disable-pip-version-check uninstall -qq -y casfs
    # A plain path: the finder that setuptools would install is imported by each start of Python.
    "${pip[@]}" --no-deps --no-build-isolation --config-settings editable_mode=compat -e "$ROOT"
    if [ -n "$(build_packages "$python")" ] || ! "${pip[@]}" --require-hashes --no-deps \
        -r "$ROOT/requirements-pyfuse3.lock" 2>"$VENV/pyfuse3.log"; then
        say "going on without pyfuse3, which \`--transport libfuse\` alone needs: not built here"
    fi
    fingerprint "$python" >"$stamp"
}

# -- daemon and mount -----------------------------------------------------------------

# Fail, with what to do, where /dev/fuse cannot be opened.
need_fuse() {
    [ -e /dev/fuse ] || fail "no /dev/fuse here; try \`modprobe fuse\`, or start the container \
with --device /dev/fuse --cap-add SYS_ADMIN"
    if [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then
        fail "no permission to open /dev/fuse; run \`sudo chmod 666 /dev/fuse\`"
    fi
}

# Print a part of $STATUS, a `casfs status --json`: store, daemon (its pid, or nothing),
# mounts (one a line).
status_of() {
    "$VENV/bin/python" -P -c '
import json, sys
part = json.loads(sys.argv[1])[sys.argv[2]]
if isinstance(part, dict):
    part = part["pid"]
for value in part if isinstance(part, list) else [part]:
    if value is not None:
        print(value)
' "$STATUS" "$1"
}

# Is a FUSE file system mounted at this absolute path?
is_mounted() {
    local escaped=${1// /\\040}
    grep -qF " $escaped fuse" /proc/self/mounts
}

# Print the source of the casfs mount at this absolute path: the path of its store, or a name
# where that has characters that cannot stand there.
mount_source() {
    local source point type found='' escaped=${1// /\\040}
    while read -r source point type _; do
        if [ "$point" = "$escaped" ] && [ "$type" = fuse.casfs ]; then
            found=$source
        fi
    done </proc/self/mounts
    say "$found"
}

# Unmount a dead mount, which a killed supervisor leaves.
clear_stale() {
    if is_mounted "$1" && ! stat "$1" >/dev/null 2>&1; then
        say "removing a dead mount at $1"
        fusermount3 -u -z "$1"
    fi
}

start() {
    local dir=$1 pid
    casfs init >/dev/null
    STATUS=$(casfs status --json)
    pid=$(status_of daemon)
    if [ -n "$pid" ]; then
        say "the daemon runs already (pid $pid)"
    else
        casfs daemon >/dev/null
        say "daemon started"
    fi
    clear_stale "$dir"
    if is_mounted "$dir" && status_of mounts | grep -xF "$dir" >/dev/null; then
        say "mounted already at $(short "$dir")"
    else
        mkdir -p "$dir"
        casfs mount "$dir" >/dev/null
        say "mounted at $(short "$dir")"
    fi
    [ "$dir" != "$DEFAULT_DIR" ] || status_of store >"$STORE_NOTE"
}

# Start the dashboard, which goes on by itself, and print its address.
start_web() {
    local pid
    stop_web
    (umask 077 && : >"$WEB_NOTE") # the address has the key
    setsid "$VENV/bin/casfs" web >"$WEB_NOTE" 2>&1 </dev/null &
    pid=$!
    until grep -q token= "$WEB_NOTE"; do
        kill -0 "$pid" 2>/dev/null || fail "no dashboard: $(cat "$WEB_NOTE")"
        sleep 0.1
    done
    say "the dashboard: $(cat "$WEB_NOTE")"
    say "$pid" >>"$WEB_NOTE"
}

# Stop the dashboard of the demo. Adds to STOPPED.
stop_web() {
    local pid
    pid=$(tail -n 1 "$WEB_NOTE" 2>/dev/null) || return 0
    rm -f "$WEB_NOTE"
    if [[ $pid =~ ^[0-9]+$ ]] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "casfs web"; then
        kill "$pid"
        tail --pid="$pid" -f /dev/null
        say "dashboard stopped"
        STOPPED+=$pid
    fi
}

# Set STATUS; false where there is no store yet.
read_status() {
    local code=0
    [ -x "$VENV/bin/casfs" ] || return 1
    STATUS=$(casfs status --json 2>&1) || code=$?
    [ "$code" -ne 3 ] || return 1
    [ "$code" -eq 0 ] || fail "$STATUS"
}

# Unmount the workspaces; they keep their changes and can be opened again.
unmount_workspaces() {
    local dir
    while IFS= read -r dir; do
        if grep -qF " ${dir// /\\040} " /proc/self/mounts; then
            casfs umount "$dir" >/dev/null || fail "$dir is in use: leave it, then stop again"
            say "unmounted $(short "$dir"), which keeps its changes; \`casfs workspace open\` shows it" \
                "again, a worktree \`casfs worktree list\`"
        fi
    done < <(casfs workspace list --json | "$VENV/bin/python" -P -c '
import json, sys
for one in json.load(sys.stdin):
    print(one["directory"])
')
}

unmount_all() {
    local dir busy=()
    while IFS= read -r dir; do
        clear_stale "$dir"
        if is_mounted "$dir" && ! casfs umount "$dir" >/dev/null; then
            busy+=("$dir")
        else
            say "unmounted $(short "$dir")"
        fi
    done < <(status_of mounts)
    [ ${#busy[@]} -eq 0 ] || fail "still in use: ${busy[*]}; leave it, then ./mount.sh stop again"
}

# Stop the daemon of the store that the settings name, and unmount all of it. Adds to STOPPED.
stop_store() {
    local mounts pid
    read_status || return 0
    mounts=$(status_of mounts)
    pid=$(status_of daemon)
    STOPPED+=$pid$mounts
    if [ -n "$pid" ]; then
        casfs daemon stop >/dev/null
        say "daemon stopped"
    fi
    if [ -n "$mounts" ]; then
        unmount_workspaces
        unmount_all
    fi
}

# HOME or CASFS_STORE may differ from the start's: the store that ./mnt shows is found by the
# mount's source and by the note of `start`.
stop() {
    local store STOPPED=''
    stop_web
    stop_store
    for store in "$(mount_source "$DEFAULT_DIR")" "$(cat "$STORE_NOTE" 2>/dev/null)"; do
        if [ -d "$store" ]; then
            CASFS_STORE=$store stop_store
        fi
    done
    rm -f "$STORE_NOTE"
    clear_stale "$DEFAULT_DIR"
    if [ -n "$(mount_source "$DEFAULT_DIR")" ]; then
        casfs umount "$DEFAULT_DIR" >/dev/null || fail "cannot unmount $(short "$DEFAULT_DIR")"
        STOPPED+=mount
        say "unmounted $(short "$DEFAULT_DIR"); its store is not known here: a daemon of it goes on"
    fi
    if [ -d "$DEFAULT_DIR" ] && ! is_mounted "$DEFAULT_DIR"; then # another file system may be there
        rmdir --ignore-fail-on-non-empty "$DEFAULT_DIR"
    fi
    [ -n "$STOPPED" ] || say "nothing to stop"
}

print_examples() {
    local dir
    dir=$(short "$1")
    cat <<END

The store $(status_of store) is mounted at $dir. Try:
  export PATH="$VENV/bin:\$PATH"
  casfs checkpoint create mine SOME_DIR       # then: ls $dir/trees/mine/latest
  casfs put SOME_FILE                         # then: cat $dir/blobs/HASH
  casfs thread list                           # then: ls $dir/threads/ID/steps
  ./mount.sh demo                             # a workflow on a sample project
  ./mount.sh stop                             # unmount and stop
END
}

# -- the command line -----------------------------------------------------------------

main() {
    local verb=mount dir
    case ${1-} in
        -h | --help) usage && return ;;
        demo | stop | env) verb=$1 && shift ;;
        -*) usage >&2 && return 2 ;;
    esac
    if [ $# -gt 1 ] || { [ $# -eq 1 ] && [[ $verb =~ ^(stop|env)$ ]]; }; then
        usage >&2
        return 2
    fi
    dir=$(realpath -m -- "${1:-$DEFAULT_DIR}")
    export PATH="$VENV/bin:$PATH" # the daemon's too: the demo's agents run casfs
    if [ "$verb" = stop ]; then
        stop
        return
    fi
    # One command a line from here: inside `&&` or `if`, set -e would be off.
    make_env
    compile_modules
    [ "$verb" != env ] || return 0
    need_fuse
    start "$dir"
    case $verb in
        mount) print_examples "$dir" ;;
        demo)
            casfs demo "$(short "$dir")"
            start_web
            say "./mount.sh stop ends all of it. For \`casfs\` in this shell:"
            say "  export PATH=\"$VENV/bin:\$PATH\""
            ;;
    esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@" # tests/run.sh takes the functions only
