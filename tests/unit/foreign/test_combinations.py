"""What is said of two images follows from what they hold: the seed's pair, and pairs where other verdicts are right."""

from collections.abc import Mapping

import pytest

from pipeline.foreign import combinations, comparison
from pipeline.foreign.combinations import Combination, Feasibility, LaterVllm, ResolveAttempt
from pipeline.foreign.comparison import RunningRegistry, Side
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter

SITE = "/usr/local/lib/python3.12/dist-packages"
QWEN = {
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5:Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeMTP": "qwen3_5_mtp:Qwen3_5MoeMTP",
}
OLD = {"LlamaForCausalLM": "llama:LlamaForCausalLM"}
WORKDIR = "/workspace/vllm"
TOOLS = dict.fromkeys(("git", "curl", "patch", "earlyoom", "uv"), "/usr/bin/it")


def inside(name: str, version: str, *requires: str, editable: str = "") -> InstalledDistribution:
    return InstalledDistribution(name=name, version=version, place=SITE, requires=requires, editable=editable)


def reading(
    *distributions: InstalledDistribution,
    architectures: Mapping[str, str] = OLD,
    python: str = "3.12.3",
    entrypoint: tuple[str, ...] = (),
    workdir: str = WORKDIR,
    launchers: tuple[str, ...] = (),
    programs: Mapping[str, str] = TOOLS,
    env: Mapping[str, str] | None = None,
    libraries: Mapping[str, str] | None = None,
) -> ImageFacts:
    minor = python.rpartition(".")[0]
    return ImageFacts(
        digest="sha256:0",
        platform="linux/arm64",
        entrypoint=entrypoint,
        workdir=workdir,
        env=dict(env or {"PATH": "/usr/local/bin:/usr/bin"}),
        glibc=39,
        python=Interpreter(
            path="/usr/bin/python3",
            program=f"/usr/bin/python{minor}",
            version=python,
            kind="system",
            site=SITE,
            scripts="/usr/local/bin",
        ),
        distributions=distributions,
        programs=dict(programs),
        architectures=dict(architectures),
        launchers=launchers,
        entrypoint_text="#!/bin/bash\nexec python3 -m vllm.entrypoints.openai.api_server\n" if entrypoint else "",
        libraries=dict(libraries or {}),
    )


VLLM_17 = inside("vllm", "0.17.1rc1.dev25+g1", "transformers>=5", "torch==2.10.0", editable="/opt/vllm")
HELLOHAL = reading(
    VLLM_17,
    inside("torch", "2.10.0+cu130"),
    inside("transformers", "5.3.0"),
    inside("nvidia-nccl-cu13", "2.28.9"),
    architectures={**OLD, **QWEN},
    entrypoint=("/app/entrypoint.sh",),
    workdir="/app",
    programs={**TOOLS, "ray": ""},
)
VLLM_14 = inside("vllm", "0.14.0rc2", "transformers>=4.56,<5", "torch==2.9.1")
NODE = reading(
    VLLM_14,
    inside("torch", "2.9.1"),
    inside("transformers", "4.57.3"),
    inside("ray", "2.53.0"),
    launchers=(f"{WORKDIR}/run-cluster-node.sh",),
    programs={**TOOLS, "ray": "/usr/local/bin/ray"},
)
MODEL, CLUSTER = Side("model@sha256:0", HELLOHAL), Side("node@sha256:0", NODE)
RAY = {
    name: ResolveAttempt(requirements=("ray[default]",), added=("aiohttp 3.1", "ray 2.54.1"))
    for name in (MODEL.reference, CLUSTER.reference)
}


def advised(
    model: Side = MODEL,
    cluster: Side = CLUSTER,
    asked: tuple[str, ...] = (),
    tried: Mapping[str, ResolveAttempt] = RAY,
    later: LaterVllm | None = None,
) -> dict[str, Combination]:
    found = combinations.judge_combinations(
        model, cluster, comparison.wanted_architectures(model, cluster, asked), tried, later, WORKDIR
    )
    return {one.key: one for one in found}


def said(one: Combination) -> str:
    return "\n".join(one.says)


