"""What the output of nodes and probes says."""

from pipeline.cluster import start
from pipeline.cluster.probe_output import find_answer


def test_ranks_are_parsed_from_the_log_of_each_node() -> None:
    log = (
        "INFO rank 1 in world size 2 is assigned as DP rank 0\n"
        "INFO rank 1 in world size 2 is assigned as DP rank 0\n"
        "INFO rank 0 in world size 1 is assigned as DP rank 0\n"
    )
    assert start.assigned_ranks(log, 2) == (1,)
    assert start.assigned_ranks("", 2) == ()


def test_the_answer_of_the_fabric_probe_is_found_among_other_output() -> None:
    said = '[Gloo] Rank 0 is connected\nTANDEM {"rank": 0, "right": true, "mib_per_s": 12.5}\n'
    assert find_answer(said) == {"rank": 0, "right": True, "mib_per_s": 12.5}
    assert find_answer("Traceback") is None
