"""Finds old images outside of the checkout and its engine: in the registry, and on the nodes of the clusters."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.commands.gc_images import old_images_among
from pipeline.commands.gc_registry import collect_registry_garbage, find_old_manifests, find_old_shared_records
from pipeline.config import loader
from pipeline.core.errors import TandemError
from pipeline.graph.garbage import HASH, MANIFESTS, Item, KeptReferences
from pipeline.host import engine
from pipeline.registry import api

ENGINE_TIMEOUT_S = 30  # s: a node that is switched off must not hold up the rest


def find_old_elsewhere(root: Path, kept: KeptReferences) -> tuple[list[Item], list[str]]:
    """Returns what can be removed from the machines in pipeline.yaml (if there is one), and notes on what stays.

    An image that a container of any engine names stays everywhere. Raises ConfigError.
    """
    if not (root / loader.PIPELINE_FILE).is_file():
        return [], []
    config = loader.load_config(root)
    endpoints = {node.endpoint for cluster in config.pipeline.clusters.values() for node in cluster.nodes}
    items: list[Item] = []
    engines, notes = _look({"local"} | endpoints)
    used = HASH.findall(json.dumps([containers for _, containers in engines.values()]))
    kept = replace(kept, hashes=kept.hashes | set(used))
    target = config.pipeline.registry
    for endpoint, (images, containers) in engines.items():
        if endpoint != "local":
            items += old_images_among(kept, endpoint, images, containers, f"{target.repository}/")
    if notes:
        return items, [*notes, "the registry is left alone: only those engines know what they use of it"]
    try:
        items += find_old_manifests(kept, target.address, [f"{target.repository}/{name}" for name in config.images])
        if target.records == "push":
            items += find_old_shared_records(kept, target.address, f"{target.repository}/records")
    except TandemError as error:
        notes.append(f"the registry is left alone: {error}")
    return items, notes


def remove_all(items: Iterable[Item], notes: list[str]) -> list[Item]:
    """Removes items, and has our own registries free their space; returns the removed ones.

    If a registry forbids that, or does not free the space, a note is added. Raises HostError, TandemError.
    """
    removed: list[Item] = []
    for item in items:
        try:
            item.remove()
        except api.DeletionDisabled as error:
            if str(error) not in notes:
                notes.append(str(error))
        else:
            removed.append(item)
    for address in {item.name.partition("/")[0] for item in removed if item.kind == MANIFESTS}:
        try:
            collect_registry_garbage(address)
        except TandemError as error:
            notes.append(str(error))
    return removed


def _look(endpoints: set[str]) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """Returns images and containers of each engine, and a note on each that does not answer."""
    engines: dict[str, tuple[Any, Any]] = {}
    notes: list[str] = []
    for endpoint in sorted(endpoints):
        try:
            with engine.session(endpoint, timeout_s=ENGINE_TIMEOUT_S) as client:
                engines[endpoint] = engine.list_images(client), client.api.containers(all=True)
        except TandemError as error:
            notes.append(f"{endpoint} is left alone: {error}")
    return engines, notes
