"""Says of a machine what a launcher's operator would: the interface with an address, RDMA devices, the file limit.

Runs in a container with the machine's network; the address is the first argument, ports to look at are the others.
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
    """The IPv4 address of an interface, "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            asked = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24])
        except OSError:
            return ""


def taken(port: int) -> bool:
    """Whether something of the machine listens on a port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
        return False


def main(wanted: str, ports: list[str]) -> None:
    """Print the facts as one line of JSON."""
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
