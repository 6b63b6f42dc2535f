"""Checks the aliases of image.yaml: other names of locked distributions."""

from pipeline.config.models import Image
from pipeline.core import names
from pipeline.core.errors import ConfigError
from pipeline.core.suggest import suggestion
from pipeline.lock.contents import Lock


def check_aliases(name: str, image: Image, locked: Lock) -> None:
    """Raises ConfigError, with the nearest name, for an alias of a distribution that the image does not have."""
    versions = locked.versions
    for i, alias in enumerate(image.aliases):
        if names.normalised_name(alias.of) not in versions:
            near = suggestion(names.normalised_name(alias.of), versions)
            raise ConfigError(
                f"dockerfiles/{name}/image.yaml: aliases[{i}].of: {alias.of!r} is not locked",
                hint=near if near.startswith("did you") else f"lockfiles/{name}.requirements.txt lists what is",
            )
