"""The docker command lines of launch-cluster.sh, era by era, word by word."""

import shlex

import pytest

from pipeline.smoke import era_commands
from pipeline.smoke.era_commands import LaunchParameters

HEAD = LaunchParameters(
    image="vllm-node", own="192.168.177.11", head="192.168.177.11", eth_if="enp1s0f1np1", ib_if="rocep1s0f1"
)
WORKER = LaunchParameters(
    image="vllm-node", own="192.168.177.12", head=HEAD.own, eth_if="enp1s0f1np1", ib_if="rocep1s0f1"
)
FIRST_CACHES = "-v /root/.cache/huggingface -v /root/.cache/vllm -v /root/.cache/flashinfer -v /root/.triton"
LATER_CACHES = f"{FIRST_CACHES} -v /root/.tilelang"
DEFAULTS = "-e NCCL_IGNORE_CPU_AFFINITY=1"
NODE = "--eth-if enp1s0f1np1 --ib-if rocep1s0f1"
ENV = (
    "-e VLLM_HOST_IP={0} -e RAY_NODE_IP_ADDRESS={0} -e RAY_OVERRIDE_NODE_IP_ADDRESS={0}"
    " -e MN_IF_NAME=enp1s0f1np1 -e UCX_NET_DEVICES=enp1s0f1np1 -e NCCL_SOCKET_IFNAME=enp1s0f1np1"
    " -e OMPI_MCA_btl_tcp_if_include=enp1s0f1np1 -e GLOO_SOCKET_IFNAME=enp1s0f1np1 -e TP_SOCKET_IFNAME=enp1s0f1np1"
    " -e NCCL_IB_HCA=rocep1s0f1 -e NCCL_IB_DISABLE=0 -e RAY_memory_monitor_refresh_ms=0"
    " -e RAY_num_prestart_python_workers=0 -e RAY_object_store_memory=1073741824"
)
LAST = "--gpus all -d --rm --network host --name vllm_node"


def test_era_a_runs_the_script_of_the_working_folder_under_the_image_s_entrypoint() -> None:
    options = "-d --privileged --gpus all --rm --ipc=host --network host --name vllm_node"
    begin = f"run {options} {DEFAULTS} {FIRST_CACHES} vllm-node ./run-cluster-node.sh"
    head, worker = shlex.join(era_commands.docker_run("A", HEAD)), shlex.join(era_commands.docker_run("A", WORKER))
    assert head == f"{begin} --role head --host-ip 192.168.177.11 {NODE}"
    assert worker == f"{begin} --role node --host-ip 192.168.177.12 {NODE} --head-ip 192.168.177.11"
    assert "--entrypoint" not in head


def test_era_a_with_mods_waits_for_them_in_a_bash_that_becomes_the_script() -> None:
    *_, bash, option, command = era_commands.docker_run("A", WORKER, mods=True)
    assert (bash, option) == ("bash", "-c")
    assert "while [ ! -f /tmp/mod_done ]; do sleep 1; done;" in command
    assert command.endswith(f"exec {' '.join(era_commands.script_words(WORKER))}")


def test_a_mod_is_copied_run_and_reported_done() -> None:
    assert [shlex.join(words) for words in era_commands.apply_mod("/mods/x", "x")] == [
        "exec vllm_node mkdir -p /workspace/mods/x",
        "cp /mods/x/. vllm_node:/workspace/mods/x",
        "exec vllm_node bash -c 'export WORKSPACE_DIR=$PWD; cd /workspace/mods/x; chmod +x run.sh; ./run.sh'",
        "exec vllm_node touch /tmp/mod_done",
    ]


@pytest.mark.parametrize(
    ("era", "before", "between", "caches"),
    [
        ("B", "", "", FIRST_CACHES),
        ("C", "--entrypoint= --ulimit nofile=1048576 ", "", LATER_CACHES),
        (
            "D",
            "--entrypoint= --ulimit nofile=1048576 ",
            "-e PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ",
            LATER_CACHES,
        ),
    ],
)
def test_later_eras_run_a_container_that_sleeps_with_its_environment(
    era: str, before: str, between: str, caches: str
) -> None:
    for parameters in (HEAD, WORKER):
        assert shlex.join(era_commands.docker_run(era, parameters)) == (
            f"run --privileged --ipc=host {before}{ENV.format(parameters.own)} {between}{LAST} {DEFAULTS} {caches}"
            " vllm-node sleep infinity"
        )


def test_later_eras_start_ray_detached_with_its_output_in_the_container_s_log() -> None:
    flags = "--object-store-memory 1073741824 --num-cpus 2 --node-ip-address"
    end = "--disable-usage-stats >> /proc/1/fd/1 2>&1"
    begin = ["exec", "-d", "vllm_node", "bash", "-c"]
    assert era_commands.start_ray(HEAD) == [
        *begin,
        f"ray start --block --head --port 29501 {flags} 192.168.177.11 --include-dashboard=false {end}",
    ]
    assert era_commands.start_ray(WORKER) == [
        *begin,
        f"ray start --block --address=192.168.177.11:29501 {flags} 192.168.177.12 {end}",
    ]


def test_the_operator_s_arguments_stand_before_the_image_in_every_era() -> None:
    for era in "ABCD":
        words = era_commands.docker_run(
            era, LaunchParameters(image="i", own="a", head="a", eth_if="e", ib_if="b", extra=("-e", "X=1"))
        )
        at = words.index("i")
        assert words[at - 2 : at] == ["-e", "X=1"]


def test_the_limit_of_open_files_is_the_machine_s() -> None:
    lower = LaunchParameters(image="i", own="a", head="a", eth_if="e", ib_if="b", nofile=4096)
    assert "nofile=4096" in era_commands.docker_run("C", lower)
    assert not any("nofile" in word for word in era_commands.docker_run("B", lower))


def test_only_era_a_executes_in_an_interactive_bash() -> None:
    assert era_commands.execute("A", "x") == ["exec", "-i", "vllm_node", "bash", "-i", "-c", "x"]
    for era in "BCD":
        assert era_commands.execute(era, "x") == ["exec", "-i", "vllm_node", "bash", "-c", "x"]


def test_a_detached_command_of_era_a_reads_bashrc_from_the_address_on() -> None:
    command = era_commands.execute_detached("A", "x")[-1]
    assert "/export VLLM_HOST_IP=/,$p" in command
    assert "/root/.bashrc" in command
    assert "bashrc" not in era_commands.execute_detached("B", "x")[-1]


def test_without_ray_workers_are_headless() -> None:
    common = "--nnodes 2 --node-rank {} --master-addr 192.168.177.11 --master-port 29501"
    assert " ".join(era_commands.options_without_ray(HEAD)) == common.format(0)
    assert " ".join(era_commands.options_without_ray(WORKER)) == common.format(1) + " --headless"


def test_era_d_leaves_the_exit_status_where_the_launcher_polls() -> None:
    command = era_commands.run_detached(["python3", "-c", "print('a b')"])[-1]
    assert command == (
        "{ " + shlex.join(["python3", "-c", "print('a b')"]) + "; } >> /proc/1/fd/1 2>&1;"
        " echo $? > /tmp/.launch-cluster-head-exit"
    )
    assert era_commands.read_exit_status() == ["exec", "vllm_node", "cat", "/tmp/.launch-cluster-head-exit"]
    assert era_commands.image_id("i") == ["inspect", "--format", "{{.Id}}", "i"]
