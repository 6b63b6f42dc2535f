#!/bin/bash
# Runs as the command of a container whose ENTRYPOINT is tried (pipeline/smoke/entrypoint.py). Reports what the command
# got, as lines `@@entrypoint NAME=VALUE`: its arguments, folder, user, environment and parent; then the signal TERM, if
# it comes.

report() {
    local value=${2//\\/\\\\}
    printf '\n@@entrypoint %s=%s\n' "$1" "${value//$'\n'/\\n}"
}

trap 'report signal TERM; exit 0' TERM
for argument in "$@"; do report argument "$argument"; done
# By the name that the caller has for it: WORKDIR may be a link, or end in a slash.
if [ -n "$TANDEM_WORKDIR" ] && [ . -ef "$TANDEM_WORKDIR" ]; then report folder "$TANDEM_WORKDIR"; else report folder "$PWD"; fi
report user "$EUID"
report VLLM_HOST_IP "$VLLM_HOST_IP"
report TANDEM_TEXT "$TANDEM_TEXT"
read -r parent 2> /dev/null < "/proc/$PPID/comm"
report parent "${parent:-none}"
report ready yes
sleep infinity &
wait
