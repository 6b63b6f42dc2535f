"""Rules for the arguments and variables of `vllm serve`: what Tandem decides itself, or could not work with."""

import re
from collections.abc import Iterator

from pipeline.config.launcher_contract import ADDRESS_VARIABLES, RAY_NODE_VARIABLE
from pipeline.config.models import Cluster, Serve

Problem = tuple[tuple[str | int, ...], str, str]
"""The key below the cluster's `serve`, what is wrong with its value, and a hint."""

DERIVED_ARGUMENTS = {
    "--model": "serve.model",
    "--served-model-name": "serve.name",
    "--port": "serve.port",
    "--host": "nodes (the first one's address)",
    "--tensor-parallel-size": "nodes and accelerators",
    "-tp": "nodes and accelerators",
    "--distributed-executor-backend": "executor",
    "--nnodes": "nodes",
    "-n": "nodes",
    "--node-rank": "nodes",
    "-r": "nodes",
    "--master-addr": "nodes",
    "--master-port": "nodes",
    "--headless": "nodes",
}
"""The arguments of `vllm serve` that Tandem derives, and the keys of pipeline.yaml that they follow from."""
PIPELINE_PARALLEL = ("--pipeline-parallel-size", "-pp")
DATA_PARALLEL = ("--data-parallel-size", "-dp")
TLS_PREFIX = "--ssl-"
NODE_VARIABLES = (*ADDRESS_VARIABLES, "HOST_IP", "MASTER_ADDR", "MASTER_PORT")
"""Variables with an address of a node, or of the head; Ray's are RAY_NODE_VARIABLE."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
"""Variables by which torch.distributed tells processes apart."""


def serve_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yields what is wrong with serve.args and serve.env."""
    yield from _argument_problems(cluster.serve)
    yield from _size_problems(cluster)
    for variable in cluster.serve.env:
        if variable in (*NODE_VARIABLES, *RANK_VARIABLES) or RAY_NODE_VARIABLE.fullmatch(variable):
            reason = "it differs from node to node, and every node gets serve.env"
            hint = "leave it out: Tandem sets it where it is needed, and nodes[].address gives a node its own address"
            yield ("env", variable), reason, hint


def _argument_problems(serve: Serve) -> Iterator[Problem]:
    for index, word in enumerate(serve.args):
        option = _option(word)
        if word.startswith("-") and re.search(r"\s", option):
            # The value is not shown: it may be a secret.
            reason = f"{option.split()[0]} and its value are one word, and vLLM takes the whole for an option"
            yield ("args", index), reason, "make the value an entry of its own: [--option, value]"
        if option in DERIVED_ARGUMENTS:
            hint = f"it follows from {DERIVED_ARGUMENTS[option]} of the cluster: leave it out"
            yield ("args", index), f"Tandem gives {option} itself", hint
        if option.startswith(TLS_PREFIX):
            reason = f"{option} makes the service speak https, and Tandem asks it over http on loopback"
            yield ("args", index), reason, "leave it out; a proxy in front of serve.port can speak https"


def _size_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yields parallel sizes whose product is not the number of accelerators, all of which Tandem gives to tensors."""
    pipeline, data = (_last_size(cluster.serve, names) for names in (PIPELINE_PARALLEL, DATA_PARALLEL))
    accelerators = len(cluster.nodes) * cluster.accelerators
    if pipeline * data != 1:
        needed = f"tensor, pipeline and data parallel need {accelerators} × {pipeline} × {data} accelerators"
        hint = "leave out -pp and -dp: the tensor parallel size is nodes × accelerators"
        yield ("args",), f"{needed}, and there are {accelerators}", hint


def _last_size(serve: Serve, names: tuple[str, str]) -> int:
    """Returns the last value that an option gets; 1, which is vLLM's default, if it gets none that is a number."""
    size = 1
    for word, following in zip(serve.args, (*serve.args, "")[1:], strict=True):
        if _option(word) in names:
            _, equals, value = word.partition("=")
            value = value if equals else following
            size = int(value) if value.isdecimal() else size
    return size


def _option(word: str) -> str:
    """Returns the option that a word names, spelled as vLLM's help does."""
    option = word.partition("=")[0]
    return option.replace("_", "-") if option.startswith("--") else option
