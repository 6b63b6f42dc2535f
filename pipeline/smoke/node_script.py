"""Judges how run-cluster-node.sh behaved when probes/launcher_facts.sh called it (docs/launcher-contract.md 2.1)."""

from collections.abc import Iterator, Mapping

from pipeline.config.launcher_contract import ADDRESS_VARIABLES, INTERFACE_VARIABLES, RAY_PORT_ERA_A, RDMA_VARIABLE
from pipeline.config.launcher_contract import NODE_SCRIPT as SCRIPT

CALLS = {
    "head": ("10.0.0.1", ("--head", f"--port {RAY_PORT_ERA_A}")),
    "node": ("10.0.0.2", (f"--address=10.0.0.1:{RAY_PORT_ERA_A}",)),
}
"""The calls of the probe that must work: the address given, and the options that Ray must then get."""
REFUSALS = {
    "unknown": "an unknown option",
    "nothing": "a call without its mandatory options",
    "no-address": "an empty --host-ip",
    "no-head-ip": "role node without --head-ip",
}
"""The calls of the probe that must fail, in words."""


def script_faults(facts: Mapping[str, str]) -> Iterator[str]:
    """Yields in what the script differs from what launchers expect, by the facts of the shell probe."""
    if "script" in facts:
        yield _missing_script(facts)
    if "script:first" not in facts:
        return
    if "bash" not in facts["script:first"]:
        yield f"{SCRIPT} does not begin with a line for bash, but with {facts['script:first']!r}"
    for call, description in REFUSALS.items():
        yield from _refusal_faults(facts, call, description)
    for call in CALLS:
        yield from _call_faults(facts, call)
    yield from _bashrc_faults(facts)


def _missing_script(facts: Mapping[str, str]) -> str:
    missing = facts["script"] == "missing"
    error = f"stat ./{SCRIPT}: no such file or directory" if missing else f"./{SCRIPT}: permission denied"
    folder = f"the working folder {facts['workdir']}"
    return (
        f"a launcher would stop with `{error}`: it has every node run ./{SCRIPT} in {folder},"
        f" and it {'does not exist' if missing else 'cannot be executed'}; a cleared entrypoint brings no script: build"
        " an image on top of this one (`base: {image: …}`), which puts it there, or ship it in files:"
    )


def _refusal_faults(facts: Mapping[str, str], call: str, description: str) -> Iterator[str]:
    status = facts.get(f"call:{call}:status")
    if status != "1" or facts.get(f"call:{call}:argv"):
        yield f"{SCRIPT} ends with status {status} on {description}, not with 1 before Ray starts"
    elif call == "unknown" and "usage" not in facts.get(f"call:{call}:output", "").lower():
        yield f"{SCRIPT} does not show its usage on {description}"


def expected_env(address: str) -> dict[str, str]:
    """Returns what the script must export for a node with this address, as the shell probe calls it."""
    return {
        **dict.fromkeys(ADDRESS_VARIABLES, address),
        **dict.fromkeys(INTERFACE_VARIABLES, "eth7"),
        RDMA_VARIABLE: "mlx7,mlx8",
        "NCCL_IB_DISABLE": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def _call_faults(facts: Mapping[str, str], call: str) -> Iterator[str]:
    address, options = CALLS[call]
    argv = facts.get(f"call:{call}:argv", "").strip()
    if not argv:
        output = facts.get(f"call:{call}:output", "")
        yield f"{SCRIPT} as {call} does not start Ray (status {facts.get(f'call:{call}:status')}): {output[:200]}"
        return
    wanted = ("start", "--block", *options, f"--node-ip-address {address}")
    for option in wanted:
        if f" {option} " not in f" {argv} " and f" {option.replace(' ', '=')} " not in f" {argv} ":
            yield f"{SCRIPT} as {call} starts Ray without {option}: ray {argv}"
    if facts.get(f"call:{call}:parent") != "timeout":
        yield f"{SCRIPT} as {call} does not exec Ray: signals to the container would not reach it"
    env = facts.get(f"call:{call}:env", "")
    for name, value in expected_env(address).items():
        if f'{name}="{value}"' not in env:
            yield f"{SCRIPT} as {call} does not export {name}={value}"


def _bashrc_faults(facts: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong in ~/.bashrc: the probe has run the script as head, then as node, whose values must stay."""
    if facts.get("bashrc", "").count("export VLLM_HOST_IP=") != 1:
        yield f"{SCRIPT} does not keep VLLM_HOST_IP in ~/.bashrc exactly once"
    env = facts.get("bashrc:env", "")
    for name, value in expected_env(CALLS["node"][0]).items():
        if f'{name}="{value}"' not in env:
            yield (
                f"{SCRIPT} does not keep {name}={value} in ~/.bashrc, up to date and not above VLLM_HOST_IP, from where"
                " launchers read on"
            )
