"""The points of docs/launcher-contract.md 2.6, on facts as the probes write them."""

from typing import Any

import pytest

from pipeline.config.launcher_contract import SHELL_TOOLS
from pipeline.smoke import launcher, ray
from pipeline.smoke.containers import CommandResult
from pipeline.smoke.node_script import CALLS, REFUSALS, expected_env, script_faults
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.unit.smoke.expected import expected_image

VLLM = "/usr/local/lib/python3.12/dist-packages/vllm"


def script_facts() -> dict[str, str]:
    facts = {"script:first": "#!/bin/bash"}
    for call in REFUSALS:
        facts |= {f"call:{call}:status": "1", f"call:{call}:output": "Usage: …", f"call:{call}:argv": ""}
    argv = {"head": "start --block --head --port 6379", "node": "start --block --address=10.0.0.1:6379"}
    for call, (address, _) in CALLS.items():
        env = " ".join(f'{name}="{value}"' for name, value in expected_env(address).items())
        facts |= {
            f"call:{call}:status": "0",
            f"call:{call}:argv": f"{argv[call]} --node-ip-address {address} ",
            f"call:{call}:parent": "timeout",
            f"call:{call}:env": env,
        }
    facts["bashrc"] = "export VLLM_HOST_IP=10.0.0.2"
    facts["bashrc:env"] = facts["call:node:env"]
    return facts


def good_facts() -> dict[str, str]:
    tools = (*SHELL_TOOLS, *launcher.TOOLS, "uv", "pip")
    return {
        "uid": "0",
        "home": "/root",
        "workdir": "/workspace/vllm",
        **{f"writable:{folder}": "yes" for folder in ("/root", "/workspace/vllm", "/workspace", "/tmp")},
        **{f"tool:{tool}": f"/usr/bin/{tool}" for tool in tools},
        "rdma-core": "yes",
        "vllm312": VLLM,
        "hidden:/root/.cache/vllm": "",
        **script_facts(),
    }


def good_answers() -> dict[str, ProbeAnswer]:
    answer = ProbeAnswer({"real": f"{VLLM}/__init__.py", "version": "1"})
    return {
        **dict.fromkeys(launcher.QUESTIONS, answer),
        "serve-options": ProbeAnswer({"missing": []}),
        "versions": ProbeAnswer([]),
        "requirements": ProbeAnswer({"python": "3.13.5", "distributions": []}),
        launcher.DESCRIPTION: ProbeAnswer(description()),
        launcher.ENTRYPOINT: ProbeAnswer([]),
    }


def verdict(
    changed: dict[str, str],
    answers: dict[str, ProbeAnswer] | None = None,
    result: CommandResult = CommandResult(0, ""),  # noqa: B008
    without: tuple[str, ...] = (),
) -> Verdict:
    shell = ProbeAnswer(({**good_facts(), **changed}, result), crashed=result.crashed)
    expected = expected_image(workdir="/workspace/vllm", smoke={"without": without})
    return launcher.judge(expected, {**good_answers(), launcher.SHELL_FACTS: shell, **(answers or {})})


