"""`./doitw advise`: judges the combinations of two images that each have half of what is wanted."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.commands.advise_text import advice_json, advice_text
from pipeline.commands.advise_write import create_image_folder, rewrite_image_yaml
from pipeline.commands.base import JSON, GraphCommand, Options, print_json
from pipeline.commands.clusters import check_word_count, checkout_root
from pipeline.commands.progress import TerminalLog
from pipeline.config import image_yaml, loader
from pipeline.config.loader import Config
from pipeline.config.models import Additions, Combine, CombinedImage
from pipeline.core import platforms
from pipeline.core.errors import ConfigError, Exit, TandemError
from pipeline.core.suggest import suggestion
from pipeline.foreign import combinations, comparison
from pipeline.foreign.combinations import Combination
from pipeline.foreign.comparison import Side


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """The image that advice is about. It need not exist yet.

    `name` is that of its folder. It is `free` if its image.yaml has no key `python` yet.
    """

    name: str
    image: CombinedImage
    sides: Combine
    free: bool = True

    @property
    def origin(self) -> str:
        """Returns the file that asks for packages."""
        return f"dockerfiles/{self.name}/image.yaml" if self.name else "advise"


PLATFORM = CombinedImage().platform


def _text(name: str, metavar: str, words: str) -> dict[str, Any]:
    return {"name": name.replace("-", "_"), "long": name, "type": str, "default": "", "metavar": metavar, "help": words}


def _flag(name: str, words: str) -> dict[str, Any]:
    return {"name": name.replace("-", "_"), "long": name, "type": bool, "default": False, "help": words}


class AdviseCommand(GraphCommand):
    """doit's plugin command `advise`."""

    name = "advise"
    doc_purpose = "read two images, say which combinations of them can work and why the others cannot, write image.yaml"
    doc_usage = "[IMAGE] | --model-from A --cluster-from B [--write NAME]"
    doc_description = (
        "IMAGE has combine in its image.yaml; its base is written there if it has none. "
        "Exit status 1 if no combination works."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        _text("model-from", "A", "the image that knows the model, as docker pull takes it"),
        _text("cluster-from", "B", "the image that forms a cluster"),
        {
            "name": "architecture", "long": "architecture", "type": list, "default": [], "metavar": "CLASS",
            "help": "a model class that is wanted; may be given more than once (if not given: smoke.architectures,"
            " else all that A lists and B does not)",
        },
        _text("platform", "OS/ARCH", f"of both images where no image.yaml says it (if not given: {PLATFORM})"),
        _text("write", "NAME", "make dockerfiles/NAME of what works"),
        _flag("force", "replace a base that image.yaml has already"),
        _flag("dry-run", "write nothing"),
        _flag("quick", "do not ask the registry of A's vLLM in a container"),
        JSON,
    )  # fmt: skip

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Read the images, print the verdicts, write image.yaml; returns the exit code."""
        here, words = checkout_root(), check_word_count(pos_args, self.name, most=1)
        loaded = loader.load_config(here)
        asked = _parse_request(loaded, words, opt_values)
        log = TerminalLog(steps_only=True)
        try:
            model, cluster, architectures, found = _read_and_judge(asked, opt_values, here, log)
        finally:
            log.close()
        best = combinations.best_combination(found)
        written, refused = "", None
        if best and not opt_values["dry_run"]:
            try:
                written = _written(loaded, asked, best, opt_values)
            except ConfigError as error:
                refused = error
        if opt_values["json"]:
            print_json(advice_json(model, cluster, architectures, found, written))
        else:
            print("\n".join(advice_text(model, cluster, architectures, found, written)))
        if refused:
            raise refused
        return Exit.OK if best else Exit.FAILED


def _read_and_judge(
    asked: AdviceRequest, options: Options, here: Path, log: TerminalLog
) -> tuple[Side, Side, tuple[str, ...], tuple[Combination, ...]]:
    from pipeline.commands import advise_inputs

    image, both = asked.image, asked.sides
    model = advise_inputs.read_side(both.model_from, image.platform, here, log)
    cluster = advise_inputs.read_side(both.cluster_from, image.platform, here, log)
    architectures = comparison.wanted_architectures(model, cluster, image.smoke.architectures)
    if not options["quick"] and model.vllm is not None:
        model = advise_inputs.add_running_registry(model, architectures, here, log)
        architectures = comparison.wanted_architectures(model, cluster, image.smoke.architectures)
    if not architectures and not model.knows:
        raise TandemError(
            f"no registry of models was found in vLLM {model.version or '(none)'} of {both.model_from}",
            hint="use an image that knows the model, or say what is wanted by --architecture CLASS",
        )
    bases = {side.reference: side for side in (cluster, model) if not comparison.reasons_unusable(side, architectures)}
    tried = {
        name: advise_inputs.try_additions(side, _additions(asked, side), asked.origin, log)
        for name, side in bases.items()
    }
    later = None if options["quick"] else advise_inputs.find_later_vllm(model, cluster, log)
    return (
        model,
        cluster,
        architectures,
        combinations.judge_combinations(model, cluster, architectures, tried, later, image.workdir),
    )


def _additions(asked: AdviceRequest, side: Side) -> Additions:
    """Returns the Python packages that image.yaml asks for, or would ask for if it were written for a side."""
    from msgspec.structs import replace as with_

    python = asked.image.python
    return (
        with_(python, requirements=comparison.requirements_to_add(side, python.requirements)) if asked.free else python
    )


def _parse_request(loaded: Config, words: list[str], options: Options) -> AdviceRequest:
    """Returns what the command line asks for. Raises ConfigError."""
    given = (options["model_from"], options["cluster_from"])
    architectures = tuple(options["architecture"])
    if any(given):
        if words or not all(given):
            raise ConfigError(
                "doit advise: --model-from and --cluster-from go together, and without an image's name",
                hint="./doitw advise IMAGE | --model-from A --cluster-from B",
            )
        _check_new(loaded, options["write"])
        both = Combine(model_from=_reference(given[0]), cluster_from=_reference(given[1]))
        image = CombinedImage(combine=both, platform=_platform(options["platform"]))
        return AdviceRequest(name=options["write"], sides=both, image=_with_architectures(image, architectures))
    if options["platform"]:
        raise ConfigError("doit advise IMAGE takes no --platform", hint="image.yaml says it (platform)")
    if options["write"]:
        raise ConfigError(
            "doit advise: --write names the folder of a new image; one that is there has its base written anyway",
            hint="./doitw advise IMAGE | --model-from A --cluster-from B --write NAME",
        )
    candidates = {
        name: image for name, image in loaded.images.items() if isinstance(image, CombinedImage) and image.combine
    }
    if not words and len(candidates) != 1:
        raise ConfigError(
            f"doit advise: which image? {len(candidates)} have combine in image.yaml",
            hint=", ".join(candidates) or "./doitw advise --model-from A --cluster-from B",
        )
    name = words[0] if words else next(iter(candidates))
    if name not in loaded.images:
        raise ConfigError(f"no image is called {name!r}", hint=suggestion(name, loaded.images))
    if name not in candidates:
        raise ConfigError(
            f"dockerfiles/{name}/image.yaml does not say which images to combine",
            hint="combine: {model_from: A, cluster_from: B}",
        )
    chosen = candidates[name]
    assert chosen.combine is not None
    file = loaded.root / loader.IMAGES_FOLDER / name / "image.yaml"
    free = "python" not in loader.read_yaml(file, loaded.root).value
    return AdviceRequest(name=name, sides=chosen.combine, image=_with_architectures(chosen, architectures), free=free)


def _with_architectures(image: CombinedImage, architectures: tuple[str, ...]) -> CombinedImage:
    """Returns the image with smoke.architectures of the command line, if there are any."""
    from msgspec.structs import replace as with_

    if not architectures:
        return image
    return with_(image, smoke=with_(image.smoke, architectures=architectures))


def _platform(given: str) -> str:
    if given and given not in platforms.PLATFORMS:
        raise ConfigError(
            f"--platform {given}: not a platform of images here", hint=suggestion(given, platforms.PLATFORMS)
        )
    return given or PLATFORM


def _reference(name: str) -> str:
    from msgspec import ValidationError, convert

    from pipeline.config.models import Reference

    try:
        return str(convert(name, Reference))
    except ValidationError as error:
        raise ConfigError(
            f"doit advise: {name!r} is not an image's name as docker pull takes it, with a tag or a digest",
            hint="NAME:TAG or NAME@sha256:…",
        ) from error


def _check_new(loaded: Config, name: str) -> None:
    from pipeline.config.models import NAME, NAME_WORDS

    if not name:
        return
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"doit advise: --write {name}: it is not {NAME_WORDS}")
    if name in loader.RESERVED_NAMES:
        raise ConfigError(f"doit advise: --write {name}: it is a word of Tandem's own")
    if (loaded.root / loader.IMAGES_FOLDER / name).exists():
        raise ConfigError(f"doit advise: dockerfiles/{name} is there already", hint=f"./doitw advise {name}")


def _written(loaded: Config, asked: AdviceRequest, best: Combination, options: Options) -> str:
    """Write the combination that works to its image.yaml, if it has one; returns what was written, in words."""
    image, smoke = asked.image, {"architectures": options["architecture"], "without": best.without}
    if not asked.name:
        return ""
    if options["write"]:
        both = {"model_from": asked.sides.model_from, "cluster_from": asked.sides.cluster_from}
        text = image_yaml.render_image_yaml(image.platform, best.base, best.requirements, both, smoke)
        return create_image_folder(loaded.root, asked.name, text)
    if image.base is not None and image.base.image == best.base:
        return ""
    if image.base is not None and not options["force"]:
        raise ConfigError(
            f"{asked.origin}: base is {image.base.image} already, and stays; what works is {best.base}",
            hint="--force replaces it",
        )
    return rewrite_image_yaml(loaded.root, asked.name, best.base, best.requirements, smoke)
