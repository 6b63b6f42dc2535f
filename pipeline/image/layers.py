"""The plan of an image's layers: a pure function of the names and sizes of its distributions.

When one pin changes, only the layer that holds it may change. So nothing here ranks, counts or fills up:

* A distribution over a limit has a layer to itself, whatever its neighbours are.
* The bits of its name's hash decide the bucket of every other distribution. There are sixteen buckets at first; a
  bucket over its limit is split by the next bit, which moves nothing outside it.
* Both limits are the wanted share of the tree rounded down to a power of two, so that they stay where they are
  while the tree's size wobbles; only when it crosses a power of two does the plan change elsewhere.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

OWN_SHARE = 0.01
"""The share of the tree over which a distribution has a layer to itself."""
BUCKET_SHARE = 0.03
"""The share of the tree over which a bucket is split."""
FIRST_BITS = 4
"""How many bits of a hash name the first buckets."""
MOST_LAYERS = 99 - 2
"""Docker's engine allows 127 layers; the base and our own files take two of the hundred that we allow ourselves."""


@dataclass(frozen=True)
class Layer:
    """One layer of the image."""

    name: str
    distributions: tuple[str, ...]
    """The normalised names of the distributions in it, sorted."""
    size: int
    """Their size in bytes."""


def plan_layers(sizes: Mapping[str, int]) -> tuple[Layer, ...]:
    """Returns the layers for distributions of these sizes (name → bytes): own ones by name, then shared ones by hash.

    If that takes too many layers, the shares double until it does not.
    """
    total = sum(sizes.values())
    own, bucket = _octave(total * OWN_SHARE), _octave(total * BUCKET_SHARE)
    while True:
        layers = _plan(sizes, own, bucket)
        if len(layers) <= MOST_LAYERS:
            return layers
        own, bucket = own * 2, bucket * 2


def _octave(size: float) -> int:
    return 1 << max(int(size).bit_length() - 1, 0)


def _plan(sizes: Mapping[str, int], own: int, bucket: int) -> tuple[Layer, ...]:
    alone = [Layer(name, (name,), sizes[name]) for name in sorted(sizes) if sizes[name] > own]
    rest = {name: _bits(name) for name in sorted(sizes) if sizes[name] <= own}
    shared: list[Layer] = []
    for number in range(2**FIRST_BITS):
        shared += _split(f"{number:0{FIRST_BITS}b}", rest, sizes, bucket)
    return (*alone, *shared)


def _split(prefix: str, bits: Mapping[str, str], sizes: Mapping[str, int], bucket: int) -> list[Layer]:
    members = {name: text for name, text in bits.items() if text.startswith(prefix)}
    size = sum(sizes[name] for name in members)
    if size > bucket and len(members) > 1:
        return _split(prefix + "0", members, sizes, bucket) + _split(prefix + "1", members, sizes, bucket)
    return [Layer(f"shared-{prefix}", tuple(members), size)] if members else []


def _bits(name: str) -> str:
    return f"{int.from_bytes(hashlib.sha256(name.encode()).digest()):0256b}"
