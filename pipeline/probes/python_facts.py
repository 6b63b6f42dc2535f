"""Answers questions about the Python side of an image from inside it, in one process that loads torch and vLLM once.

`python3 python_facts.py '["versions", "import:torch", …]'` takes the questions as JSON. It announces each question
before it works on it, and writes the answer as soon as it has it, in lines that begin with MARK. Other output of
libraries does not matter. If the process dies, the last announced question is the cause.

It runs in foreign images: it imports the standard library, and otherwise only what a question is about.
"""

import base64
import contextlib
import csv
import functools
import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import subprocess  # noqa: TID251  # inside an image there is no pipeline.core.procs
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "@@tandem "
MULTI_NODE = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29501", "--headless"]
"""The options of `vllm serve` without Ray (docs/launcher-contract.md 2.2)."""
RAY_START = {
    "head, until 2026-03-11": "--block --head --port 6379 --node-ip-address 10.0.0.1 --include-dashboard=True"
    " --dashboard-host 0.0.0.0 --dashboard-port 8265 --disable-usage-stats",
    "head, since": "--block --head --port 29501 --object-store-memory 1073741824 --num-cpus 2"
    " --node-ip-address 10.0.0.1 --include-dashboard=false --disable-usage-stats",
    "worker": "--block --address=10.0.0.1:29501 --object-store-memory 1073741824 --num-cpus 2"
    " --node-ip-address 10.0.0.2 --disable-usage-stats",
}
"""The options of `ray start` in all eras (docs/launcher-contract.md 2.1 to 2.4)."""
DECIDING = re.compile(
    r"vllm/(model_executor/models|transformers_utils)/.*\.py|transformers/(models/auto/.*|modeling_rope_utils)\.py"
)
"""The files that decide which models are known, and how a model's configuration is read."""


@functools.cache
def _distributions() -> list[tuple[str, str, str, Any, Any]]:
    """Returns name, version, folder, metadata and object of each distribution, in the order of Python's path."""
    rows = []
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        if "Name" in metadata:
            folder = str(distribution.locate_file(""))
            rows.append((str(metadata["Name"]), str(metadata["Version"]), folder, metadata, distribution))
    return rows


def versions(_: str) -> list[list[str]]:
    """Returns name, version and folder of every distribution."""
    return [[name, version, folder] for name, version, folder, _, _ in _distributions()]


def requirements(_: str) -> dict[str, Any]:
    """Returns the interpreter's version, and name, version, folder, requirements and extras of every distribution."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "distributions": [
            [name, version, folder, distribution.requires or [], metadata.get_all("Provides-Extra") or []]
            for name, version, folder, metadata, distribution in _distributions()
        ],
    }


def changed(_: str) -> list[list[Any]]:
    """Returns the deciding files that differ from their RECORD: distribution, its version, path, whether it exists.

    A file without a hash, as editable installs have them, and a distribution without a RECORD are not compared.
    """
    rows: list[list[Any]] = []
    for name, version, _, _, distribution in _distributions():
        if name.startswith(("vllm", "transformers")):
            rows += [[name, version, path, exists] for path, exists in _changed(distribution)]
    return rows


def _changed(distribution: Any) -> list[tuple[str, bool]]:
    files = []
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if len(row) < 2 or "=" not in row[1] or not DECIDING.fullmatch(row[0]):
            continue
        algorithm, _, written = row[1].partition("=")
        path = Path(str(distribution.locate_file(row[0])))
        if not path.is_file():
            files.append((str(path), False))
        elif algorithm in hashlib.algorithms_available:
            digest = hashlib.new(algorithm, path.read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != written.rstrip("="):
                files.append((str(path), True))
    return files


def import_module(name: str) -> dict[str, str]:
    """Returns the module's version, and its file with links resolved (`real`)."""
    module = importlib.import_module(name)
    file = str(module.__file__)
    return {"version": str(getattr(module, "__version__", "")), "real": os.path.realpath(file)}


def library(name: str) -> str:
    """Loads a shared library, and returns its name."""
    import ctypes

    ctypes.CDLL(name)
    return name


def registry(architecture: str) -> dict[str, Any]:
    """Returns whether vLLM's registry lists and loads an architecture.

    `looks_in` is the registry's file, `known` the number of its entries, `listed` whether this one is there. A listed
    architecture has `loaded` (its class) or `fails` (the error). Any other has `files` of vLLM that define its class,
    and `main`, the listed models that it is the MTP heads of.
    """
    module: Any = importlib.import_module("vllm.model_executor.models.registry")
    # vLLM inspects a class in another process so as not to initialise CUDA in this one. Here CUDA does not matter, and
    # that process would import torch and vLLM again for every class.
    if hasattr(module, "_run_in_subprocess"):
        module._run_in_subprocess = lambda function: function()  # noqa: SLF001
    models = module.ModelRegistry.models
    file = Path(str(module.__file__))
    entry: dict[str, Any] = {
        "looks_in": str(file),
        "known": len(models),
        "listed": architecture in module.ModelRegistry.get_supported_archs(),
    }
    if not entry["listed"]:
        return {**entry, "files": _defining(file.parent, architecture), "main": _main(module, architecture)}
    try:
        models[architecture].inspect_model_cls()
        loaded = models[architecture].load_model_cls()
    except Exception as error:
        traceback.print_exc()
        return {**entry, "fails": f"{type(error).__name__}: {error}"}
    return {**entry, "loaded": f"{loaded.__module__}.{loaded.__qualname__}"}


