#!/bin/sh
# Slurm epilog (slurm.conf: Epilog=): puts a job's failed end on this node on the charts of the
# Paceline jobs that have a worker here. Needs PACELINE_URL and PACELINE_TOKEN (scope ingest), read
# from /etc/paceline/annotate.env if that exists, and `paceline` on the PATH.
#
# An epilog that fails drains the node: whatever happens, this one exits with 0.
env_file=${PACELINE_ENV_FILE:-/etc/paceline/annotate.env}
[ -r "$env_file" ] && . "$env_file"
export PACELINE_URL PACELINE_TOKEN

node=${SLURMD_NODENAME:-$(hostname -s)}
state=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')

case "$state" in
    NODE_FAIL) kind=node-not-ready ;;
    PREEMPTED | REQUEUED | REQUEUE_HOLD) kind=job-requeued ;;
    FAILED | TIMEOUT | OUT_OF_MEMORY | BOOT_FAIL | DEADLINE | CANCELLED) kind=other ;;
    *) exit 0 ;;
esac

timeout 10 paceline annotate --match "host=$node" --host "$node" --kind "$kind" \
    --text "Slurm job $SLURM_JOB_ID: $state" --source slurm \
    --key "slurm $SLURM_JOB_ID $node $state" >/dev/null 2>&1
exit 0
