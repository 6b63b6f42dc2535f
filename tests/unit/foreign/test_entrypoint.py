"""Which entrypoints hand over to the command they are given, as far as that can be read."""

import pytest

from pipeline.foreign.entrypoint import entrypoint_script, hands_over

BASH = "#!/bin/bash\n"
HANDING = {
    "plain": 'set -euo pipefail\nsource /opt/setup.sh\nexec "$@"',
    "settings": """# what `vllm` reads
export A=1 B="x y" && umask 022
A=${A:-2}
PATH+=:/opt/bin

mkdir -p /root/.cache > /dev/null 2>&1
echo "it's set; go"
exec "$@\"""",
    "tests": 'if [ -n "$A" ]; then\n  . /a\nelif ! test -d /b\nthen echo >&2; else :; fi\n[ -f /c ] && . /c\nexec "$@"',
    "a block in a block": 'if [ a ]; then if [ b ]; then echo c; fi; fi\nexec "$@"',
    "a comment behind": 'A=1 # the `first`\nexec "$@"',
    "one line": 'set -e; exec "$@"',
    "another wrapper": 'exec tini -s -- "$@"',
    "a user": 'exec gosu root "$@"',
    "a continued line": 'export A=1 \\\n  B=2\nexec \\\n  "$@"',
    "braces": 'exec "${@}"',
}
# They hand over, by branches or functions: not plainly, so they count as swallowing.
UNCLEAR = {
    "words of its own": 'if [ "$1" = serve ]; then shift; exec vllm serve "$@"; fi\nexec "$@"',
    "options": 'if [ "${1#-}" != "$1" ]; then\n  set -- vllm serve "$@"\nfi\nexec "$@"',
    "option letter": 'if [ "${1:0:1}" = "-" ]; then set -- server "$@"; fi; exec "$@"',
    "case": 'case "$1" in\n serve|api) exec vllm "$@" ;;\n *) exec "$@" ;;\nesac',
    "chain": '[ $# -gt 0 ] && exec "$@"\nexec bash',
    "through a function": 'main() {\n  echo "$(date)"\n  exec "$@"\n}\nmain "$@"',
    "pattern": 'if [[ "$1" == -* ]]; then exec vllm serve "$@"; fi\nexec "$@"',
    "no command": 'if test -z "$1"; then exec vllm serve; fi\nexec "${@}"',
    "a folder of its own": 'cd /app\nexec "$@"',
    "in the background": '/usr/sbin/sshd &\nexec "$@"',
    "output elsewhere": 'exec "$@" 2> /dev/null',
    "asked of a program": 'export IP=$(hostname -i)\nexec "$@"',
    "over two lines": 'echo "a\nb"\nexec "$@"',
}
SWALLOWING = {
    "serves its own": "vllm serve /model --port 8000",
    "serves with it": 'exec vllm serve "$@"',
    "serves first": 'python3 -m vllm.entrypoints.openai.api_server --model /m\nexec "$@"',
    "all but one": 'if [ "$1" != "bash" ]; then exec vllm serve "$@"; fi\nexec "$@"',
    "by a variable": 'if [ -z "$NO_SERVE" ]; then exec vllm serve; fi\nexec "$@"',
    "by a variable, or": '[ -n "$SHELL_ONLY" ] || exec vllm serve\nexec "$@"',
    "only sometimes": 'if [ "$MODE" = run ]; then exec "$@"; fi',
    "other arguments": 'set -- --model m\nexec "$@"',
    "eats its options": 'while [ $# -gt 0 ]; do case $1 in -x) x=1 ;; esac; shift; done\nexec "$@"',
    "for ever": 'while true; do sleep 1; done\nexec "$@"',
    "as a child": '"$@"',
    "ends before": 'exit 0\nexec "$@"',
    "another function's": 'run() { exec "$@"; }\nrun vllm serve',
    "case": 'case "$1" in bash|sleep) exec "$@" ;; *) exec vllm serve "$@" ;; esac',
    "beside": '(exec "$@")\nexec vllm serve',
    "only said": 'echo exec "$@"',
    "commented out": '# exec "$@"\ntrue',
    "in a text": 'cat <<EOF\nexec "$@"\nEOF',
    "words joined": 'exec bash -c "$*"',
    "with a setting": 'VLLM_X=1 vllm serve foo\nexec "$@"',
    "nicely": 'nice -n 5 vllm serve foo\nexec "$@"',
    "through another": 'uv run vllm serve foo\nexec "$@"',
    "python": 'python3 /app/start.py\nexec "$@"',
    "a script": '/app/serve.sh\nexec "$@"',
    "waited for": 'nohup vllm serve x &\nwait\nexec "$@"',
    "in a word": 'export OUT=$(vllm serve x)\nexec "$@"',
    "in an old word": 'echo `vllm serve x`\nexec "$@"',
    "in a pipe": 'echo x | vllm serve x\nexec "$@"',
    "behind a setting": 'export A=1; vllm serve x\nexec "$@"',
    "behind a quoted comment": 'export A="b #c"; vllm serve x\nexec "$@"',
    "behind a comment that ends in a backslash": '# why \\\nvllm serve x\nexec "$@"',
    "behind a setting's comment": 'export A=1 # why \\\nvllm serve x\nexec "$@"',
    "in a block": 'if [ -f /x ]; then\n  vllm serve x\nfi\nexec "$@"',
    "as a test": 'if vllm serve x; then echo; fi\nexec "$@"',
    "on a condition": '[ -n "$A" ] && exec "$@"',
    "on a condition above": '[ -n "$A" ] ||\n  exec "$@"',
    "only in a comment": 'export A=1 # no; exec "$@"',
    "arguments set": 'set -e a b\nexec "$@"',
    "into a program": 'echo x > >(vllm serve x)\nexec "$@"',
    "open quote": 'exec "$@',
    "open block": 'if true; then exec "$@"',
    "nothing": "",
}


