"""Combinations of distributions that fail although their metadata allows them; `lock` warns of them."""

from collections.abc import Mapping

DASHBOARD = ("aiohttp", "aiohttp-cors", "colorful", "prometheus-client")
"""The packages that `ray[default]` brings in every Ray since 2.9; without them, dashboard and job API do not start."""

REPORTED = (
    (
        {"ray": "==2.55.*"},
        "its init fails for a driver that has no raylet on its own machine (gpustack/runner#178)",
    ),
    (
        {"vllm": "==0.26.*", "transformers": ">=5.14"},
        "Transformers renamed a configuration class that vLLM imports; Qwen3.6 fails (vllm#50428)",
    ),
)
"""Combinations that public reports name: the versions of each distribution, and the symptom."""


def find_warnings(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Returns one line for each combination among distributions (normalised name → version) that is known to fail."""
    lines = []
    missing = [name for name in DASHBOARD if name not in versions]
    if "ray" in versions and missing:
        lines.append(
            f"ray {versions['ray']} is without its dashboard's packages ({', '.join(missing)} missing): "
            "ask for ray[default]; ray[cgraph] alone does not bring them"
        )
    for specifiers, symptom in REPORTED:
        if all(_allows(specifier, versions.get(name, "")) for name, specifier in specifiers.items()):
            lines.append(f"{' with '.join(f'{name} {versions[name]}' for name in specifiers)}: {symptom}")
    return tuple(lines)


def _allows(specifier: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return bool(version) and SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False
