"""Reads vLLM's list of model architectures from the text of its registry.py. Nothing of it is imported or run."""

import ast

from pipeline.core.errors import TandemError
from pipeline.foreign.python_source import parse_module

FULL_TABLE = "_VLLM_MODELS"
"""The dictionary that vLLM looks into; all others are merged into it (vLLM 0.6 to 0.19)."""


def parse_architectures(source: str) -> dict[str, str]:
    """Returns "module:Class" by architecture, sorted, from the text of vllm/model_executor/models/registry.py.

    Entries of another shape than (module, class) are left out, and so is what plug-ins and the environment add at run
    time. Raises TandemError if the text is not Python or has no such list.
    """
    tables: dict[str, dict[str, str]] = {}
    try:
        for statement in parse_module(source).body:
            _follow_statement(statement, tables)
    except (ValueError, RecursionError) as error:
        raise TandemError(f"vLLM's registry.py cannot be read as Python: {error}") from error
    models = {name: table for name, table in tables.items() if name.startswith("_") and name.endswith("_MODELS")}
    architectures = models.get(FULL_TABLE) or {
        name: entry for table in models.values() for name, entry in table.items()
    }
    if not architectures:
        raise TandemError(
            f"vLLM's registry.py has no {FULL_TABLE} with (module, class) entries",
            hint="this vLLM lists its models in a way that Tandem does not know",
        )
    return dict(sorted(architectures.items()))


def _follow_statement(statement: ast.stmt, tables: dict[str, dict[str, str]]) -> None:
    """Follows a statement of the module if it assigns a dictionary to a name, or adds to one."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _assign(target, value, tables)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            _assign(target, value, tables)
        case ast.AugAssign(target=ast.Name(id=name), op=ast.BitOr(), value=value):
            tables.setdefault(name, {}).update(_evaluate_table(value, tables) or {})
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update"), args=[value])):
            tables.setdefault(name, {}).update(_evaluate_table(value, tables) or {})
        case _:
            pass


def _assign(target: ast.expr, value: ast.expr, tables: dict[str, dict[str, str]]) -> None:
    match target:
        case ast.Name(id=name):
            if (table := _evaluate_table(value, tables)) is not None:
                tables[name] = table
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)):
            if entry := _evaluate_entry(value):
                tables.setdefault(name, {})[key] = entry
        case _:
            pass


def _evaluate_table(value: ast.expr, tables: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """Returns a dictionary of architectures, with those that it merges; None if the expression is not one."""
    match value:
        case ast.Name(id=name):
            return dict(tables[name]) if name in tables else None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return {**(_evaluate_table(left, tables) or {}), **(_evaluate_table(right, tables) or {})}
        case ast.Call(func=ast.Name(id="dict"), args=[inner], keywords=[]):
            return _evaluate_table(inner, tables)
        case ast.Dict(keys=keys, values=values):
            table: dict[str, str] = {}
            for key, item in zip(keys, values, strict=True):
                if key is None:
                    table.update(_evaluate_table(item, tables) or {})
                elif isinstance(key, ast.Constant) and isinstance(key.value, str) and (entry := _evaluate_entry(item)):
                    table[key.value] = entry
            return table
        case _:
            return None


def _evaluate_entry(value: ast.expr) -> str:
    match value:
        case ast.Tuple(elts=[ast.Constant(value=str() as module), ast.Constant(value=str() as name), *_]):
            return f"{module}:{name}"
        case _:
            return ""
