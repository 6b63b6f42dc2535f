#!/bin/bash
# One Ray node of a cluster, as launch-cluster.sh starts it in the images of its first era (2025-12 to 2026-03).
set -e

usage() {
    cat <<'TEXT'
usage: run-cluster-node.sh --role head|node --host-ip IP --eth-if NAME --ib-if NAME[,NAME...] [--head-ip IP]

  -r, --role      head starts a cluster, node joins one
  -h, --host-ip   this node's address on the cluster's network
  -e, --eth-if    its network interface
  -i, --ib-if     its RDMA device or devices
  -m, --head-ip   the head's address (needed for --role node)
TEXT
}

refuse() {
    echo "run-cluster-node.sh: $1" >&2
    usage >&2
    exit 1
}

role='' host_ip='' eth_if='' ib_if='' head_ip=''
while [ $# -gt 0 ]; do
    case $1 in
        -r | --role) role=${2-} ;;
        -h | --host-ip) host_ip=${2-} ;;
        -e | --eth-if) eth_if=${2-} ;;
        -i | --ib-if) ib_if=${2-} ;;
        -m | --head-ip) head_ip=${2-} ;;
        *) refuse "unknown option: $1" ;;
    esac
    [ $# -ge 2 ] || refuse "$1 needs a value"
    shift 2
done

[ -n "$role" ] || refuse '--role is missing'
[ -n "$host_ip" ] || refuse '--host-ip is missing'
[ -n "$eth_if" ] || refuse '--eth-if is missing'
[ -n "$ib_if" ] || refuse '--ib-if is missing'
case $role in
    head) ;;
    node) [ -n "$head_ip" ] || refuse '--role node needs --head-ip' ;;
    *) refuse "--role is head or node, not $role" ;;
esac

# Exports NAME=VALUE here, and for shells that start later: the launcher reads ~/.bashrc from VLLM_HOST_IP on, so a line
# that is there is replaced where it is.
remember() {
    local line number found='' lines
    export "$1=$2"
    printf -v line 'export %s=%q' "$1" "$2"
    mapfile -t lines < ~/.bashrc
    for number in "${!lines[@]}"; do
        [[ ${lines[number]} == "export $1="* ]] || continue
        lines[number]=$line found=yes
    done
    [ -n "$found" ] || lines+=("$line")
    printf '%s\n' "${lines[@]}" > ~/.bashrc
}

touch ~/.bashrc
remember VLLM_HOST_IP "$host_ip"
remember RAY_NODE_IP_ADDRESS "$host_ip"
remember RAY_OVERRIDE_NODE_IP_ADDRESS "$host_ip"
remember MN_IF_NAME "$eth_if"
remember UCX_NET_DEVICES "$eth_if"
remember NCCL_SOCKET_IFNAME "$eth_if"
remember OMPI_MCA_btl_tcp_if_include "$eth_if"
remember GLOO_SOCKET_IFNAME "$eth_if"
remember TP_SOCKET_IFNAME "$eth_if"
remember NCCL_IB_HCA "$ib_if"
remember NCCL_IB_DISABLE 0
remember RAY_memory_monitor_refresh_ms 0
remember RAY_num_prestart_python_workers 0
remember RAY_object_store_memory 1073741824

if [ "$role" = head ]; then
    exec ray start --block --head --port 6379 --object-store-memory 1073741824 --num-cpus 2 \
        --node-ip-address "$host_ip" --include-dashboard=false --disable-usage-stats
fi
exec ray start --block "--address=$head_ip:6379" --object-store-memory 1073741824 --num-cpus 2 \
    --node-ip-address "$host_ip" --disable-usage-stats
