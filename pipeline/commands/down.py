"""`doit down`: stops a cluster and takes its containers and networks away."""

from typing import Any, ClassVar

from pipeline import cluster as clusters
from pipeline.commands.looking import Looking, Options
from pipeline.commands.places import chosen, connected, engines, named
from pipeline.errors import Exit


class Down(Looking):
    """doit's plugin command `down`."""

    name = "down"
    doc_purpose = "stop a cluster: its containers and networks go, images and records stay"
    doc_usage = "[CLUSTER]"
    doc_description = "Without CLUSTER it is the default one of pipeline.yaml."
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = ()

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:  # noqa: ARG002  # it has no options
        """Remove them and say so; returns the exit code."""
        name, cluster = named(next(iter(chosen(pos_args, self.name, most=1)), None))
        removed = []
        for endpoint in engines(cluster):
            with connected(endpoint) as client:
                removed += clusters.clear(client, name)
        print(f"{name}: removed {', '.join(removed)}" if removed else f"{name}: nothing runs")
        return Exit.OK