def _main(module: Any, architecture: str) -> list[str]:
    """Returns the listed models whose multi-token prediction heads an architecture is."""
    begin, heads, _ = architecture.partition("MTP")
    listed = module.ModelRegistry.get_supported_archs()
    return sorted(name for name in listed if heads and name.startswith(f"{begin}For"))


def _defining(folder: Path, class_name: str) -> list[str]:
    pattern = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    files = sorted(folder.glob("**/*.py"))
    return [str(file) for file in files if pattern.search(file.read_text("utf-8", "replace"))]


def models(_: str) -> dict[str, list[str]]:
    """Returns what vLLM's registry lists by itself, and what plug-ins add to it."""
    module: Any = importlib.import_module("vllm.model_executor.models.registry")
    listed = sorted(module.ModelRegistry.get_supported_archs())
    importlib.import_module("vllm.plugins").load_general_plugins()
    return {"listed": listed, "plugins": sorted(set(module.ModelRegistry.get_supported_archs()) - set(listed))}


def config(folder: str) -> dict[str, Any]:
    """Returns how vLLM reads the config.json of a folder.

    `class` is the class of the configuration, `architectures` its architectures, and `differs` the whole numbers that
    vLLM reads differently: key, number in the file, number as read.
    """
    written = json.loads(Path(folder, "config.json").read_text("utf-8"))
    module: Any = importlib.import_module("vllm.transformers_utils.config")
    parsed = module.get_config(folder, trust_remote_code=False)
    text = parsed.get_text_config()
    numbers = written.get("text_config", written)
    return {
        "class": f"{type(parsed).__module__}.{type(parsed).__qualname__}",
        "architectures": list(parsed.architectures or ()),
        "differs": [
            [key, value, getattr(text, key, None)]
            for key, value in sorted(numbers.items())
            if type(value) is int and getattr(text, key, None) != value
        ],
    }


def serve_options(_: str) -> dict[str, list[str]]:
    """Returns the multi-node options that the help of `vllm serve` does not list.

    Later releases list all options for --help=all only, and older ones for --help only. Raises RuntimeError if
    `vllm serve` prints no help.
    """
    missing = [word for word in MULTI_NODE if word.startswith("--")]
    failures = []
    for option in ("--help=all", "--help"):
        status, output = _vllm("serve", option)
        if status != 0:
            failures.append(f"`vllm serve {option}` ended with {status}: {output.strip()[-200:] or 'no output'}")
            continue
        listed = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", output))
        missing = [word for word in missing if word not in listed]
        if not missing:
            return {"missing": []}
    if len(failures) == 2:
        raise RuntimeError("; ".join(failures))
    return {"missing": missing}


def _vllm(*words: str) -> tuple[int | str | None, str]:
    """Runs the program `vllm`; returns its exit status and standard output.

    It runs by its entry point in this process, which has loaded vLLM already; as a program only without entry point.
    """
    scripts = importlib.metadata.entry_points(group="console_scripts", name="vllm")
    if not scripts:
        result = subprocess.run(["vllm", *words], stdout=subprocess.PIPE, text=True, check=False)
        return result.returncode, result.stdout
    output, arguments = io.StringIO(), sys.argv
    sys.argv = ["vllm", *words]
    try:
        with contextlib.redirect_stdout(output):
            next(iter(scripts)).load()()
    except SystemExit as end:
        return end.code or 0, output.getvalue()
    finally:
        sys.argv = arguments
    return 0, output.getvalue()


def ray_options(_: str) -> list[str]:
    """Parses the command lines of `ray start` that launchers use, without running them; returns their names."""
    module: Any = importlib.import_module("ray.scripts.scripts")
    for options in RAY_START.values():
        module.start.make_context("start", options.split())
    return list(RAY_START)


def dashboard(_: str) -> str:
    """Imports what ray[default] adds to Ray; returns its file."""
    module = importlib.import_module("ray.dashboard.optional_deps")
    return str(module.__file__)


QUESTIONS: dict[str, Callable[[str], Any]] = {
    "versions": versions,
    "requirements": requirements,
    "changed": changed,
    "library": library,
    "import": import_module,
    "registry": registry,
    "models": models,
    "config": config,
    "serve-options": serve_options,
    "ray-options": ray_options,
    "dashboard": dashboard,
}


def answer(question: str) -> dict[str, Any]:
    """Returns the answer to one question (`kind` or `kind:argument`), or the error."""
    kind, _, argument = question.partition(":")
    try:
        return {"question": question, "value": QUESTIONS[kind](argument)}
    # Whatever a library raises, a parser's SystemExit included, answers this question and must not stop the others.
    except BaseException as error:
        traceback.print_exc()
        return {"question": question, "error": f"{type(error).__name__}: {error}"}


def main(questions: list[str]) -> None:
    """Answers the questions in their order."""
    # Libraries may redirect stdout; the answers keep the original one.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(record: dict[str, Any]) -> None:
        sys.stdout.flush()
        out.write(f"\n{MARK}{json.dumps(record)}\n")
        out.flush()

    say({"pid": os.getpid()})
    for question in questions:
        say({"asked": question})
        say(answer(question))
    # What threads and libraries do at exit is not part of any answer.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