def test_an_image_that_keeps_the_contract_passes() -> None:
    assert verdict({}).outcome is CheckOutcome.OK


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"uid": "1000"}, "run as user 1000, not as root"),
        ({"home": ""}, "HOME is not set, not /root"),
        ({"workdir": "/"}, "WORKDIR is /, but image.yaml says /workspace/vllm"),
        ({"writable:/workspace": "no"}, "/workspace is missing or cannot be written to"),
        ({"tool:git": ""}, "git is not on the PATH"),
        ({"tool:uv": "", "tool:pip": ""}, "neither uv nor pip"),
        ({"broken:ray": "#!/home/builder/bin/python"}, "ray cannot start: its first line is '#!/home/builder"),
        ({"rdma-core": "no"}, "rdma-core is not in the image"),
        ({"vllm312": ""}, f"{VLLM} does not exist"),
        ({"vllm312": "/elsewhere/vllm"}, f"is /elsewhere/vllm, but Python imports {VLLM}"),
        ({"hidden:/root/.cache/vllm": "weights"}, "/root/.cache/vllm holds weights: the launcher mounts a folder"),
        ({"script": "missing"}, "would stop with `stat ./run-cluster-node.sh: no such file or directory`"),
        ({"script": "missing"}, "in the working folder /workspace/vllm, and it does not exist"),
        ({"script": "missing"}, "build an image on top of this one (`base: {image: …}`)"),
        ({"script": "not executable"}, "with `./run-cluster-node.sh: permission denied`"),
        ({"script:first": "#!/bin/sh"}, "does not begin with a line for bash"),
        ({"call:unknown:status": "0"}, "ends with status 0 on an unknown option"),
        ({"call:unknown:output": "what?"}, "does not show its usage"),
        ({"call:nothing:argv": "start"}, "not with 1 before Ray starts"),
        ({"call:head:argv": ""}, "as head does not start Ray"),
        ({"call:head:argv": "start --block --head --port 6380 --node-ip-address 10.0.0.1"}, "without --port 6379"),
        ({"call:node:parent": "run-cluster-nod"}, "as node does not exec Ray"),
        ({"call:head:env": ""}, "as head does not export VLLM_HOST_IP=10.0.0.1"),
        ({"call:no-address:status": "0"}, "ends with status 0 on an empty --host-ip, not with 1"),
        ({"bashrc": ""}, "does not keep VLLM_HOST_IP in ~/.bashrc exactly once"),
        ({"bashrc": "export VLLM_HOST_IP=10.0.0.2 " * 2}, "does not keep VLLM_HOST_IP in ~/.bashrc exactly once"),
        ({"bashrc:env": ""}, "does not keep VLLM_HOST_IP=10.0.0.2 in ~/.bashrc"),
    ],
)
def test_each_point_of_the_contract_can_fail(changed: dict[str, str], words: str) -> None:
    judged = verdict(changed)
    assert judged.outcome is CheckOutcome.FAILED
    assert any(words in detail for detail in judged.details), judged.details


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("serve-options", "`vllm serve` cannot be asked for its options: SystemExit: 2"),
        ("ray-options", "`ray start` does not take"),
        ("dashboard", "require ray[default]; ray[cgraph] does not bring"),
        ("library:librdmacm.so.1", "add librdmacm1 to the packages"),
    ],
)
def test_each_question_of_the_contract_can_fail(question: str, words: str) -> None:
    judged = verdict({}, {question: ProbeAnswer(error="SystemExit: 2")})
    assert any(words in detail for detail in judged.details), judged.details


def test_missing_options_of_vllm_serve_are_named() -> None:
    judged = verdict({}, {"serve-options": ProbeAnswer({"missing": ["--nnodes", "--headless"]})})
    assert judged.details == ("`vllm serve` does not take --nnodes --headless: use a later vLLM",)


def test_a_crash_of_the_emulator_in_the_shell_probe_is_its_own_outcome() -> None:
    assert verdict({}, result=CommandResult(139, "", emulated=True)).outcome is CheckOutcome.EMULATOR


def test_without_an_emulator_a_shell_probe_that_crashes_is_a_fault_that_names_the_signal() -> None:
    judged = verdict({}, result=CommandResult(139, ""))
    assert judged.outcome is CheckOutcome.FAILED
    assert judged.details == ("the shell probe ended with signal 11 (SIGSEGV): ",)


def test_an_image_without_bash_says_so_beside_the_other_faults() -> None:
    result = CommandResult(127, 'exec: "bash": executable file not found in $PATH')
    answers = {launcher.SHELL_FACTS: ProbeAnswer(({}, result)), launcher.ENTRYPOINT: ProbeAnswer(["ENTRYPOINT x"])}
    judged = verdict({}, answers)
    assert judged.details[0] == "ENTRYPOINT x"
    assert "executable file not found" in judged.details[1]


def test_the_first_address_in_bashrc_is_not_taken_for_the_second() -> None:
    facts = script_facts()
    facts["bashrc:env"] = facts["bashrc:env"].replace("10.0.0.2", "10.0.0.1", 1)
    (fault,) = script_faults(facts)
    assert "does not keep VLLM_HOST_IP=10.0.0.2" in fault


def test_a_mangled_list_of_devices_in_bashrc_is_a_fault() -> None:
    facts = script_facts()
    facts["bashrc:env"] = facts["bashrc:env"].replace("mlx7,mlx8", "mlx7&,mlx8")
    (fault,) = script_faults(facts)
    assert "does not keep NCCL_IB_HCA=mlx7,mlx8" in fault


def test_a_script_that_takes_an_empty_address_is_a_fault_of_the_script_s_point() -> None:
    judged = verdict({"call:no-address:status": "0", "call:no-address:argv": "start --block --head"})
    assert [point for point, faults in judged.parts.items() if faults] == ["4"]


def description(**config: Any) -> dict[str, Any]:
    return {"Os": "linux", "Architecture": "arm64", "Config": config}


def description_faults(description: dict[str, Any], platform: str) -> list[tuple[int, str]]:
    return list(launcher._description_faults(description, platform))


