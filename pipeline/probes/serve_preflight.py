"""Tells what a node's machine has, whether the model is there, and which of its files are links that lead nowhere.

`python3 -c THIS [MODEL]` prints one line: TANDEM and the JSON object that look() returns.
"""

import json
import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = Path("/proc/meminfo")


def look(model: str | None) -> dict[str, Any]:
    """Returns the machine's facts: the hard limit on open files (None for none), and links by paths below the model."""
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
    return {
        "machine": platform.machine(),
        "open_files": None if open_files == resource.RLIM_INFINITY else open_files,
        "available_kib": int(memory["MemAvailable"].split()[0]),
        "model_found": model is None or Path(model).is_dir(),
        "broken_links": sorted(broken_links(model)) if model else [],
    }


def broken_links(folder: str) -> Iterator[str]:
    """Yields the links below a folder whose targets do not exist."""
    for root, folders, files in os.walk(folder):
        for path in (Path(root, name) for name in (*folders, *files)):
            if not path.exists():
                yield str(path.relative_to(folder))


if __name__ == "__main__":
    print("TANDEM " + json.dumps(look(sys.argv[1] if len(sys.argv) > 1 else None)), flush=True)
