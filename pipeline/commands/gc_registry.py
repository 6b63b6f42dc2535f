"""Finds manifests in the registry that this checkout pushed (images, shared records) and does not need any more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.core.errors import TandemError
from pipeline.core.http_client import is_loopback
from pipeline.graph.garbage import MANIFESTS, Item, KeptReferences
from pipeline.host import engine
from pipeline.registry import api, local, records


def find_old_manifests(kept: KeptReferences, address: str, repositories: Sequence[str]) -> Iterator[Item]:
    """Yields manifests in these repositories whose digests only records to be removed mention.

    Their bytes are an estimate: config and layers that no other manifest of the repository uses, as far as its tags
    and the kept records name them. Raises Unreachable if no registry answers, TandemError for a wrong answer.
    """
    going = _digests(digest for digest in kept.ours if kept.lets_go(digest))
    for repository in repositories:
        old = api.existing_references(address, repository, going)
        if not old:
            continue
        mentioned = api.existing_references(address, repository, _digests(kept.hashes))
        others = {*api.list_tags(address, repository), *mentioned}
        staying: set[str] = set()
        for reference in others:
            manifest = api.get_manifest(address, repository, reference)
            if manifest and manifest.digest not in old:
                staying.update(_blobs(manifest.value))
        counted = set(staying)
        for digest in old:
            manifest = api.get_manifest(address, repository, digest)
            blobs = _blobs(manifest.value) if manifest else {}
            freed = sum(size for blob, size in blobs.items() if blob not in counted)
            counted.update(blobs)
            remove = partial(api.delete_manifest, address, repository, digest)
            yield Item(kind=MANIFESTS, name=f"{address}/{repository}@{digest}", bytes=freed, remove=remove)


def find_old_shared_records(kept: KeptReferences, address: str, repository: str) -> Iterator[Item]:
    """Yields shared records in this repository of results that are removed here. Raises as find_old_manifests()."""
    tags = [records.record_tag(task, fingerprint) for task, fingerprint in sorted(kept.going)]
    for tag in api.existing_references(address, repository, tags):
        manifest = api.get_manifest(address, repository, tag)
        if manifest:
            remove = partial(api.delete_manifest, address, repository, manifest.digest)
            size = sum(_blobs(manifest.value).values())
            yield Item(kind=MANIFESTS, name=f"{address}/{repository}:{tag}", bytes=size, remove=remove)


def collect_registry_garbage(address: str) -> None:
    """Has a registry of ours free what no manifest uses; another party's is left alone. Raises HostError, TandemError.

    Not with `--delete-untagged`: an image that is pulled by digest has lost its tag to a newer one.
    """
    name = local.container_name(address)
    container = engine.find_container("local", name)
    if not is_loopback(address) or not container or not container["State"]["Running"]:
        return
    if (container["Config"]["Labels"] or {}).get(engine.LABEL) != "registry":
        return
    with engine.session("local") as client:
        code, output = client.containers.get(name).exec_run(list(local.COLLECT_COMMAND))
    if code:
        raise TandemError(f"{name} frees no space: {str(output)[-500:]}")


def _digests(hashes: Iterable[str]) -> list[str]:
    return [f"sha256:{digest}" for digest in sorted(hashes) if len(digest) == 64]


def _blobs(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes in bytes of config and layers by digest."""
    parts = [part for part in (manifest.get("config"), *manifest.get("layers", ())) if part]
    return {part["digest"]: part["size"] for part in parts}
