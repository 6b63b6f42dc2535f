"""run-cluster-node.sh as it is, in the shells that images have, and the probe that judges it."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.foreign.launcher_layer import NODE_SCRIPT_FILE
from pipeline.smoke.launcher import MARK
from pipeline.smoke.node_script import script_faults
from tests.flow.project import REPOSITORY

PROBE = REPOSITORY / "pipeline/probes/launcher_facts.sh"
# In bash 5.2 and later the other meaning of & in a replacement can be chosen; before there is only that one.
SHELLS = (["bash"], ["bash", "+O", "patsub_replacement"])
HEAD = ["--role", "head", "--eth-if", "eth0", "--ib-if", "mlx5_0,mlx5_1"]
DEVICES = 'remember NCCL_IB_HCA "$ib_if"'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a .bashrc of its own, and a `ray` that does nothing on PATH."""
    (ray := tmp_path / "bin/ray").parent.mkdir()
    ray.write_text("#!/bin/sh\n")
    ray.chmod(0o755)
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'\nexport VLLM_HOST_IP_OF=me\n")
    return tmp_path


def call(home: Path, shell: list[str], *words: str) -> None:
    env = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    subprocess.run([*shell, str(NODE_SCRIPT_FILE), *words], env=env, check=True, timeout=30)


def exported(home: Path) -> dict[str, str]:
    """What a shell has that reads .bashrc, NAME to value."""
    script = f". {home}/.bashrc; env -0"
    said = subprocess.run(
        ["bash", "-c", script], env={"PATH": os.environ["PATH"]}, check=True, capture_output=True, text=True
    )
    return dict(entry.split("=", 1) for entry in said.stdout.split("\0") if entry)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_values_in_bashrc_are_brought_up_to_date_where_they_stand(home: Path, shell: list[str]) -> None:
    if subprocess.run([*shell, "-c", "true"], capture_output=True, check=False).returncode:
        shell = ["bash"]
    call(home, shell, *HEAD, "--host-ip", "10.0.0.1")
    with (home / ".bashrc").open("a") as file:
        file.write("export MINE='a | b'\n")
    before = (home / ".bashrc").read_text().splitlines()
    call(home, shell, *HEAD, "--host-ip", "10.0.0.2")
    after = (home / ".bashrc").read_text().splitlines()
    assert [line.partition("=")[0] for line in after] == [line.partition("=")[0] for line in before]
    assert (before[:2], before[-1]) == (after[:2], after[-1])
    values = exported(home)
    assert (values["NCCL_IB_HCA"], values["VLLM_HOST_IP"], values["MINE"]) == ("mlx5_0,mlx5_1", "10.0.0.2", "a | b")


@pytest.mark.parametrize("value", ["a&b", r"a\b", "a|b", "a'b\"c d", "$HOME", "a\nb"])
def test_a_value_of_any_kind_is_the_same_the_second_time(home: Path, value: str) -> None:
    for _ in range(2):
        call(home, ["bash"], "-r", "head", "-h", "10.0.0.1", "-e", value, "-i", "mlx5_0")
    assert exported(home)["NCCL_SOCKET_IFNAME"] == value


def faults(tmp_path: Path, text: str) -> list[str]:
    """What the probe finds of a script with this text."""
    (script := tmp_path / NODE_SCRIPT_FILE.name).write_text(text)
    script.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    said = subprocess.run(
        ["bash", str(PROBE)], cwd=tmp_path, env=env, check=True, capture_output=True, text=True, timeout=60
    )
    lines = [line.removeprefix(MARK).split("=", 1) for line in said.stdout.splitlines() if line.startswith(MARK)]
    return list(script_faults(dict(lines)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", None),
        ("[ -n \"$host_ip\" ] || refuse '--host-ip is missing'\n", "", "on an empty --host-ip"),
        (DEVICES, f"{DEVICES}\nsed -i 's/,mlx8/\\&,mlx8/' ~/.bashrc", "does not keep NCCL_IB_HCA=mlx7,mlx8"),
        ('    [ -n "$found" ] ||', "   ", "does not keep VLLM_HOST_IP in ~/.bashrc exactly once"),
        ("lines[number]=$line", ": ;", "does not keep VLLM_HOST_IP=10.0.0.2"),
    ],
)
def test_the_probe_tells_a_script_that_keeps_the_contract_from_one_that_does_not(
    tmp_path: Path, old: str, new: str, said: str | None
) -> None:
    text = NODE_SCRIPT_FILE.read_text()
    assert old in text
    found = faults(tmp_path, text.replace(old, new, 1))
    assert bool(found) == (said is not None)
    assert said is None or any(said in fault for fault in found), found