@pytest.mark.parametrize("name", HANDING)
def test_a_script_that_ends_as_its_command_hands_over(name: str) -> None:
    assert hands_over(["/entry.sh"], BASH + HANDING[name])


@pytest.mark.parametrize("text", [*SWALLOWING.values(), *UNCLEAR.values()])
def test_a_script_that_does_so_by_chance_or_not_at_all_does_not(text: str) -> None:
    assert not hands_over(["/entry.sh"], BASH + text)


@pytest.mark.parametrize(
    "entrypoint",
    [[], [""], ["tini", "--"], ["/usr/bin/tini", "-g", "-p", "SIGTERM", "--"], ["dumb-init"], ["env", "A=b"],
     ["/usr/bin/env", "-i", "-u", "X", "A=b", "tini", "--"],
     ["/opt/nvidia/nvidia_entrypoint.sh"],
     ["sh", "-c", 'exec "$@"', "--"], ["tini", "--", "bash", "-c", 'exec "$@"', "x"]],
)  # fmt: skip
def test_words_that_hand_over_need_no_script(entrypoint: list[str]) -> None:
    assert hands_over(entrypoint)


@pytest.mark.parametrize(
    "entrypoint",
    [["vllm", "serve"], ["python3", "-m", "vllm.entrypoints.openai.api_server"], ["/bin/sh", "-c", "exec vllm serve"],
     ["sh", "-c", 'exec "$@"'], ["bash"], ["bash", "-c"], ["/entry.sh"], ["tini", "--", "/entry.sh"],
     ["nvidia_entrypoint.sh", "vllm", "serve"],
     ["/usr/bin/env", "--split-string=python3 -m vllm.entrypoints.openai.api_server"],
     ["env", "-S", "vllm serve x"], ["env", "-Svllm serve"], ["env", "-vS", "vllm serve"], ["tini", "--other", "x"]],
)  # fmt: skip
def test_words_that_serve_or_say_nothing_do_not(entrypoint: list[str]) -> None:
    assert not hands_over(entrypoint)


def test_a_script_is_read_behind_wrappers_and_shells() -> None:
    text = BASH + 'exec "$@"'
    assert hands_over(["tini", "--", "/entry.sh"], text)
    assert hands_over(["/bin/bash", "/entry.sh"], 'exec "$@"')
    assert not hands_over(["/entry.sh", "serve"], text)
    assert not hands_over(["/entry.py"], '#!/usr/bin/python3\nexec "$@"')


def test_the_script_of_an_entrypoint_is_named_for_who_reads_the_image() -> None:
    assert entrypoint_script(["tini", "--", "/entry.sh", "x"]) == "/entry.sh"
    assert entrypoint_script(["bash", "-e", "/entry.sh"]) == "/entry.sh"
    assert entrypoint_script(["vllm", "serve"]) == "vllm"
    assert entrypoint_script(["sh", "-c", "x"]) == ""
    assert entrypoint_script([]) == ""
