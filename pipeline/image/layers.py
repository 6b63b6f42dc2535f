"""Which distribution lies in which layer: a pure function of the distributions' names and sizes.

When one pin changes, only the layer that holds it may change. So nothing here ranks, counts or fills up:

* A distribution over a limit has a layer to itself, whatever its neighbours are.
* The others go where the bits of their name's hash send them. Sixteen buckets to begin with; one that is too full
  is split by the next bit, which moves nothing outside it.
* Both limits are the wanted share of the tree rounded down to a power of two, so that they stay where they are
  while the tree's size wobbles; only when it crosses a power of two does the plan change elsewhere.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.core.errors import TandemError

OWN_SHARE = 0.01
BUCKET_SHARE = 0.03
FIRST_BITS = 4
# Docker's engine ends at 127 layers; the base and our own files are two of the hundred.
MOST = 99 - 2


@dataclass(frozen=True)
class Layer:
    """One layer of the image: its name, the distributions in it (sorted), their size in bytes."""

    name: str
    distributions: tuple[str, ...]
    size: int


def plan(sizes: Mapping[str, int]) -> tuple[Layer, ...]:
    """The layers for distributions of these sizes (name → bytes): own ones by name, then the shared ones by hash.

    The shares are kept unless that would take too many layers: then they double until it does not.
    """
    total = sum(sizes.values())
    own, bucket = _octave(total * OWN_SHARE), _octave(total * BUCKET_SHARE)
    while True:
        layers = _plan(sizes, own, bucket)
        if len(layers) <= MOST:
            return layers
        own, bucket = own * 2, bucket * 2


def of(layers: tuple[Layer, ...], distribution: str) -> Layer:
    """The layer that holds a distribution; raises TandemError if none does."""
    for layer in layers:
        if distribution in layer.distributions:
            return layer
    raise TandemError(f"{distribution}: in no layer of the plan")


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
    inside = {name: text for name, text in bits.items() if text.startswith(prefix)}
    size = sum(sizes[name] for name in inside)
    if size > bucket and len(inside) > 1:
        return _split(prefix + "0", inside, sizes, bucket) + _split(prefix + "1", inside, sizes, bucket)
    return [Layer(f"shared-{prefix}", tuple(inside), size)] if inside else []


def _bits(name: str) -> str:
    return f"{int.from_bytes(hashlib.sha256(name.encode()).digest()):0256b}"
