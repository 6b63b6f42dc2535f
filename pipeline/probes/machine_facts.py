"""Prints what a launcher's operator knows of a machine: the interface of an address, RDMA devices, the file limit.

Runs in a container with the machine's network. The first argument is the address, the others are ports; `taken` are
the ports that are in use.
"""

import fcntl
import json
import resource
import socket
import struct
import sys
from pathlib import Path

SIOCGIFADDR = 0x8915  # netdevice(7)


def address(interface: str) -> str:
    """Returns the IPv4 address of an interface; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError:
            return ""


def taken(port: int) -> bool:
    """Tells whether a program on the machine listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
        return False


def main(wanted: str, ports: list[str]) -> None:
    """Prints the facts as one line of JSON."""
    interfaces = [name for _, name in socket.if_nameindex()]
    devices = Path("/sys/class/infiniband")
    facts = {
        "interface": next((name for name in interfaces if address(name) == wanted), ""),
        "rdma": sorted(path.name for path in devices.iterdir()) if devices.is_dir() else [],
        "taken": [port for port in map(int, ports) if taken(port)],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }
    print("@@machine " + json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