def test_platform_user_and_environment_are_seen_from_outside() -> None:
    assert description_faults(description(User="root", Env=["PATH=/bin"]), "linux/arm64") == []
    (wrong,) = description_faults(description(), "linux/amd64")
    assert wrong == (1, "the image is for linux/arm64, but image.yaml says linux/amd64")
    (user,) = description_faults(description(User="app"), "linux/arm64")
    assert user[1].startswith("USER is app")
    baked = ["VLLM_HOST_IP=10.0.0.1", "NCCL_SOCKET_IFNAME=enp1s0", "RAY_NODE_IP_ADDRESS=10.0.0.1", "NCCL_DEBUG=WARN"]
    faults = description_faults(description(Env=baked), "linux/arm64")
    assert [(point, words.split("'")[1]) for point, words in faults] == [(10, entry) for entry in baked[:3]]


STATUS = """
======== Autoscaler status: 2026-11-30 02:30:00 ========
Node status
---------------------------------------------------------------
Active:
 1 node_53aca92f0f85533f1703bee10370b5bd3726e65b97e9db01ec0f632b
 1 node_63aca92f0f85533f1703bee10370b5bd3726e65b97e9db01ec0f632b
Pending:
 1 node_73aca92f0f85533f1703bee10370b5bd3726e65b97e9db01ec0f632b
Recent failures:
 (no failures)

Resources
---------------------------------------------------------------
Total Usage:
 0.0/4.0 CPU
 0.0/2.0 GPU
 0B/21.84GiB memory
"""


def test_nodes_and_accelerators_are_read_from_ray_status() -> None:
    assert ray.parse_status(STATUS) == (2, 2.0)
    assert ray.parse_status("Could not find any running Ray instance.") == (0, 0.0)


def test_a_waived_tool_is_reported_and_is_not_a_fault() -> None:
    lacking = {"tool:earlyoom": "", "rdma-core": ""}
    answers = {"library:libibverbs.so.1": ProbeAnswer(error="OSError: not found")}
    without = ("earlyoom", "rdma")
    assert verdict(lacking, answers).outcome is CheckOutcome.FAILED
    judged = verdict(lacking, answers, without=without)
    assert judged.outcome is CheckOutcome.OK
    assert judged.details[0].endswith("without earlyoom, rdma")
    assert verdict({**lacking, "tool:git": ""}, answers, without=without).outcome is CheckOutcome.FAILED


def of_rays(*rays: tuple[str, str], imported: str = "2.60.0") -> tuple[str, ...]:
    answers = {
        "versions": ProbeAnswer([["ray", imported, "/usr/lib/python3/dist-packages"]]),
        "requirements": ProbeAnswer({"python": "3.12.3", "distributions": []}),
    }
    return verdict({f"ray:{path}": fact for path, fact in rays}, answers).details


OLD, NEW = ("/usr/bin/ray", "2.44.0/3.12.3"), ("/opt/venv/bin/ray", "2.60.0/3.12.3")


def test_a_ray_on_path_that_python_does_not_import_is_named_with_both_versions() -> None:
    (detail,) = of_rays(OLD, NEW)
    assert "/usr/bin/ray (2.44.0 under Python 3.12.3), /opt/venv/bin/ray (2.60.0 under Python 3.12.3)" in detail
    assert "/usr/bin/ray comes first, but Python 3.12.3 imports Ray 2.60.0" in detail
    assert "put the folder of the right one first on PATH" in detail


def test_the_same_ray_under_another_python_is_named_too() -> None:
    (detail,) = of_rays(("/usr/bin/ray", "2.60.0/3.11.2"))
    assert "1 `ray` on PATH, /usr/bin/ray (2.60.0 under Python 3.11.2): " in detail


def test_two_rays_with_the_right_one_first_pass_and_so_does_one_without_a_version() -> None:
    for rays in ([NEW, OLD], [("/usr/bin/ray", "/")], [("/usr/bin/ray", "2.60.0/")], []):
        assert "an unmodified launch-cluster.sh" in of_rays(*rays)[0]


def test_every_fault_belongs_to_one_of_the_fourteen_points() -> None:
    good = verdict({})
    assert list(good.parts) == [str(number) for number in range(1, 15)]
    assert not any(good.parts.values())
    bad = verdict({"tool:patch": "", "writable:/workspace": "no"}, {"dashboard": ProbeAnswer(error="gone")})
    assert {point for point, faults in bad.parts.items() if faults} == {"5", "7", "8"}
    assert sorted(words for faults in bad.parts.values() for words in faults) == sorted(bad.details)
    assert good.as_json()["points"]["14"] == []
