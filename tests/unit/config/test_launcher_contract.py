"""The copies of the launcher contract in programs that cannot import it."""

import re
from pathlib import Path

import pytest

from pipeline.config import launcher_contract as contract
from pipeline.probes import python_facts, serve_node
from pipeline.smoke import launcher, node_script

ROOT = Path(__file__).parents[3]
SHELL_PROBE = (ROOT / "pipeline/probes/launcher_facts.sh").read_text()
NODE_SCRIPT = (ROOT / "dockerfiles/cpu/files/workspace/vllm" / contract.NODE_SCRIPT).read_text()


def flag(words: str, name: str) -> str:
    """The value of an option in a command line."""
    (value,) = re.findall(rf"{name}[ =](\S+)", words)
    return str(value)


def test_the_python_probe_asks_for_the_contract_s_ports_and_sizes() -> None:
    starts = python_facts.RAY_START
    assert flag(starts["head, until 2026-03-11"], "--port") == str(contract.RAY_PORT_ERA_A)
    assert flag(starts["head, until 2026-03-11"], "--dashboard-port") == str(contract.DASHBOARD_PORT)
    assert flag(starts["head, since"], "--port") == str(contract.MASTER_PORT)
    assert flag(starts["worker"], "--address") == f"10.0.0.1:{contract.MASTER_PORT}"
    for start in (starts["head, since"], starts["worker"]):
        assert flag(start, "--object-store-memory") == str(contract.RAY_OBJECT_STORE_BYTES)
        assert flag(start, "--num-cpus") == str(contract.RAY_CPUS)
    assert flag(" ".join(python_facts.MULTI_NODE), "--master-port") == str(contract.MASTER_PORT)


def test_the_shell_probe_looks_for_the_contract_s_programs_and_folders() -> None:
    tools = re.findall(r"^for tool in (.*); do$", SHELL_PROBE, re.MULTILINE)[0].split()
    assert set(tools) == {*contract.SHELL_TOOLS, *launcher.TOOLS, "uv", "pip"}
    assert f'readlink -e {contract.MODS_PACKAGES}/vllm)"' in SHELL_PROBE
    assert f"script=./{contract.NODE_SCRIPT}\n" in SHELL_PROBE
    assert f" {contract.WORKSPACE} /tmp; do" in SHELL_PROBE
    caches = re.findall(r'^for folder in (\w.*); do\n    fact "hidden:', SHELL_PROBE, re.MULTILINE)
    dotted = re.findall(r'^for folder in (\..*); do\n    fact "hidden:', SHELL_PROBE, re.MULTILINE)
    folders = [f".cache/{name}" for name in " ".join(caches).split()] + " ".join(dotted).split()
    assert folders == list(contract.CACHE_FOLDERS)
    (prefixes,) = re.findall(r"grep -E '\^\(([^)]*)\)'", SHELL_PROBE)
    named = (*contract.ADDRESS_VARIABLES, *contract.INTERFACE_VARIABLES, contract.RDMA_VARIABLE)
    assert all(name.startswith(tuple(prefixes.split("|"))) for name in named)


def test_the_node_script_sets_what_the_contract_names() -> None:
    for variables, value in (
        (contract.ADDRESS_VARIABLES, "host_ip"),
        (contract.INTERFACE_VARIABLES, "eth_if"),
        ((contract.RDMA_VARIABLE,), "ib_if"),
    ):
        assert tuple(re.findall(rf'^remember (\w+) "\${value}"$', NODE_SCRIPT, re.MULTILINE)) == variables
    assert set(re.findall(r"--port (\d+)|:(\d+)\"", NODE_SCRIPT)) == {
        (str(contract.RAY_PORT_ERA_A), ""),
        ("", str(contract.RAY_PORT_ERA_A)),
    }
    assert set(re.findall(r"--object-store-memory (\d+)", NODE_SCRIPT)) == {str(contract.RAY_OBJECT_STORE_BYTES)}


def test_our_own_nodes_set_every_address_variable() -> None:
    text = Path(serve_node.__file__).read_text()
    assert all(f"{name}=address" in text for name in contract.ADDRESS_VARIABLES)


def test_the_names_that_checks_use_are_the_contract_s() -> None:
    assert set(node_script.expected_env("10.0.0.1")) >= {
        *contract.ADDRESS_VARIABLES,
        *contract.INTERFACE_VARIABLES,
        contract.RDMA_VARIABLE,
    }


def test_every_point_and_section_that_code_cites_is_in_the_document() -> None:
    text = (ROOT / "docs/launcher-contract.md").read_text()
    sections = set(re.findall(r"^### (2\.\d) ", text, re.MULTILINE))
    assert sections == {f"2.{number}" for number in range(1, 7)}
    points = re.findall(r"^(\d+)\. ", text.partition("### 2.6 ")[2], re.MULTILINE)
    assert [int(number) for number in points] == list(contract.POINTS)
    for folder in ("pipeline", "tests", "dockerfiles", "docs"):
        for file in sorted((ROOT / folder).rglob("*.*")):
            if file.suffix in {".py", ".sh", ".md", ".yaml"}:
                cited = re.findall(r"launcher[- ]contract(?:\.md)?,? (\d\.\d)", file.read_text("utf-8"))
                assert set(cited) <= sections, file


@pytest.mark.parametrize("name", ["VLLM_HOST_IP", "NCCL_IB_HCA", "RAY_ADDRESS", "RAY_NODE_IP_ADDRESS", "RAY_NODE_ID"])
def test_a_variable_that_names_a_node_an_address_or_an_interface_differs_from_node_to_node(name: str) -> None:
    assert contract.is_node_specific(name)


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "RAY_memory_monitor_refresh_ms", "RAY_DEDUP_LOGS", "NCCL_DEBUG"])
def test_other_variables_are_the_same_on_every_node(name: str) -> None:
    assert not contract.is_node_specific(name)