def test_the_architectures_to_judge_are_those_that_the_cluster_lacks_or_that_are_named() -> None:
    assert comparison.wanted_architectures(MODEL, CLUSTER, ()) == tuple(QWEN)
    assert comparison.wanted_architectures(MODEL, CLUSTER, ["LlamaForCausalLM"]) == ("LlamaForCausalLM",)


def test_of_two_real_images_only_ray_on_top_of_the_model_s_works() -> None:
    found = advised()
    assert [key for key, one in found.items() if one.outcome is Feasibility.WORKS] == ["on-top"]
    assert "adds ray 2.54.1 and 1 more, and nothing inside changes" in said(found["on-top"])
    assert "ENTRYPOINT /app/entrypoint.sh may ignore the command" in said(found["on-top"])
    best = combinations.best_combination(list(found.values()))
    assert best is not None
    assert best.base == "model@sha256:0"


def test_a_combination_that_does_not_resolve_does_not_work_and_gives_the_resolver_s_reasons() -> None:
    refused = {**RAY, MODEL.reference: ResolveAttempt(refused="ray wants click<8\nclick 9 is inside")}
    found = advised(tried=refused)
    assert found["on-top"].outcome is Feasibility.NO
    assert found["on-top"].says == ("ray wants click<8", "click 9 is inside")
    assert combinations.best_combination(list(found.values())) is None


def test_a_combination_stays_open_if_the_index_does_not_answer() -> None:
    found = advised(tried={**RAY, MODEL.reference: ResolveAttempt(refused="the index cannot be reached", unknown=True)})
    assert found["on-top"].outcome is Feasibility.OPEN
    assert combinations.best_combination(list(found.values())) is None


def test_files_that_are_copied_are_not_registered() -> None:
    found = advised()["files"]
    assert found.outcome is Feasibility.NO
    assert "models/qwen3_5.py, models/qwen3_5_mtp.py would lie there" in said(found)
    assert f"looks models up in {SITE}/vllm/model_executor/models/registry.py" in said(found)
    assert "vllm 0.14.0rc2 wants transformers>=4.56,<5" in said(found)
    assert "transformers 5.3.0 of model_from" in said(found)


def test_an_old_vllm_does_not_allow_newer_transformers() -> None:
    found = advised(later=LaterVllm("0.19.0", proven=True))["transformers"]
    assert found.outcome is Feasibility.NO
    assert "vllm 0.14.0rc2 wants transformers>=4.56,<5, and transformers 5.3.0 of model_from is not that" in said(found)
    assert "the oldest later vLLM that resolves with transformers 5.3.0 is 0.19.0" in said(found)


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (LaterVllm("", proven=True), "no later vLLM of the index resolves with transformers 5.3.0"),
        (LaterVllm("", proven=False), "no later vLLM was found"),
        (LaterVllm("0.20.0", proven=False), "a later vLLM that resolves with transformers 5.3.0 is 0.20.0"),
    ],
)
def test_a_later_vllm_is_called_the_oldest_only_if_that_is_proven(later: LaterVllm, words: str) -> None:
    assert words in said(advised(later=later)["transformers"])


def test_transformers_that_both_allow_do_not_register_a_model() -> None:
    both = inside("transformers", "4.57.6")
    model = Side("model@sha256:0", reading(VLLM_17, both, architectures={**OLD, **QWEN}))
    cluster = Side("node@sha256:0", reading(VLLM_14, both))
    found = advised(model, cluster)
    assert "nothing to upgrade" in said(found["transformers"])
    assert "would still not be in the registry" in said(found["transformers"])
    assert "wants transformers" not in said(found["files"])


def test_a_cleared_entrypoint_does_not_bring_the_script() -> None:
    found = advised()["cleared"]
    assert found.outcome is Feasibility.NO
    assert "stat ./run-cluster-node.sh: no such file or directory" in said(found)
    assert "WORKDIR /app" in said(found)
    assert "ray: command not found" in said(found)


