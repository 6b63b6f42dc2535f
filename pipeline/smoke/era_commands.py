"""The docker command lines of launch-cluster.sh in its four eras, as values (docs/launcher-contract.md 2.1 to 2.4).

Each function returns the words after `docker` on one machine. All that is substituted is in `LaunchParameters`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.launcher_contract import (
    ADDRESS_VARIABLES,
    CACHE_FOLDERS,
    CONTAINER_NAME,
    INTERFACE_VARIABLES,
    MASTER_PORT,
    NODE_SCRIPT,
    RAY_CPUS,
    RAY_OBJECT_STORE_BYTES,
    RDMA_VARIABLE,
    WORKSPACE,
)

SCRIPT = f"./{NODE_SCRIPT}"
NOFILE = 1048576
MOD_DONE_FILE = "/tmp/mod_done"
MODS_FOLDER = f"{WORKSPACE}/mods"
EXIT_STATUS_FILE = "/tmp/.launch-cluster-head-exit"
TO_CONTAINER_LOG = ">> /proc/1/fd/1 2>&1"
CACHES = {
    "A": CACHE_FOLDERS[:4],
    "B": CACHE_FOLDERS[:4],
    "C": CACHE_FOLDERS,
    "D": CACHE_FOLDERS,
}
"""The host's cache folders that a launcher mounts below /root, by era."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchParameters:
    """What a launcher is told about one machine."""

    image: str
    own: str
    """The machine's address on the cluster's network."""
    head: str
    """The head's address there."""
    eth_if: str
    ib_if: str
    """RDMA devices, with commas between them."""
    nofile: int = NOFILE
    """The limit of open files."""
    extra: tuple[str, ...] = ()
    """The operator's own docker arguments (VLLM_SPARK_EXTRA_DOCKER_ARGS)."""

    @property
    def is_head(self) -> bool:
        """Whether this machine is the head."""
        return self.own == self.head


