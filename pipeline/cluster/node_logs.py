"""What the nodes write, without API keys: one log file per node, and the causes of failures that it tells of."""

import re
import threading
from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster import causes
from pipeline.cluster.plan import NodePlan
from pipeline.cluster.service_api import hide_keys
from pipeline.config.models import Serve
from pipeline.core.log import Log

PROGRESS_CHARS = 60


class NodeLogs:
    """The output of all nodes since they started, in memory and in files."""

    def __init__(self, plans: Sequence[NodePlan], serve: Serve, folder: Path, log: Log) -> None:
        self.newest = ""
        """The newest line of any node, cut to what a progress line has room for."""
        self._serve = serve
        self._folder = folder
        self._log = log
        self._lines: dict[str, list[str]] = {plan.node: [] for plan in plans}
        self._writing = threading.Lock()

    def start(self) -> None:
        """Creates the folder, and an empty file per node."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for node in self._lines:
            log_file(self._folder, node).write_text("")

    def add(self, node: str, line: str) -> None:
        """Keeps a line; the file and the task's log get it without API keys."""
        with self._writing:
            self._lines[node].append(line)
            shown = hide_keys(line, self._serve)
            with log_file(self._folder, node).open("a", encoding="utf-8") as file:
                file.write(shown + "\n")
        self._log.line(f"[{node}] {shown}")
        self.newest = shorten(shown)

    def text(self, node: str) -> str:
        """Returns all that the node has written."""
        with self._writing:
            return "\n".join(self._lines[node])

    def last_words(self, node: str) -> str:
        """Returns the node's last errors or lines, without API keys."""
        return hide_keys(causes.last_words(self.text(node)), self._serve)

    def diagnose(self, *, oom_killed: bool = False, exit_code: int = 0) -> causes.Cause | None:
        """Returns the cause that the nodes' output and a container's end tell of."""
        return causes.diagnose([self.text(node) for node in self._lines], oom_killed=oom_killed, exit_code=exit_code)

    def hide_keys_in(self, folder: Path) -> None:
        """Removes the API keys from the files of a folder, whose encoding need not be known."""
        for file in folder.glob("*"):
            text = file.read_text("latin-1")
            if (shown := hide_keys(text, self._serve)) != text:
                file.write_text(shown, "latin-1")


def diagnose_files(plans: Sequence[NodePlan], folder: Path) -> causes.Cause | None:
    """Returns the cause that the nodes' log files tell of."""
    files = [log_file(folder, plan.node) for plan in plans]
    return causes.diagnose([file.read_text(errors="replace") for file in files if file.exists()])


def log_file(folder: Path, node: str) -> Path:
    """Returns the path of a node's log file."""
    return folder / f"{node}.log"


def shorten(line: str, width: int = PROGRESS_CHARS) -> str:
    """Returns what a progress line has room for: the message without colours, time stamps and process names."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", line)
    text = re.sub(r"^(\([^)]*\) )*", "", text)
    text = re.sub(r"^(INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+\] ", "", text).strip()
    return text if len(text) <= width else text[: width - 1] + "…"
