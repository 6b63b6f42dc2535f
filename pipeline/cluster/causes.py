"""A catalogue of why nodes fail, as data, and the search for the first cause that fits a node's log."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why a node fails, and what to do about it."""

    name: str
    pattern: str
    """A regular expression that is searched for in a node's log."""
    explanation: str
    remedy: str
    may_pass: bool = False
    """A second start may well succeed."""


# From the particular to the general: the first that fits names the failure.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "qemu-crash",
        r"qemu: uncaught target signal|QEMU internal SIG",
        "the emulator itself crashed",
        "deploy again; on the real machine nothing is emulated",
        may_pass=True,
    ),
    Cause(
        "platform",
        r"exec format error|Exec format error",
        "the machine cannot run the image's platform",
        "./doitw host says how to register the emulator, or build the image for the machine's platform",
    ),
    Cause(
        "port",
        r"port is already allocated|address already in use|Address already in use|errno: 98",
        "a port that the cluster needs is taken",
        "./doitw ps shows what runs; stop it, or choose another serve.port in pipeline.yaml",
    ),
    Cause(
        "nofile",
        r"error setting rlimit|(?<!like `)OSError: \[Errno 24\]",  # vLLM's harmless warning says "errors like"
        "the limit on open files is too low",
        "raise LimitNOFILE of the Docker engine's service",
    ),
    Cause(
        "token",
        r"AuthenticationError|Unauthenticated|InvalidAuthToken|authentication token",
        "a node has another Ray token than the head, or none",
        "./doitw down, then ./doitw deploy: a deploy gives all nodes one new token",
    ),
    Cause(
        "ray-version",
        r"Version mismatch: The cluster was started with",
        "the nodes run different versions of Ray or Python",
        "all nodes must run one digest: ./doitw down, then ./doitw deploy",
    ),
    Cause(
        "raylet",
        r"The current node timed out during startup|raylet failed to\s+startup",
        "Ray's raylet did not start within the 30 s that Ray gives it",
        "the machine is too busy: deploy again when it is less so",
        may_pass=True,
    ),
    Cause(
        "ray-lost",
        r"No node info found matching attributes|Could not find any running Ray instance",
        "Ray does not find its own raylet in the list of processes",
        "an emulated node needs pipeline/probes/emulation/sitecustomize.py: nothing in the image may unset PYTHONPATH",
    ),
    Cause(
        "worker-never-joined",
        r"Failed to connect to GCS|Timed out while waiting for GCS|GCS has become overloaded",
        "a node does not reach the head's Ray",
        "check the head's address, and that nothing filters Ray's ports between the nodes",
    ),
    Cause(
        "placement",
        r"Cannot provide a placement group|number of required GPUs exceeds",
        "Ray has fewer accelerators than the engine asks for, or under other addresses",
        "every node must have joined with its accelerators, under the address that VLLM_HOST_IP names",
    ),
    Cause(
        "ray-on-cpu",
        r"is not supported on CPU, fallback to mp|current platform \S+ does not support ray",
        "vLLM's CPU platform refuses Ray",
        "the image needs the distribution tandem-cpu-cluster, and the nodes TANDEM_CPU_CLUSTER=1",
    ),
    Cause(
        "shared-memory",
        r"open shm in SHMManager failed",
        "vLLM took ranks on several nodes for ranks of one machine",
        "the image needs the distribution tandem-cpu-cluster, and the nodes TANDEM_CPU_CLUSTER=1",
    ),
    Cause(
        "interface",
        r"Unable to find address for|\[enforce fail at .*gloo.*\] .*ifa|Unable to find interface",
        "a network interface that the configuration names does not exist on a node",
        "GLOO_SOCKET_IFNAME (serve.env) must name an interface of every node",
    ),
    Cause(
        "peer-lost",
        r"DistStoreError|Connection closed by peer|Connection reset by peer|connectFullMesh failed|wait timeout after",
        "a rank lost another, or never met it",
        "the other node's log says why it ended",
    ),
    Cause(
        "unknown-model",
        r"Transformers does not recognize this arch|Model architectures .* (are not supported|failed to be inspected)",
        "the image's vLLM does not know the model",
        "add the architecture to smoke.architectures of the image, and find a version that registers it",
    ),
    Cause(
        "model-missing",
        r"Repo id must be|does not appear to have a file named|Invalid repository ID or local dir|LocalEntryNotFound",
        "the model is not where the engine looks for it",
        "serve.model must be tiny, or a folder that exists on every node",
    ),
    Cause(
        "kv-memory",
        r"No available memory for the cache blocks|KV cache is needed, which is larger than the available",
        "no room is left for the KV cache",
        "a smaller --max-model-len, or more memory for the cache",
    ),
    Cause(
        "memory",
        r"Out of memory|OutOfMemoryError|Cannot allocate memory|std::bad_alloc|MemoryError",
        "a node ran out of memory",
        "free memory on the node, or serve with fewer or smaller buffers",
    ),
    Cause(
        "arguments",
        r"vllm: error: |error: unrecognized arguments|error: argument",
        "vLLM does not take the arguments of serve.args",
        "`vllm serve --help` of the image lists what it takes",
    ),
    Cause(
        "engine-core",
        r"Engine core initialization failed|EngineDeadError|EngineCore encountered a fatal error",
        "the engine's core ended while it started",
        "the first error in the log says why",
    ),
)
WRONG_ANSWER = Cause(
    "wrong-answer",
    "",
    "the ranks together do not compute what one rank does",
    "a node with other weights, a broken fabric or a broken kernel: compare the nodes' models, then their logs",
)
KILLED = Cause(
    "oom-kill",
    "",
    "the kernel killed a node's process for lack of memory",
    "free memory on the node, or serve with fewer or smaller buffers",
)
SIGKILL_EXIT_CODE = 137


def diagnose(logs: Sequence[str], *, oom_killed: bool = False, exit_code: int = 0) -> Cause | None:
    """Returns the cause that the nodes' logs and a container's end tell of; None if the catalogue has none."""
    if oom_killed or exit_code == SIGKILL_EXIT_CODE:
        return KILLED
    for cause in CAUSES:
        if any(re.search(cause.pattern, log) for log in logs):
            return cause
    return None


def cause_named(name: str) -> Cause:
    """Returns the cause of that name."""
    return next(cause for cause in CAUSES if cause.name == name)


def last_words(log: str, count: int = 8) -> str:
    """Returns the lines at the end of a log to show first: its last errors, or its last lines if it has none."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|Exception)\b|\bERROR\b|\b(error|fatal):", line)]
    return "\n".join((errors or lines)[-count:])
