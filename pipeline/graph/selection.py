"""Finds the tasks that a user's words mean."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pipeline.core.errors import ConfigError
from pipeline.graph.globs import is_pattern
from pipeline.graph.graph import Graph


def select_tasks(graph: Graph, words: Iterable[str], *, commands: Iterable[str] = ()) -> list[str]:
    """Returns the tasks that words mean, each once, in the order in which they were named.

    A word is a task (`build:cpu`), a kind of task (`build`: the kind's default, or all of the kind if it has none), or
    a pattern (`build:*`). Raises ConfigError, with the nearest right word, for one that means nothing; it may
    have been meant as one of the `commands`.
    """
    names: dict[str, None] = {}
    for word in words:
        names.update(dict.fromkeys(_meant(graph, word, commands)))
    return list(names)


def _meant(graph: Graph, word: str, commands: Iterable[str]) -> list[str]:
    if word in graph.tasks:
        return [word]
    if word in graph.defaults:
        return [graph.defaults[word]]
    pattern = word if is_pattern(word) else f"{word}:*"
    if matching := [name for name in graph.tasks if word and fnmatchcase(name, pattern)]:
        return matching
    from pipeline.core.suggest import suggestion

    if is_pattern(word):
        raise ConfigError(f"no task is called like {word!r}", hint=f"tasks: {', '.join(graph.tasks)}")
    kinds = {name.partition(":")[0] for name in graph.tasks}
    raise ConfigError(f"{word!r} is not a task", hint=suggestion(word, {*graph.tasks, *kinds, *commands}))
