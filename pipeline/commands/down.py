"""`./doitw down`: stops a cluster and removes its containers and networks."""

from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.cluster.nodes import remove_cluster
from pipeline.commands.base import GraphCommand, Options
from pipeline.commands.clusters import check_word_count, on_each_engine, select_cluster
from pipeline.core.errors import Exit

if TYPE_CHECKING:
    from docker import DockerClient


class DownCommand(GraphCommand):
    """doit's plugin command `down`."""

    name = "down"
    doc_purpose = "stop a cluster: its containers and networks go, images and records stay"
    doc_usage = "[CLUSTER]"
    doc_description = (
        "Without CLUSTER it is the default one of pipeline.yaml. One that was removed from pipeline.yaml is found by "
        "its containers, and what a reference that was killed left goes too."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = ()

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:  # noqa: ARG002  # it has no options
        """Remove them and print their names; returns the exit code."""
        selection = select_cluster(next(iter(check_word_count(pos_args, self.name, most=1)), None))

        def clear(client: "DockerClient") -> list[str]:
            return [removed for name in selection.names for removed in remove_cluster(client, name)]

        removed = [name for names in on_each_engine(selection, clear).values() for name in names]
        print(f"{selection.name}: removed {', '.join(removed)}" if removed else f"{selection.name}: nothing runs")
        return Exit.OK
