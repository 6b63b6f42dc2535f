"""Small root filesystems as tars made in memory, for tests: a system Python, a venv, conda, distributions."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

Root = dict[str, "bytes | Program | Link | Hard | None"]


@dataclass(frozen=True)
class Program:
    """An executable file."""

    content: bytes = b"\x7fELF\x02\x01\x01" + b"\0" * 60


@dataclass(frozen=True)
class Link:
    """A symbolic link and what is written in it."""

    target: str


@dataclass(frozen=True)
class Hard:
    """A hard link to an entry before it."""

    target: str


def tar(entries: Mapping[str, "bytes | Program | Link | Hard | None"]) -> bytes:
    """The tar of a root; None is a folder, bytes a file that nobody may execute."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as into:
        for path, what in entries.items():
            entry = tarfile.TarInfo(path)
            entry.mode, content = 0o644, b""
            match what:
                case bytes():
                    content = what
                case Program(content=content):
                    entry.mode = 0o755
                case Link(target=target):
                    entry.type, entry.linkname = tarfile.SYMTYPE, target
                case Hard(target=target):
                    entry.type, entry.linkname = tarfile.LNKTYPE, target
                case None:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.size = len(content)
            into.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def script(first: str, rest: str = "") -> Program:
    """An executable script with this interpreter."""
    return Program(f"#!{first}\n{rest}".encode())


def python(version: str, prefix: str = "usr", site: str = "", banner: bool = True) -> Root:
    """A CPython below a prefix; `site` is the text of its site.py, `banner` whether its program tells its version."""
    minor = ".".join(version.split(".")[:2])
    told = f"\0strict\0{version}\0release\0".encode() if banner else b""
    return {
        f"{prefix}/bin/python{minor}": Program(Program().content + told),
        f"{prefix}/bin/python3": Link(f"python{minor}"),
        f"{prefix}/lib/python{minor}/site.py": site.encode(),
        f"{prefix}/lib/python{minor}/os.py": b"",
    }


def debian(version: str = "3.11.2") -> Root:
    """A Debian with its Python and its glibc, as far as a reading looks."""
    libc = (
        b"\x7fELF" + b"\0" * (3 << 20) + b"GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\n"
    )
    return {
        "bin": Link("usr/bin"),
        "lib": Link("usr/lib"),
        "usr/lib/os-release": b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\nHOME_URL=x\n',
        "etc/os-release": Link("../usr/lib/os-release"),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/sh\n",
        "usr/lib/aarch64-linux-gnu/libc.so.6": libc,
        "usr/lib/x86_64-linux-gnu/libc.so.6": libc,
        "usr/bin/bash": Program(),
        "usr/bin/sh": Link("bash"),
        "usr/bin/apt-get": Program(),
        **python(version, site="# Debian: dist-packages"),
    }


def venv(where: str, home: str, minor: str, settings: str = "") -> Root:
    """A venv at a path below the root, made from the Python in a folder."""
    return {
        f"{where}/pyvenv.cfg": f"home = {home}\ninclude-system-site-packages = false\n{settings}".encode(),
        f"{where}/bin/python3": Link("python"),
        f"{where}/bin/python": Link(f"{home}/python{minor}"),
        f"{where}/lib64": Link("lib"),
    }


def distribution(folder: str, name: str, version: str, *requires: str, **files: bytes) -> Root:
    """A distribution's metadata in a folder; `files` lie beside METADATA, with _json for .json in their names."""
    where = f"{folder}/{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
    text = "\n".join(["Metadata-Version: 2.4", *lines, "", "A text with\nName: trap\n"])
    more = {f"{where}/{key.replace('_json', '.json')}": content for key, content in files.items()}
    return {f"{where}/METADATA": text.encode(), **more}


REGISTRY = b"""\
_TEXT_GENERATION_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
_MULTIMODAL_MODELS = {"Qwen3_5MoeForConditionalGeneration": ("qwen3_5", "Qwen3_5MoeForConditionalGeneration")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}
"""
"""A registry.py of vLLM, as short as one can be."""
