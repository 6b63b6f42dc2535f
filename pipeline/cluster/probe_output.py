"""The line of JSON that a probe prints among what other programs print."""

import json
from typing import Any

MARK = "TANDEM "


def find_answer(output: str) -> dict[str, Any] | None:
    """Returns the JSON object that a probe printed; None if it printed none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                answer = json.loads(line.removeprefix(MARK))
            except ValueError:
                continue
            if isinstance(answer, dict):
                return answer
    return None
