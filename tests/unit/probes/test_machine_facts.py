"""What a machine says of itself, as far as this machine can say it without a lab."""

import json
import socket

import pytest

from pipeline.probes import machine_facts


def test_a_port_on_which_something_listens_is_taken_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine_facts.taken(port)
    assert not machine_facts.taken(port)


def test_of_the_ports_asked_for_those_that_are_taken_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as server, socket.socket() as free:
        free.bind(("", 0))
        ports = server.getsockname()[1], free.getsockname()[1]
        free.close()
        machine_facts.main("127.0.0.1", [str(port) for port in ports])
    mark, _, facts = capsys.readouterr().out.partition(" ")
    facts = json.loads(facts)
    assert (mark, facts["taken"], facts["interface"]) == ("@@machine", [ports[0]], "lo")
    assert facts["nofile"] > 0
