#!/bin/sh
# Called by strigger with the names of the nodes, once for each change of their state:
#   strigger --set --node --down --flags=PERM --program=/opt/paceline/paceline-node-event.sh
#   strigger --set --node --drained --flags=PERM --program=/opt/paceline/paceline-node-event.sh
# Puts it on the charts of the Paceline jobs that have a worker on such a node. Needs the same
# settings as paceline-epilog.sh.
env_file=${PACELINE_ENV_FILE:-/etc/paceline/annotate.env}
[ -r "$env_file" ] && . "$env_file"
export PACELINE_URL PACELINE_TOKEN

for node in $(scontrol show hostnames "$1"); do
    shown=$(scontrol show node "$node" 2>/dev/null)
    state=$(printf '%s\n' "$shown" | sed -n 's/.*State=\([A-Z+*_]*\).*/\1/p')
    reason=$(printf '%s\n' "$shown" | sed -n 's/^ *Reason=\(.*\)/\1/p')
    case "$state" in
        *DOWN*) kind=node-not-ready ;;
        *DRAIN*) kind=node-drained ;;
        *) continue ;;
    esac
    timeout 10 paceline annotate --match "host=$node" --host "$node" --kind "$kind" \
        --text "${reason:-$state}" --source slurm || echo "paceline: $node was not annotated" >&2
done
exit 0
