"""A deploy with nothing to do, which looks at files, store, registry, nodes and health, against one cached image build.

usage: .venv/bin/python benchmarks/noop.py [--rounds N]

Needs the default cluster to be up: `./doitw deploy` first. Rounds alternate, so that both meet the same machine; the
median and the least of each are shown, and the ratio of the medians. What it is measured against is what a user would
run instead: `docker buildx build` of the same image from the same context, everything cached.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.config import loader  # noqa: E402  # the checkout is not installed
from pipeline.core import procs  # noqa: E402  # the checkout is not installed
from pipeline.core.log import NullLog  # noqa: E402
from pipeline.graph.decide import decide_all  # noqa: E402
from pipeline.image import build  # noqa: E402  # the checkout is not installed
from pipeline.image.build import Parts  # noqa: E402
from pipeline.lock import lockfile  # noqa: E402  # the checkout is not installed
from pipeline.tasks.project import build_graph  # noqa: E402

DOIT = (sys.executable, "-m", "doit")


def once(argv: Sequence[str]) -> float:
    """Seconds that a command takes; raises ProgramError unless it ends well."""
    start = time.perf_counter()
    procs.capture(argv, env=os.environ, cwd=ROOT, timeout_s=600)
    return time.perf_counter() - start


def context(into: Path) -> list[str]:
    """The build context of the default cluster's image in `into`; the command that builds it as a user would."""
    loaded = loader.load_config(ROOT)
    name = loaded.cluster(loaded.pipeline.default).image
    decisions = decide_all(build_graph(loaded), [f"build:{name}"])
    base, wheels, image = (decisions[f"{kind}:{name}"].outputs for kind in ("base", "wheels", "build"))
    if not base or not wheels or not image:
        raise SystemExit(f"build:{name} is not up to date: ./doitw deploy first")
    parts = Parts(
        base=ROOT / "artifacts" / "base" / f"{base['sha256']}.tar",
        wheels=ROOT / "artifacts" / "wheels" / str(wheels["digest"]).removeprefix("sha256:"),
        folder=ROOT / "dockerfiles" / name,
    )
    locked = lockfile.read_lock(name, ROOT)
    there = into / "context"
    there.mkdir()
    build.write_context(name, loaded.images[name], locked, parts, there, NullLog())
    options = ["--platform", locked.platform, "--provenance=false", "--network", "none", "--quiet"]
    options += ["--build-arg", f"SOURCE_DATE_EPOCH={locked.epoch}", "--output", "type=cacheonly"]
    options += [
        word for key, value in build.image_labels(name, locked).items() for word in ("--label", f"{key}={value}")
    ]
    return ["docker", "buildx", "build", *options, str(there)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    artifacts = ROOT / "artifacts"
    artifacts.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=artifacts) as folder:
        ways: Mapping[str, Sequence[str]] = {
            "doit deploy": (*DOIT, "deploy"),
            "doit why deploy": (*DOIT, "why", "deploy"),
            "doit status": (*DOIT, "status"),
            "doit plan deploy": (*DOIT, "plan", "deploy"),
            "docker buildx build, cached": context(Path(folder)),
            "doit --version": (sys.executable, str(Path(sys.executable).with_name("doit")), "--version"),
            "./doitw --version": (str(ROOT / "doitw"), "--version"),
        }
        once(ways["docker buildx build, cached"])
        once(ways["doit deploy"])
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, argv in ways.items():
                taken[way].append(once(argv))
    for way, seconds in taken.items():
        print(f"{way:28}  median {statistics.median(seconds):.3f} s  least {min(seconds):.3f} s")
    ratio = statistics.median(taken["docker buildx build, cached"]) / statistics.median(taken["doit deploy"])
    print(f"a deploy with nothing to do is {ratio:.1f} times as fast as a cached build of its image")
    added = statistics.median(taken["./doitw --version"]) - statistics.median(taken["doit --version"])
    print(f"./doitw adds {added:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
