"""Writes image.yaml for `./doitw advise`: in one step, and only if the configuration is valid with it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from pipeline.config import image_yaml, loader
from pipeline.core.errors import TandemError
from pipeline.core.files import write_failure, write_whole


def create_image_folder(root: Path, name: str, text: str) -> str:
    """Make dockerfiles/NAME; returns what was written, in words. Raises HostError, ConfigError."""
    folder = root / loader.IMAGES_FOLDER / name
    new = folder.with_name(f".{name}.{uuid4().hex[:8]}")
    try:
        new.mkdir()
        (new / "image.yaml").write_text(text, encoding="utf-8")
        (new / "Dockerfile").write_text(image_yaml.DOCKERFILE, encoding="utf-8")
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise write_failure(folder, error) from error
    try:
        loader.load_config(root)
    except TandemError:
        shutil.rmtree(folder)
        raise
    return f"dockerfiles/{name}/image.yaml and Dockerfile"


def rewrite_image_yaml(
    root: Path, name: str, image: str, requirements: Sequence[str], smoke: image_yaml.SmokeAdvice
) -> str:
    """Put base into an image.yaml; returns what was written, in words. Raises HostError, ConfigError."""
    file = root / loader.IMAGES_FOLDER / name / "image.yaml"
    where = file.relative_to(root).as_posix()
    data = file.read_bytes()
    before = data.decode()
    after = image_yaml.apply_advice(before, where, image, requirements, smoke)
    image_yaml.check_rest_unchanged(before, after, where, image)
    write_whole(file, after, mode=file.stat().st_mode)
    try:
        loader.load_config(root)
    except TandemError:
        write_whole(file, data, mode=file.stat().st_mode)
        raise
    return f"base in {where}"
