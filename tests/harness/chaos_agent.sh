# An agent of chaos_shared.py, run by bash: $1 logs, $2 seconds, $3 steps between two large files.
# It notes that it begins, with the mark of the step before as its workspace has it, and that it
# ends; a mark is of one run.
log="$1/$CASFS_THREAD"
machine=${CASFS_STORE%/store}
machine=${machine##*/}
marks=(-)
# What its workspace lazily brings cannot be read while object storage is cut off.
patiently() { until "$@"; do sleep 0.5; done; }
copy() { copied=$(cat marks); }
[ ! -e marks ] || { patiently copy && mapfile -t marks <<<"$copied"; }
mark="$CASFS_STEP-$machine-$RANDOM$RANDOM$RANDOM"
printf '%s\n' "$EPOCHREALTIME begin $CASFS_STEP $mark ${marks[-1]} $machine" >>"$log"
append() { printf '%s\n' "$mark" >>marks; }
patiently append
[ $((CASFS_STEP % $3)) -ne 0 ] || head -c 1500000 /dev/urandom >large
[ "$2" = 0 ] || sleep "$2"
stop=false
[ ! -e "$1/stop" ] || stop=true
printf '%s\n' "$EPOCHREALTIME end $CASFS_STEP $mark - $machine" >>"$log"
printf '```json\n{"mark": "%s", "stop": %s}\n```\n' "$mark" "$stop"
