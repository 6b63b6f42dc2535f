#!/bin/bash
# Says what a launcher would find in this image: facts as lines `@@fact NAME=VALUE`, judged outside.
# Run as launchers run things: docker exec … bash -c, neither a login shell nor an interactive one.

fact() {
    printf '\n@@fact %s=%s\n' "$1" "${2//$'\n'/ }"
}

fact uid "$(id -u)"
fact home "$HOME"
fact workdir "$PWD"
read -r pid1 < /proc/1/comm
fact pid1 "$pid1"

for folder in "$HOME" "$PWD" /workspace /tmp; do
    if (: > "$folder/.tandem-probe") 2> /dev/null; then
        rm -f "$folder/.tandem-probe"
        fact "writable:$folder" yes
    else
        fact "writable:$folder" no
    fi
done
if (: >> /proc/1/fd/1) 2> /dev/null; then fact writable:/proc/1/fd/1 yes; else fact writable:/proc/1/fd/1 no; fi

for tool in sleep mkdir touch chmod cat rm grep sed ray vllm python3 git curl patch uv pip earlyoom; do
    fact "tool:$tool" "$(command -v "$tool")"
done

# A console script whose interpreter is not there is found on PATH all the same.
for tool in ray vllm; do
    path=$(command -v "$tool") || continue
    IFS= read -r first < "$path"
    interpreter=${first#'#!'}
    interpreter=${interpreter%% *}
    [ "$interpreter" = "$first" ] || [ -x "$interpreter" ] || fact "broken:$tool" "$first"
done

# Which Ray each `ray` on PATH starts, and under which Python; asked only where it may be another one than Python's, since that takes seconds.
rays=()
for path in $(type -ap ray); do
    for known in "${rays[@]}"; do [ "$known" -ef "$path" ] && continue 2; done
    rays+=("$path")
done
IFS= read -r first < "${rays[0]:-/dev/null}"
if [ ${#rays[@]} -gt 1 ] || [[ ${first#'#!'} != "$(command -v python3)"* ]]; then
    for path in "${rays[@]}"; do
        output=$(timeout 120 "$path" --version 2> /dev/null < /dev/null)
        IFS= read -r first < "$path"
        interpreter=${first#'#!'} python=
        [[ $interpreter == *python* ]] &&
            python=$(timeout 60 $interpreter -c 'import platform; print(platform.python_version())' 2> /dev/null)
        fact "ray:$path" "${output##* }/$python"
    done
fi

# Of Debian's rdma-core.
if [ -d /etc/rdma ] || [ -e /usr/lib/udev/rdma_rename ]; then fact rdma-core yes; else fact rdma-core no; fi

fact vllm312 "$(readlink -e /usr/local/lib/python3.12/dist-packages/vllm)"

for folder in huggingface vllm flashinfer; do
    fact "hidden:/root/.cache/$folder" "$(ls -A "/root/.cache/$folder" 2> /dev/null)"
done
for folder in .triton .tilelang; do
    fact "hidden:/root/$folder" "$(ls -A "/root/$folder" 2> /dev/null)"
done

# run-cluster-node.sh, with a `ray` in front of the real one that only notes how it was called.
script=./run-cluster-node.sh
if [ ! -e "$script" ]; then
    fact script missing
    exit 0
fi
[ -x "$script" ] || fact script 'not executable'
IFS= read -r first < "$script"
fact script:first "$first"

stage=$(mktemp -d)
mkdir "$stage/bin" "$stage/home"
cat > "$stage/bin/ray" <<'RAY'
#!/bin/bash
printf '%s ' "$@" > "$RECORD.argv"
export -p > "$RECORD.env"
read -r parent < "/proc/$PPID/comm"
echo "$parent" > "$RECORD.parent"
RAY
chmod 755 "$stage/bin/ray"

exported() {
    sed -n 's/^declare -x //p' | grep -E '^(VLLM_|RAY_|NCCL_|MN_|UCX_|OMPI_|GLOO_|TP_)'
}

call() {
    local name=$1 output status
    shift
    export RECORD=$stage/$name
    output=$(HOME=$stage/home PATH=$stage/bin:$PATH timeout 60 "$script" "$@" 2>&1 < /dev/null)
    status=$?
    fact "call:$name:status" "$status"
    fact "call:$name:output" "${output:0:400}"
    fact "call:$name:argv" "$(cat "$RECORD.argv" 2> /dev/null)"
    fact "call:$name:parent" "$(cat "$RECORD.parent" 2> /dev/null)"
    fact "call:$name:env" "$(cat "$RECORD.env" 2> /dev/null | exported)"
}

call unknown --no-such-option
call nothing
call no-address --role head --host-ip '' --eth-if eth7 --ib-if mlx7
call no-head-ip --role node --host-ip 10.0.0.2 --eth-if eth7 --ib-if mlx7
call head --role head --host-ip 10.0.0.1 --eth-if eth7 --ib-if mlx7,mlx8
call node -r node -h 10.0.0.2 -e eth7 -i mlx7,mlx8 -m 10.0.0.1
fact bashrc "$(cat "$stage/home/.bashrc" 2> /dev/null)"
# As launchers do for what they start in the background.
later=$(sed -n '/export VLLM_HOST_IP=/,$p' "$stage/home/.bashrc" 2> /dev/null)
fact bashrc:env "$(env -i HOME="$stage/home" PATH="$PATH" bash -c "$later"$'\nexport -p' 2> /dev/null | exported)"
rm -rf "$stage"
