"""The docker command lines of launch-cluster.sh in its four eras, as values (docs/launcher-contract.md 2.1 to 2.4).

Each is what stands behind `docker` on one machine; what had to be put in another's place is in `Terms`, so that every
difference has one place.
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

NAME = CONTAINER_NAME
SCRIPT = f"./{NODE_SCRIPT}"
NOFILE = 1048576
MOD_DONE = "/tmp/mod_done"
MODS = f"{WORKSPACE}/mods"
EXITED = "/tmp/.launch-cluster-head-exit"
LOG = ">> /proc/1/fd/1 2>&1"
# A host's folders, by era, that the launcher mounts where programs keep their caches.
CACHES = {
    "A": CACHE_FOLDERS[:4],
    "B": CACHE_FOLDERS[:4],
    "C": CACHE_FOLDERS,
    "D": CACHE_FOLDERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a launch of one machine is told: image, addresses, interfaces, the limit of open files.

    `own` and `head` are addresses on the cluster's network; `extra` are the operator's own docker arguments
    (VLLM_SPARK_EXTRA_DOCKER_ARGS).
    """

    image: str
    own: str
    head: str
    eth_if: str
    ib_if: str
    nofile: int = NOFILE
    extra: tuple[str, ...] = ()

    @property
    def is_head(self) -> bool:
        """Whether this machine is the head."""
        return self.own == self.head


def run(era: str, terms: Terms, *, mods: bool = False) -> list[str]:
    """`docker run` of an era; with `mods` the container of era A waits for them first."""
    if era == "A":
        script = script_words(terms)
        waits = ["bash", "-c", _waiting(" ".join(script))] if mods else script
        options = ["-d", "--privileged", "--gpus", "all", "--rm", "--ipc=host", "--network", "host", "--name", NAME]
        return ["run", *options, *_docker_args(era, terms), terms.image, *waits]
    options = ["--privileged", "--ipc=host"]
    if era in "CD":
        options += ["--entrypoint=", "--ulimit", f"nofile={terms.nofile}"]
    options += [word for name, value in environment(terms).items() for word in ("-e", f"{name}={value}")]
    if era == "D":
        options += ["-e", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    options += ["--gpus", "all", "-d", "--rm", "--network", "host", "--name", NAME]
    return ["run", *options, *_docker_args(era, terms), terms.image, "sleep", "infinity"]


def script_words(terms: Terms) -> list[str]:
    """How era A calls run-cluster-node.sh."""
    words = [SCRIPT, "--role", "head" if terms.is_head else "node", "--host-ip", terms.own]
    words += ["--eth-if", terms.eth_if, "--ib-if", terms.ib_if]
    return words if terms.is_head else [*words, "--head-ip", terms.head]


def _waiting(then: str) -> str:
    return f"echo 'Waiting for mods ...'; while [ ! -f {MOD_DONE} ]; do sleep 1; done; exec {then}"


def environment(terms: Terms) -> dict[str, str]:
    """What eras B to D give a container by `-e`, and run-cluster-node.sh exports in era A."""
    return {
        **dict.fromkeys(ADDRESS_VARIABLES, terms.own),
        **dict.fromkeys(INTERFACE_VARIABLES, terms.eth_if),
        RDMA_VARIABLE: terms.ib_if,
        "NCCL_IB_DISABLE": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_num_prestart_python_workers": "0",
        "RAY_object_store_memory": str(RAY_OBJECT_STORE_BYTES),
    }


def _docker_args(era: str, terms: Terms) -> list[str]:
    """DOCKER_ARGS; each cache is a volume of the container's own, for no host's folders are to be touched here."""
    caches = [word for cache in CACHES[era] for word in ("-v", f"/root/{cache}")]
    return ["-e", "NCCL_IGNORE_CPU_AFFINITY=1", *caches, *terms.extra]


def workspace() -> list[str]:
    """What eras C and D do before anything else in a container."""
    return ["exec", "-w", "/", NAME, "mkdir", "-p", WORKSPACE]


def ray(terms: Terms) -> list[str]:
    """How eras B to D start Ray."""
    flags = f"--object-store-memory {RAY_OBJECT_STORE_BYTES} --num-cpus {RAY_CPUS} --node-ip-address {terms.own}"
    if terms.is_head:
        start = f"--head --port {MASTER_PORT} {flags} --include-dashboard=false --disable-usage-stats"
    else:
        start = f"--address={terms.head}:{MASTER_PORT} {flags} --disable-usage-stats"
    return ["exec", "-d", NAME, "bash", "-c", f"ray start --block {start} {LOG}"]


def status() -> list[str]:
    """How every era asks whether Ray is ready."""
    return ["exec", NAME, "ray", "status"]


def mod(folder: str, name: str) -> list[list[str]]:
    """How era A applies a mod, a folder with a run.sh, and lets the node start."""
    inside = f"{MODS}/{name}"
    commands = f"export WORKSPACE_DIR=$PWD; cd {inside}; chmod +x run.sh; ./run.sh"
    return [
        ["exec", NAME, "mkdir", "-p", inside],
        ["cp", f"{folder}/.", f"{NAME}:{inside}"],
        ["exec", NAME, "bash", "-c", commands],
        ["exec", NAME, "touch", MOD_DONE],
    ]


def launch_script(file: str) -> list[list[str]]:
    """How era A brings a launch script (2026-02-04) to the head."""
    inside = f"{WORKSPACE}/exec-script.sh"
    return [["cp", file, f"{NAME}:{inside}"], ["exec", NAME, "chmod", "+x", inside]]


def execute(era: str, command: str) -> list[str]:
    """`launch-cluster.sh exec COMMAND`: era A asks for an interactive bash, which reads ~/.bashrc."""
    return ["exec", "-i", NAME, "bash", *(["-i"] if era == "A" else []), "-c", command]


def execute_detached(era: str, command: str) -> list[str]:
    """The same with `-d`: era A evaluates ~/.bashrc from VLLM_HOST_IP on, for its first lines may end such a shell."""
    if era == "A":
        command = f"eval \"$(sed -n '/export VLLM_HOST_IP=/,$p' /root/.bashrc)\"; {command}"
    return ["exec", "-d", NAME, "bash", "-c", f"{{ {command}; }} {LOG}"]


def without_ray(terms: Terms) -> list[str]:
    """What the later eras put behind `vllm serve …` where Ray is not asked for."""
    rank = "0" if terms.is_head else "1"
    words = ["--nnodes", "2", "--node-rank", rank, "--master-addr", terms.head, "--master-port", str(MASTER_PORT)]
    return words if terms.is_head else [*words, "--headless"]


def headless(command: Sequence[str]) -> list[str]:
    """How era D runs the head's command: detached, with its exit status in a file that the launcher polls."""
    return ["exec", "-d", NAME, "bash", "-c", f"{{ {shlex.join(command)}; }} {LOG}; echo $? > {EXITED}"]


def ended() -> list[str]:
    """How era D asks whether the head's command has ended; it prints the exit status."""
    return ["exec", NAME, "cat", EXITED]


def identity(image: str) -> list[str]:
    """How era D asks each machine for its image before it starts any."""
    return ["inspect", "--format", "{{.Id}}", image]