def docker_run(era: str, parameters: LaunchParameters, *, mods: bool = False) -> list[str]:
    """Returns the `docker run` of an era; with `mods` the container of era A waits for them first."""
    if era == "A":
        script = script_words(parameters)
        command = ["bash", "-c", _wait_for_mods(" ".join(script))] if mods else script
        options = [
            "-d",
            "--privileged",
            "--gpus",
            "all",
            "--rm",
            "--ipc=host",
            "--network",
            "host",
            "--name",
            CONTAINER_NAME,
        ]
        return ["run", *options, *_docker_args(era, parameters), parameters.image, *command]
    options = ["--privileged", "--ipc=host"]
    if era in "CD":
        options += ["--entrypoint=", "--ulimit", f"nofile={parameters.nofile}"]
    options += [word for name, value in environment(parameters).items() for word in ("-e", f"{name}={value}")]
    if era == "D":
        options += ["-e", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    options += ["--gpus", "all", "-d", "--rm", "--network", "host", "--name", CONTAINER_NAME]
    return ["run", *options, *_docker_args(era, parameters), parameters.image, "sleep", "infinity"]


def script_words(parameters: LaunchParameters) -> list[str]:
    """Returns how era A calls run-cluster-node.sh."""
    words = [SCRIPT, "--role", "head" if parameters.is_head else "node", "--host-ip", parameters.own]
    words += ["--eth-if", parameters.eth_if, "--ib-if", parameters.ib_if]
    return words if parameters.is_head else [*words, "--head-ip", parameters.head]


def _wait_for_mods(then: str) -> str:
    return f"echo 'Waiting for mods ...'; while [ ! -f {MOD_DONE_FILE} ]; do sleep 1; done; exec {then}"


def environment(parameters: LaunchParameters) -> dict[str, str]:
    """Returns the variables that eras B to D set by `-e`, and that run-cluster-node.sh exports in era A."""
    return {
        **dict.fromkeys(ADDRESS_VARIABLES, parameters.own),
        **dict.fromkeys(INTERFACE_VARIABLES, parameters.eth_if),
        RDMA_VARIABLE: parameters.ib_if,
        "NCCL_IB_DISABLE": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_num_prestart_python_workers": "0",
        "RAY_object_store_memory": str(RAY_OBJECT_STORE_BYTES),
    }


def _docker_args(era: str, parameters: LaunchParameters) -> list[str]:
    """Returns DOCKER_ARGS. Each cache is a new volume of the container, so that the host's folders stay as they are."""
    caches = [word for cache in CACHES[era] for word in ("-v", f"/root/{cache}")]
    return ["-e", "NCCL_IGNORE_CPU_AFFINITY=1", *caches, *parameters.extra]


def make_workspace() -> list[str]:
    """Returns the first command that eras C and D execute in a container."""
    return ["exec", "-w", "/", CONTAINER_NAME, "mkdir", "-p", WORKSPACE]


def start_ray(parameters: LaunchParameters) -> list[str]:
    """Returns how eras B to D start Ray."""
    flags = f"--object-store-memory {RAY_OBJECT_STORE_BYTES} --num-cpus {RAY_CPUS} --node-ip-address {parameters.own}"
    if parameters.is_head:
        start = f"--head --port {MASTER_PORT} {flags} --include-dashboard=false --disable-usage-stats"
    else:
        start = f"--address={parameters.head}:{MASTER_PORT} {flags} --disable-usage-stats"
    return ["exec", "-d", CONTAINER_NAME, "bash", "-c", f"ray start --block {start} {TO_CONTAINER_LOG}"]


def ray_status() -> list[str]:
    """Returns how every era asks whether Ray is ready."""
    return ["exec", CONTAINER_NAME, "ray", "status"]


def apply_mod(folder: str, name: str) -> list[list[str]]:
    """Returns how era A applies a mod, a folder with a run.sh, and lets the node start."""
    target = f"{MODS_FOLDER}/{name}"
    commands = f"export WORKSPACE_DIR=$PWD; cd {target}; chmod +x run.sh; ./run.sh"
    return [
        ["exec", CONTAINER_NAME, "mkdir", "-p", target],
        ["cp", f"{folder}/.", f"{CONTAINER_NAME}:{target}"],
        ["exec", CONTAINER_NAME, "bash", "-c", commands],
        ["exec", CONTAINER_NAME, "touch", MOD_DONE_FILE],
    ]


def copy_launch_script(file: str) -> list[list[str]]:
    """Returns how era A brings a launch script (2026-02-04) to the head."""
    target = f"{WORKSPACE}/exec-script.sh"
    return [["cp", file, f"{CONTAINER_NAME}:{target}"], ["exec", CONTAINER_NAME, "chmod", "+x", target]]


def execute(era: str, command: str) -> list[str]:
    """Returns what `launch-cluster.sh exec COMMAND` does. Era A takes an interactive bash, which reads ~/.bashrc."""
    return ["exec", "-i", CONTAINER_NAME, "bash", *(["-i"] if era == "A" else []), "-c", command]


def execute_detached(era: str, command: str) -> list[str]:
    """Returns the same with `-d`.

    Era A evaluates ~/.bashrc from VLLM_HOST_IP on, since the first lines of that file may end such a shell.
    """
    if era == "A":
        command = f"eval \"$(sed -n '/export VLLM_HOST_IP=/,$p' /root/.bashrc)\"; {command}"
    return ["exec", "-d", CONTAINER_NAME, "bash", "-c", f"{{ {command}; }} {TO_CONTAINER_LOG}"]


def options_without_ray(parameters: LaunchParameters) -> list[str]:
    """Returns what the later eras append to `vllm serve …` if Ray is not wanted."""
    rank = "0" if parameters.is_head else "1"
    words = ["--nnodes", "2", "--node-rank", rank, "--master-addr", parameters.head, "--master-port", str(MASTER_PORT)]
    return words if parameters.is_head else [*words, "--headless"]


def run_detached(command: Sequence[str]) -> list[str]:
    """Returns how era D runs the head's command: detached, with its exit status in a file that the launcher polls."""
    return [
        "exec",
        "-d",
        CONTAINER_NAME,
        "bash",
        "-c",
        f"{{ {shlex.join(command)}; }} {TO_CONTAINER_LOG}; echo $? > {EXIT_STATUS_FILE}",
    ]


def read_exit_status() -> list[str]:
    """Returns how era D asks whether the head's command has ended; it prints the exit status."""
    return ["exec", CONTAINER_NAME, "cat", EXIT_STATUS_FILE]


def image_id(image: str) -> list[str]:
    """Returns how era D asks each machine for its image before it starts anything."""
    return ["inspect", "--format", "{{.Id}}", image]
