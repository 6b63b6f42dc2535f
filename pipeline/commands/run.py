"""`./doitw run`, the command when none is named: brings tasks up to date, in threads, and ends with our exit codes."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from doit import cmd_run
from doit.control import TaskControl

from pipeline.commands.failures import exit_code_of, parse_words
from pipeline.core.errors import ConfigError, Exit, HostError
from pipeline.core.locks import lock_timeout_s
from pipeline.graph.graph import Graph
from pipeline.graph.run.doit_adapter import graph_of
from pipeline.graph.run.live import make_screen
from pipeline.graph.run.no_db import NoDB
from pipeline.graph.run.outcome import End, Outcome, exit_code, write_report
from pipeline.graph.run.output import Screen
from pipeline.graph.run.runner import Runner
from pipeline.graph.run.schedule import Schedule
from pipeline.graph.selection import select_tasks

SIDE_BY_SIDE = 2

opt_verbosity = {
    "name": "verbosity",
    "short": "v",
    "long": "verbosity",
    "type": int,
    "default": 1,
    "help": "0: failures only, 1: one line a task and step, 2: every line of every task [default: %(default)s]",
}
opt_side_by_side = {
    "name": "num_process",
    "short": "n",
    "long": "process",
    "type": int,
    "default": SIDE_BY_SIDE,
    "help": "number of tasks that may run at the same time [default: %(default)s]",
}


class RunCommand(cmd_run.Run):  # type: ignore[misc]  # doit has no annotations
    """doit's `run` without its captures and exit codes."""

    name = "run"
    doc_description = "Exit codes: 0 fine, 1 failed, 2 bug, 3 configuration, 4 host, 5 busy, 130 interrupted."
    # Only from the configuration: with another database there would be two opinions on what is up to date.
    base_options = tuple({**option, "short": "", "long": ""} for option in cmd_run.Run.base_options)
    cmd_options = (
        cmd_run.opt_always,
        cmd_run.opt_continue,
        cmd_run.opt_single,
        opt_verbosity,
        opt_side_by_side,
    )

    def get_reporters(self) -> dict[str, Any]:
        """Returns none: the output of a run comes from its tasks' logs."""
        return {}

    def get_backends(self) -> dict[str, type[NoDB]]:
        """Returns ours alone. To look for others, doit would read the metadata of every installed package."""
        return {"none": NoDB}

    def parse_execute(self, in_args: Sequence[str]) -> int:
        """Take options wherever they stand: `./doitw deploy -n 4` too."""
        if "--help" in in_args or "-h" in in_args:
            print(self.help())
            return Exit.OK

        def act() -> int:
            options, words = parse_words(self, in_args)
            options.update(self.opt_vals)
            return self.execute(options, words)

        return exit_code_of(act)

    def execute(self, params: Any, args: Sequence[str]) -> int:
        """Read dodo.py and run; failures are reported here. Returns the exit code."""
        return exit_code_of(lambda: int(super(RunCommand, self).execute(params, args)))

    def _execute(
        self,
        always: bool = False,
        continue_: bool = False,
        single: bool = False,
        verbosity: int = 1,
        num_process: int = SIDE_BY_SIDE,
    ) -> int:
        started, start = time.time(), time.monotonic()
        if num_process < 1:
            raise ConfigError(f"-n {num_process}: at least one task must be able to run")
        _check_environment()
        graph = graph_of(self.task_list)
        # A bare kind means its default, not every sub-task.
        asked = select_tasks(graph, self.sel_tasks or (), commands=self.loader.cmd_names)
        control = self._control(asked, single=single)
        screen = make_screen(verbosity=verbosity)
        try:
            runner = Runner(graph, screen, asked=asked, always=always, side_by_side=num_process)
            schedule = Schedule(runner, screen, side_by_side=num_process, go_on=continue_)
            schedule.run(control.task_dispatcher())
        finally:
            screen.close()
        outcomes = list(schedule.outcomes.values())
        code = exit_code(outcomes, interrupted=schedule.interrupted)
        self._finish(graph, outcomes, screen, code, started, time.monotonic() - start)
        return code

    def _control(self, asked: list[str], *, single: bool) -> Any:
        control = TaskControl(self.task_list)
        control.process(asked or None)
        if single:
            selected = [control.tasks[name] for name in control.selected_tasks]
            groups = (
                [control.tasks[sub] for sub in task.task_dep] if task.has_subtask else [task] for task in selected
            )
            tasks = [task for group in groups for task in group]
            above = {task.name: _above(control.tasks, task.name) for task in tasks}
            for task in tasks:
                # Those that are named keep their order.
                task.task_dep = [name for name in above if name in above[task.name]]
        return control

    def _finish(
        self, graph: Graph, outcomes: list[Outcome], screen: Screen, code: Exit, started: float, seconds: float
    ) -> None:
        for note in graph.records.notes:
            screen.note(f"note: {note}")
        graph.cache.save()
        try:
            report = graph.artifacts / "report.json"
            command = [self.name, *(self.sel_tasks or [])]
            write_report(report, outcomes, code=code, started=started, seconds=seconds, command=command)
        except HostError as error:
            # The tasks ended as they did; that the report is missing must be said, not change it.
            screen.note(f"note: no report: {error}")
        screen.note(_sum(outcomes, code, seconds))


def _check_environment() -> None:
    """Raises ConfigError for settings that a task would refuse later, or that no task would read."""
    lock_timeout_s()
    mode = os.environ.get("TANDEM_LOCK", "")
    if mode not in {"", "frozen", "upgrade"} and not re.fullmatch(r"upgrade:[^,\s]+(,[^,\s]+)*", mode):
        raise ConfigError(f"TANDEM_LOCK={mode}: not one of frozen, upgrade, upgrade:NAME[,NAME]")


def _sum(outcomes: list[Outcome], code: Exit, seconds: float) -> str:
    """Returns `2 skipped, 1 failed in 3.21 s; failed: build:cpu; exit 1`."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[str(outcome.end)] = counts.get(str(outcome.end), 0) + 1
    parts = [(", ".join(f"{count} {end}" for end, count in counts.items()) or "nothing to do") + f" in {seconds:.2f} s"]
    if failed := [outcome.task for outcome in outcomes if outcome.end is End.FAILED]:
        parts.append(f"failed: {', '.join(failed)}")
    if code:
        parts.append(f"exit {int(code)}")
    return "; ".join(parts)


def _above(tasks: Mapping[str, Any], name: str) -> set[str]:
    """Returns all that a task waits for, directly or not."""
    above: set[str] = set()
    waiting = list(tasks[name].task_dep)
    while waiting:
        upstream = waiting.pop()
        if upstream not in above:
            above.add(upstream)
            waiting.extend(tasks[upstream].task_dep)
    return above
