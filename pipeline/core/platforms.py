"""Platforms ("linux/arm64") and what Debian, the kernel, Python and ELF files call their architectures."""

import os

MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
"""Maps Debian's and Docker's name of an architecture to that of the kernel and of Python."""
ARCHITECTURES = {machine: architecture for architecture, machine in MACHINES.items()}
"""Maps the kernel's and Python's name of an architecture to that of Debian and of Docker."""
PLATFORMS = tuple(f"linux/{architecture}" for architecture in MACHINES)
"""The platforms that an image can be made for."""
ELF_MACHINES = {"arm64": 183, "amd64": 62}
"""The field e_machine of an ELF header (System V ABI, chapter 4), by Debian's name of the architecture."""
CPUS = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
"""Names of processor architectures by e_machine. Accelerators and BPF are left out."""


def architecture_in(platform: str) -> str:
    """Returns the architecture in OS/ARCHITECTURE[/VARIANT]: "arm64" for "linux/arm64"."""
    return platform.split("/")[1]


def machine_of(platform: str) -> str:
    """Returns the kernel's name of a platform's architecture: "aarch64" for "linux/arm64". Unknown names stay."""
    architecture = architecture_in(platform)
    return MACHINES.get(architecture, architecture)


def architecture_of(machine: str) -> str:
    """Returns Debian's and Docker's name of an architecture: "arm64" for "aarch64". Unknown names stay."""
    return ARCHITECTURES.get(machine, machine)


def this_architecture() -> str:
    """Returns the architecture of this machine, by Debian's and Docker's name."""
    return architecture_of(os.uname().machine)
