"""What each way of getting an image into the engine's store costs: exporter and compression, time, CPU, bytes.

usage: .venv/bin/python benchmarks/export.py IMAGE [--push HOST:PORT] [--only NAME,…]

Needs the image's archives, so `./doitw build:IMAGE` first. Every way builds without BuildKit's cache, is pushed if a
registry is named, and is removed again. CPU seconds are those of the engine and of containerd: on a machine that does
other things besides, they say more than the wall clock.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.config import loader  # noqa: E402  # the checkout is not installed
from pipeline.core import procs  # noqa: E402  # the checkout is not installed
from pipeline.core.log import NullLog  # noqa: E402
from pipeline.host import buildkit, engine  # noqa: E402  # the checkout is not installed
from pipeline.image import build  # noqa: E402  # the checkout is not installed
from pipeline.image.build import Parts  # noqa: E402
from pipeline.lock import lockfile  # noqa: E402  # the checkout is not installed

GZIP = {"compression": "gzip", "force-compression": "true"}
ZSTD = {"compression": "zstd", "force-compression": "true"}
PLAIN = {key: value for key, value in buildkit.EXPORT_OPTIONS.items() if "compression" not in key}
WAYS: Mapping[str, Mapping[str, str]] = {
    "gzip-default": GZIP,
    "gzip-1": {**GZIP, "compression-level": "1"},
    "zstd-1": {**ZSTD, "compression-level": "1"},
    "zstd-3": {**ZSTD, "compression-level": "3"},
    "uncompressed": {"compression": "uncompressed", "force-compression": "true"},
}


def cpu() -> float:
    """CPU seconds that dockerd and containerd have used so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        if name in {"dockerd", "containerd"}:
            ticks += sum(map(int, fields.split()[11:13]))
    return ticks / 100


@contextmanager
def measured(found: dict[str, float], what: str) -> Iterator[None]:
    """Note wall and CPU seconds of a piece of work."""
    start, used = time.monotonic(), cpu()
    yield
    found[what], found[f"{what} CPU"] = time.monotonic() - start, cpu() - used


def newest(folder: Path) -> Path:
    """The newest entry of a folder."""
    found = sorted(folder.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"{folder} is empty: ./doitw build first")
    return found[-1]


def one(way: str, name: str, parts: Parts, registry: str | None) -> dict[str, float]:
    """Build, push, unpack, each measured; the image is removed afterwards. Sizes in MB."""
    image, locked = loader.load_config(ROOT).images[name], lockfile.read_lock(name, ROOT)
    tag = f"{registry or 'localhost'}/benchmark/{name}:{way}"
    buildkit.EXPORT_OPTIONS = {**PLAIN, **WAYS[way]}
    found: dict[str, float] = {}
    client = engine.client(timeout_s=1800)
    with tempfile.TemporaryDirectory(dir=parts.base.parent) as scratch, measured(found, "build"):
        made = build.build(name, image, locked, parts, tag, Path(scratch), NullLog(), cache=False)
    try:
        found["MB in the store"] = made.size / 1e6
        if registry:
            with measured(found, "push"):
                procs.capture(["docker", "push", "--quiet", tag], inherit=procs.DOCKER, timeout_s=1800)
        with measured(found, "unpack"):
            client.containers.create(tag, ["none"], platform=locked.platform).remove()
    finally:
        client.images.remove(tag, force=True)
    return found


def main() -> None:
    """Measure every way and print one table."""
    parser = argparse.ArgumentParser(description="What each way into the image store costs.")
    parser.add_argument("image")
    parser.add_argument("--base", type=Path, help="the rootfs tar; by default the newest below artifacts/base")
    parser.add_argument(
        "--wheels", type=Path, help="the folder of layers; by default the newest below artifacts/wheels"
    )
    parser.add_argument("--push", metavar="HOST:PORT", help="a registry to push to; nothing is removed from it")
    parser.add_argument("--only", default=",".join(WAYS), help="the ways to measure, by default all")
    asked = parser.parse_args()
    parts = Parts(
        base=asked.base or newest(ROOT / "artifacts" / "base"),
        wheels=asked.wheels or newest(ROOT / "artifacts" / "wheels"),
        folder=ROOT / "dockerfiles" / asked.image,
    )
    results = {way: one(way, asked.image, parts, asked.push) for way in asked.only.split(",")}
    columns = list(next(iter(results.values())))
    print("| way | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for way, found in results.items():
        print(f"| {way} | " + " | ".join(f"{found[column]:.0f}" for column in columns) + " |")


if __name__ == "__main__":
    main()
