"""Which wheels fit a target."""

import pytest

from pipeline.lock.wheel_tags import WheelTarget

SPARK = WheelTarget("arm64", "3.13", 41)


@pytest.mark.parametrize(
    "file",
    [
        "idna-3.10-py3-none-any.whl",
        "numpy-2.2.0-cp313-cp313-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "cryptography-45.0.0-cp311-abi3-manylinux_2_34_aarch64.whl",
        "ray-2.50.0-cp313-cp313-manylinux2014_aarch64.whl",
        "torch-2.10.0-3-cp313-cp313-manylinux_2_28_aarch64.whl",
        "uv-0.9.0-py3-none-manylinux_2_17_aarch64.whl",
        "odd-1.0-cp313-cp313-linux_aarch64.whl",
        "edge-1.0-cp313-cp313-manylinux_2_41_aarch64.whl",
    ],
)
def test_a_wheel_of_the_target_fits(file: str) -> None:
    assert SPARK.rank(file) is not None


@pytest.mark.parametrize(
    "file",
    [
        "numpy-2.2.0-cp313-cp313-manylinux_2_17_x86_64.whl",  # another architecture
        "numpy-2.2.0-cp312-cp312-manylinux_2_17_aarch64.whl",  # another interpreter
        "numpy-2.2.0-cp313-cp313t-manylinux_2_17_aarch64.whl",  # another ABI
        "numpy-2.2.0-cp314-abi3-manylinux_2_17_aarch64.whl",  # a later stable ABI
        "numpy-2.2.0-cp313-cp313-manylinux_2_42_aarch64.whl",  # a later glibc
        "numpy-2.2.0-cp313-cp313-musllinux_1_2_aarch64.whl",  # another libc
        "numpy-2.2.0-cp313-cp313-macosx_14_0_arm64.whl",  # another system
        "six-1.0-py2-none-any.whl",  # another Python
        "numpy-2.2.0.tar.gz",  # a source
        "nonsense.whl",
    ],
)
def test_a_wheel_for_another_target_does_not_fit(file: str) -> None:
    assert SPARK.rank(file) is None


def test_the_more_specific_wheel_is_the_better_one() -> None:
    ranks = [
        SPARK.rank(f"aiohttp-3.0-{tag}.whl")
        for tag in (
            "cp313-cp313-manylinux_2_28_aarch64",
            "cp313-cp313-manylinux_2_17_aarch64",
            "cp311-abi3-manylinux_2_28_aarch64",
            "py3-none-any",
        )
    ]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or 0)


def test_an_older_glibc_takes_fewer_wheels() -> None:
    assert WheelTarget("arm64", "3.11", 36).rank("x-1-cp311-cp311-manylinux_2_39_aarch64.whl") is None
    assert WheelTarget("amd64", "3.11", 36).rank("x-1-cp311-cp311-manylinux1_x86_64.whl") is not None
