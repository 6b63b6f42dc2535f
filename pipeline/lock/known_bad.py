"""Combinations that are known to fail later although their metadata allows them: said when they are locked."""

from collections.abc import Mapping

# What `ray[default]` brings in every Ray since 2.9; without, `ray start` runs and its dashboard and job API do not.
DASHBOARD = ("aiohttp", "aiohttp-cors", "colorful", "prometheus-client")

# Public reports: the distributions with the versions that fail together, and how that shows.
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


def warnings(versions: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each combination among distributions (normalised names) that is known to fail."""
    found = []
    missing = [name for name in DASHBOARD if name not in versions]
    if "ray" in versions and missing:
        found.append(
            f"ray {versions['ray']} is without its dashboard's packages ({', '.join(missing)} missing): "
            "ask for ray[default]; ray[cgraph] alone does not bring them"
        )
    for together, why in REPORTED:
        if all(_allows(spec, versions.get(name, "")) for name, spec in together.items()):
            found.append(f"{' with '.join(f'{name} {versions[name]}' for name in together)}: {why}")
    return tuple(found)


def _allows(spec: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return bool(version) and SpecifierSet(spec).contains(version, prereleases=True)
    except InvalidVersion:
        return False