def test_a_cleared_entrypoint_is_not_refused_if_script_and_ray_are_there() -> None:
    model = Side("model@sha256:0", reading(
        VLLM_17, architectures=QWEN, launchers=(f"{WORKDIR}/run-cluster-node.sh",),
        programs={"ray": "/usr/local/bin/ray"},
    ))  # fmt: skip
    assert advised(model)["cleared"].outcome is Feasibility.OPEN


def test_a_script_elsewhere_is_not_where_the_launcher_looks() -> None:
    model = Side(
        "model@sha256:0", reading(VLLM_17, architectures=QWEN, launchers=("/opt/run-cluster-node.sh",), workdir="/")
    )
    assert "WORKDIR /, and nothing put it there; it has /opt/run-cluster-node.sh" in said(advised(model)["cleared"])


def test_a_newer_vllm_in_place_would_move_torch() -> None:
    found = advised()["in-place"]
    assert found.outcome is Feasibility.NO
    assert "torch 2.9.1 would have to move: vllm 0.17.1rc1.dev25+g1 wants torch==2.10.0" in said(found)
    assert "transformers 4.57.3 would have to move" in said(found)
    assert "compiled parts were built against torch 2.10.0+cu130" in said(found)
    assert "a private build" in said(found)


def test_a_released_vllm_with_the_same_pins_stays_open() -> None:
    torch, new = inside("torch", "2.10.0"), inside("vllm", "0.17.1", "torch==2.10.0")
    model = Side("model@sha256:0", reading(new, torch, architectures={**OLD, **QWEN}))
    cluster = Side("node@sha256:0", reading(inside("vllm", "0.17.0", "torch==2.10.0"), torch))
    found = advised(model, cluster)["in-place"]
    assert (found.outcome, found.base) == (Feasibility.OPEN, "")


def test_another_python_cannot_run_the_build() -> None:
    cluster = Side("node@sha256:0", reading(VLLM_14, python="3.11.2"))
    assert "built for Python 3.12, and cluster_from has 3.11" in said(advised(cluster=cluster)["in-place"])


def test_a_cluster_image_that_lists_the_model_needs_nothing_from_the_other() -> None:
    cluster = Side("node@sha256:0", reading(VLLM_14, inside("ray", "2.53.0"), architectures={**OLD, **QWEN}))
    found = advised(cluster=cluster, asked=tuple(QWEN), tried={**RAY, cluster.reference: ResolveAttempt()})
    assert found["cluster-alone"].outcome is Feasibility.WORKS
    assert "all packages are already inside" in said(found["cluster-alone"])
    assert {found[key].outcome for key in ("files", "transformers", "in-place")} == {Feasibility.NEEDLESS}
    best = combinations.best_combination(list(found.values()))
    assert best is not None
    assert best.base == "node@sha256:0"


def test_a_model_without_its_prediction_heads_is_noted() -> None:
    main = "Qwen3_5MoeForConditionalGeneration"
    cluster = Side("node@sha256:0", reading(VLLM_14, architectures={main: QWEN[main]}))
    found = advised(cluster=cluster, asked=(main,))["cluster-alone"]
    assert found.outcome is Feasibility.WORKS
    assert f"{main} is listed, but not Qwen3_5MoeMTP" in said(found)


def test_an_architecture_that_neither_lists_works_nowhere() -> None:
    found = advised(asked=("NewForCausalLM",))
    assert combinations.best_combination(list(found.values())) is None
    assert "model_from has no entry for NewForCausalLM" in said(found["files"])
    assert "NewForCausalLM: not in the registry" in said(found["on-top"])


def test_a_base_with_a_node_s_address_in_env_is_refused() -> None:
    model = Side(
        "model@sha256:0", reading(VLLM_17, architectures=QWEN, env={"VLLM_HOST_IP": "10.0.0.1", "PATH": "/usr/bin"})
    )
    found = advised(model)["on-top"]
    assert found.outcome is Feasibility.NO
    assert "VLLM_HOST_IP=10.0.0.1" in said(found)


