"""Ports for what a test starts."""

import os
import random
import socket

FIRST, EACH = 20_000, 1_000
"""Below the ports that the kernel gives away (net.ipv4.ip_local_port_range); every worker of pytest has its own."""


def free_port() -> int:
    """A port that nobody listens at, and that no other worker is given."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
    first = FIRST + worker * EACH
    for port in random.sample(range(first, first + EACH), EACH):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError(f"every port from {first} on is taken")
