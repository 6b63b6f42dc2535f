"""Writes the text of an image.yaml, and adds to one so that all else stays as it was written, comments too.

The text is edited at the places that PyYAML gives. A round trip through PyYAML would lose comments; one through
ruamel.yaml keeps them, but changes indentation and spacing (tried with 0.19).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from pipeline.core.errors import ConfigError

DOCKERFILE = """\
# Only copies, on top of another image, in which nothing changes. Nothing of the target's architecture runs during the
# build.
#: base

# The additions to its Python, as one layer.
#: layers

# The launcher's files, and our own.
ADD own.tar /

# Entrypoint, working folder and PATH, as launchers want them.
#: settings
"""
"""The Dockerfile of every combined image."""
SmokeAdvice = Mapping[str, Sequence[str]]
"""The keys of `smoke` that advice sets, `architectures` and `without`, each with its names."""
SCHEMA_COMMENT = "# yaml-language-server: $schema=../../schemas/image.json\n"


def render_image_yaml(
    platform: str, image: str, requirements: Sequence[str], combine: Mapping[str, str], smoke: SmokeAdvice
) -> str:
    """Returns the text of a new image.yaml."""
    images = "".join(f"  {key}: {name}\n" for key, name in combine.items())
    parts = [
        SCHEMA_COMMENT,
        "# Ray and the launcher's files on top of another party's image, as `./doitw advise` found it.\n",
        f"platform: {platform}\n",
        f"\ncombine:\n{images}",
        *(block for _, block in render_keys(image, requirements, smoke)),
    ]
    return "".join(parts)


def render_keys(image: str, requirements: Sequence[str], smoke: SmokeAdvice) -> Iterator[tuple[str, str]]:
    """Yields the keys that advice adds, each with its text, which begins with an empty line."""
    yield "base", f"\nbase:\n  image: {image}\n"
    yield "python", f"\npython:\n  requirements: {json.dumps(list(requirements))}\n"
    lines = [
        f"  {key}:\n" + "".join(f"    - {name}\n" for name in smoke[key])
        for key in ("architectures", "without")
        if smoke.get(key)
    ]
    if lines:
        yield "smoke", "\nsmoke:\n" + "".join(lines)


def apply_advice(text: str, file: str, image: str, requirements: Sequence[str], smoke: SmokeAdvice) -> str:
    """Returns an image.yaml with `base.image` set; python, smoke and smoke.without are added where they are missing.

    `file` is its name for messages. Raises ConfigError if it is written in a way that cannot be added to line by line.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    keys = {str(key.value): (key, value) for key, value in root.value}
    if "base" in keys and (old := _image_node(keys["base"][1])) is not None:
        text = text[: old.start_mark.index] + image + text[old.end_mark.index :]
    elif "base" in keys or root.flow_style:
        raise _edit_by_hand_error(file, image)
    else:
        added = {key: block for key, block in render_keys(image, requirements, smoke) if key not in keys}
        position = _end_of_value(text, *keys["combine"])
        line = _without_line(keys["smoke"][1], smoke) if "smoke" in keys else None
        # From the back, so that places in front stay where they are.
        if line and line[0] >= position:
            text = text[: line[0]] + line[1] + text[line[0] :]
        text = _insert(text, position, added)
        if line and line[0] < position:
            text = text[: line[0]] + line[1] + text[line[0] :]
    return text


def _without_line(existing: yaml.Node, smoke: SmokeAdvice) -> tuple[int, str] | None:
    """Returns where smoke.without goes into an existing `smoke`, and its line; None if nothing goes there."""
    lacks = isinstance(existing, yaml.MappingNode) and not existing.flow_style and bool(smoke.get("without"))
    if not lacks or any(key.value == "without" for key, _ in existing.value):
        return None
    first_key = existing.value[0][0].start_mark
    line = f"{' ' * first_key.column}without: {json.dumps(list(smoke['without']))}\n"
    return first_key.index - first_key.column, line


def check_rest_unchanged(before: str, after: str, file: str, image: str) -> None:
    """Raises ConfigError unless the new text means all that the old one did, and base.image."""
    try:
        old, new = yaml.safe_load(before), yaml.safe_load(after)
    except yaml.YAMLError as error:
        raise _edit_by_hand_error(file, image) from error
    if isinstance(new.get("smoke"), dict) and "without" not in (old.get("smoke") or {}):
        new["smoke"] = {key: value for key, value in new["smoke"].items() if key != "without"}
    same: Any = {key: value for key, value in new.items() if key in old and key != "base"}
    if same != {key: value for key, value in old.items() if key != "base"} or new["base"] != {"image": image}:
        raise _edit_by_hand_error(file, image)


def _image_node(base: yaml.Node) -> yaml.ScalarNode | None:
    pairs = base.value if isinstance(base, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == "image" and isinstance(value, yaml.ScalarNode)), None)


def _edit_by_hand_error(file: str, image: str) -> ConfigError:
    return ConfigError(
        f"{file}: it is written in a way that base cannot be added to", hint=f"write base: {{image: {image}}}"
    )


def _end_of_value(text: str, key: yaml.Node, value: yaml.Node) -> int:
    """Returns where the last line of a key's value ends. Comments behind it belong to the next key."""
    last = max(key.end_mark.index, *(leaf.end_mark.index for leaf in _leaf_nodes(value)))
    line = text.find("\n", last)
    return len(text) if line < 0 else line + 1


def _leaf_nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                yield from _leaf_nodes(part)
    else:
        yield node


def _insert(text: str, position: int, added: Mapping[str, str]) -> str:
    new = "".join(added.values())
    head = text[:position] if text[:position].endswith("\n") else text[:position] + "\n"
    if "\r\n" in head:
        new = new.replace("\n", "\r\n")
    return head + new + text[position:]
