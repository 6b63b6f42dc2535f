"""Which entrypoints hand over to the command they are given, as far as that can be read."""

import pytest

from pipeline.foreign.entrypoint import entrypoint_script, hands_over

BASH = "#!/bin/bash\n"
PLAIN = {
    "nothing else": 'exec "$@"',
    "a profile": 'set -euo pipefail\nsource /opt/setup.sh\n. /opt/more.sh\n\nexec "$@"\n',
    "settings": "# what `vllm` reads\nset -x\nA=1\nexport B=\"x y\" \nexport C='a b'\nPATH=/opt/bin:$PATH\nexport A\n"
    'exec "$@"',
}
NOT_PLAIN = {
    # These hand over, but not plainly: clearing them loses nothing.
    "branches": 'if [ "$1" = serve ]; then shift; exec vllm serve "$@"; fi\nexec "$@"',
    "a case": 'case "$1" in\n serve|api) exec vllm "$@" ;;\n *) exec "$@" ;;\nesac',
    "a function": 'main() {\n  exec "$@"\n}\nmain "$@"',
    "the output of a program": 'export IP=$(hostname -i)\nexec "$@"',
    "a folder that is made": 'mkdir -p /cache\nexec "$@"',
    "through a wrapper": 'exec tini -s -- "$@"',
    # These do not.
    "another folder": 'cd /app\nexec "$@"',
    "another folder in the same line": 'cd /app && exec "$@"',
    "a folder that is pushed": 'pushd /app\nexec "$@"',
    "words split": "exec $@",
    "words joined": 'exec "$*"',
    "words split and joined": "exec $*",
    "words for another shell": 'exec bash -c "$*"',
    "a server": "vllm serve /model --port 8000",
    "a server with the words": 'exec vllm serve "$@"',
    "a server before": 'python3 -m vllm.entrypoints.openai.api_server --model /m\nexec "$@"',
    "a server behind a setting": 'VLLM_X=1 vllm serve foo\nexec "$@"',
    "a server behind a semicolon": 'export A=1; vllm serve x\nexec "$@"',
    "a server in the background": '/usr/sbin/sshd &\nexec "$@"',
    "a server in quotes": 'export OUT="$(vllm serve x)"\nexec "$@"',
    "a server in old quotes": 'A=`vllm serve x`\nexec "$@"',
    "a server behind a comment that ends in a backslash": '# why \\\nvllm serve x\nexec "$@"',
    "a continued line": 'export A=1 \\\nexec "$@"',
    "a quote over two lines": 'A="\nexec "$@"',
    "arguments of its own": 'set -- --model m\nexec "$@"',
    "an argument that is a setting's name": 'set -e pipefail\nexec "$@"',
    "more arguments": 'set -e a b\nexec "$@"',
    "an end before": 'exit 0\nexec "$@"',
    "a child": '"$@"',
    "a condition": '[ -n "$A" ] && exec "$@"',
    "output elsewhere": 'exec "$@" 2> /dev/null',
    "a comment": '# exec "$@"',
    "a text": 'cat <<EOF\nexec "$@"\nEOF',
    "nothing": "",
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_script_that_only_sets_things_before_its_last_line_hands_over(name: str) -> None:
    assert hands_over(["/entry.sh"], BASH + PLAIN[name])


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_every_other_script_does_not(name: str) -> None:
    assert not hands_over(["/entry.sh"], BASH + NOT_PLAIN[name])


@pytest.mark.parametrize(
    "entrypoint",
    [[], [""], ["tini", "--"], ["/usr/bin/tini", "-g", "-p", "SIGTERM", "--"], ["dumb-init"], ["docker-init", "--"],
     ["/usr/bin/dumb-init", "--rewrite", "15:2", "--"], ["tini", "--", "/opt/nvidia/nvidia_entrypoint.sh"],
     ["/opt/nvidia/nvidia_entrypoint.sh"]],
)  # fmt: skip
def test_nothing_and_known_wrappers_hand_over(entrypoint: list[str]) -> None:
    assert hands_over(entrypoint)


@pytest.mark.parametrize(
    "entrypoint",
    [["vllm", "serve"], ["python3", "-m", "vllm.entrypoints.openai.api_server"], ["/bin/sh", "-c", "exec vllm serve"],
     ["sh", "-c", 'exec "$@"'], ["bash"], ["bash", "-c"], ["/entry.sh"], ["tini", "--", "/entry.sh"],
     ["tini", "--", "vllm", "serve"], ["nvidia_entrypoint.sh", "vllm", "serve"], ["tini", "--other", "x"],
     ["env", "-S", "vllm serve x"], ["gosu", "root"], ["bash", "nvidia_entrypoint.sh", "x"]],
)  # fmt: skip
def test_other_words_do_not_hand_over(entrypoint: list[str]) -> None:
    assert not hands_over(entrypoint)


def test_a_script_is_judged_behind_wrappers_and_shells() -> None:
    text = BASH + 'exec "$@"'
    assert hands_over(["tini", "--", "/entry.sh"], text)
    assert hands_over(["/bin/bash", "/entry.sh"], 'exec "$@"')
    assert not hands_over(["/entry.sh", "serve"], text)
    assert not hands_over(["/entry.py"], '#!/usr/bin/python3\nexec "$@"')


def test_the_script_of_an_entrypoint_is_named_for_the_reader_of_the_image() -> None:
    assert entrypoint_script(["tini", "--", "/entry.sh"]) == "/entry.sh"
    assert entrypoint_script(["bash", "/entry.sh"]) == "/entry.sh"
    assert entrypoint_script(["vllm"]) == "vllm"
    assert entrypoint_script(["vllm", "serve"]) == ""
    assert entrypoint_script(["bash", "-c"]) == ""
    assert entrypoint_script(["tini", "--"]) == ""
    assert entrypoint_script([]) == ""