def test_tools_that_launchers_lack_are_added_or_named() -> None:
    bare = Side("model@sha256:0", reading(
        VLLM_17, architectures=QWEN, programs={"uv": "", "pip": "", "earlyoom": "", "git": "/usr/bin/git"},
        libraries={"libibverbs.so.1": "", "librdmacm.so.1": "/usr/lib/x"},
    ))  # fmt: skip
    assert comparison.requirements_to_add(bare, ["ray[default]"]) == ("ray[default]", "uv")
    assert comparison.requirements_to_add(MODEL, ["ray[default]"]) == ("ray[default]",)
    tried = {**RAY, bare.reference: ResolveAttempt(requirements=("ray[default]", "uv"), added=("ray 2", "uv 1"))}
    found = advised(bare, tried=tried)["on-top"]
    assert found.without == ("earlyoom", "rdma")
    assert "smoke: {without: [earlyoom, rdma]}" in said(found)
    assert comparison.missing_tools(bare, ["ray[default]"]) == ("earlyoom", "uv", "rdma")


def running(**what: object) -> Side:
    return Side("model@sha256:0", HELLOHAL, RunningRegistry(**what))  # type: ignore[arg-type]


def test_an_architecture_that_is_listed_but_does_not_import_is_not_used() -> None:
    name = "Qwen3_5MoeMTP"
    side = running(listed=(*OLD, *QWEN), loaded=tuple(QWEN)[:1], fails={name: "ImportError: no x"})
    assert f"{name}: listed, but does not import: ImportError: no x" in comparison.registry_differences(side)
    found = advised(side, asked=tuple(QWEN))["on-top"]
    assert found.outcome is Feasibility.NO
    assert "does not import: ImportError: no x" in said(found)


def test_registry_py_and_the_running_registry_are_compared_both_ways() -> None:
    side = running(listed=("LlamaForCausalLM", "Extra"), plugins=("PluggedForCausalLM",))
    assert comparison.registry_differences(side) == [
        "Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeMTP: in registry.py, but not listed as vLLM runs",
        "Extra: listed as vLLM runs, though no table of registry.py has it",
        "PluggedForCausalLM: registered at run time by a plug-in only",
    ]
    assert comparison.reasons_unusable(side, ["PluggedForCausalLM"]) == []
    assert comparison.reasons_unusable(side, ["Qwen3_5MoeMTP"]) != []


def test_a_registry_that_could_not_be_asked_changes_no_verdict() -> None:
    side = running(error="exec format error")
    assert side.knows == MODEL.knows
    assert comparison.registry_differences(side) == ["its registry could not be asked as it runs: exec format error"]


def test_the_table_has_a_column_for_each_side() -> None:
    table = {what: (mine, theirs) for what, mine, theirs in comparison.comparison_rows(MODEL, CLUSTER)}
    assert table["vLLM"] == ("0.17.1rc1.dev25+g1 (editable in /opt/vllm)", "0.14.0rc2")
    assert table["Ray"] == ("-", "2.53.0")
    assert table["NCCL"] == ("nvidia-nccl-cu13 2.28.9", "-")
    assert table["launcher files"] == ("-", f"{WORKDIR}/run-cluster-node.sh")
    assert table["entrypoint"] == ("/app/entrypoint.sh (may ignore commands)", "none")
    assert comparison.registry_entries(MODEL, CLUSTER, ["Qwen3_5MoeMTP"]) == [
        ("Qwen3_5MoeMTP", QWEN["Qwen3_5MoeMTP"], "-")
    ]


def test_models_with_heads_come_first_and_each_before_its_heads() -> None:
    known = {"A", "Z5ForCausalLM", "Z5MTP", "GlmOcrForConditionalGeneration", "GlmOcrMTPModel"}
    assert comparison.heads_first(sorted(known), known) == [
        "GlmOcrForConditionalGeneration", "GlmOcrMTPModel", "Z5ForCausalLM", "Z5MTP", "A",
    ]  # fmt: skip


def test_nothing_is_called_needless_because_of_a_side_without_a_registry() -> None:
    cluster = Side("node@sha256:0", reading(VLLM_14, architectures={}))
    found = advised(cluster=cluster)
    for key in ("files", "transformers", "cluster-alone"):
        assert found[key].outcome is Feasibility.NO
        assert "no registry of models was found in vLLM 0.14" in said(found[key])
