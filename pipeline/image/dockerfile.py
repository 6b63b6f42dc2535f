"""Fills in an image's Dockerfile: the lines that depend on its layers and its image.yaml take the place of marks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core.errors import ConfigError
from pipeline.foreign.launcher_layer import LauncherLayer, quote_env_value

BASE, LAYERS, SETTINGS = "#: base", "#: layers", "#: settings"
"""The marks: each is a line of a Dockerfile."""


def fill_dockerfile(template: Path, fillings: Mapping[str, Sequence[str]]) -> str:
    """Returns a Dockerfile with the lines that `fillings` has in place of each mark.

    Raises ConfigError if the template cannot be read, or lacks a mark.
    """
    try:
        text = template.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{template}: {error.strerror}") from error
    lines: list[str] = []
    missing = dict(fillings)
    for line in text.splitlines():
        lines += missing.pop(line.strip(), [line])
    if missing:
        raise ConfigError(
            f"{'/'.join(template.parts[-3:])}: it has no line {' and no line '.join(map(repr, missing))}",
            hint="the Dockerfiles that come with Tandem show where the marks stand",
        )
    return "\n".join(lines) + "\n"


def debian_fillings(image: Image, layers: Sequence[str]) -> dict[str, list[str]]:
    """Returns the lines for each mark of an image made from Debian packages; `layers` are names of tars."""
    return {
        SETTINGS: [f"WORKDIR {image.workdir}", *_env_lines(image)],
        LAYERS: [f"ADD --link {layer}.tar /" for layer in layers],
    }


def combined_fillings(image: Image, layers: Sequence[str], base: str, launcher: LauncherLayer) -> dict[str, list[str]]:
    """Returns the lines for each mark of an image on top of the image `base`."""
    return {
        BASE: [f"FROM {base}"],
        SETTINGS: [*launcher.settings(), *_env_lines(image)],
        # Not linked: a layer that does not know the base would put folders where the base has links.
        LAYERS: [f"ADD {layer}.tar /" for layer in layers],
    }


def _env_lines(image: Image) -> list[str]:
    return [f"ENV {name}={quote_env_value(image.env[name])}" for name in sorted(image.env)]
