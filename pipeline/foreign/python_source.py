"""Python source text out of an image: it is parsed, and never imported or run."""

import ast
from typing import Any

MALFORMED = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
"""What ast raises for text that is not Python, or is nested too deeply (documented at ast.literal_eval)."""


def parse_module(source: str) -> ast.Module:
    """Returns the syntax tree of a module. Raises ValueError, with the reason, if the text cannot be parsed."""
    try:
        return ast.parse(source)
    except MALFORMED as error:
        raise ValueError(str(error) or type(error).__name__) from error


def evaluate_literal(expression: ast.expr) -> Any:
    """Returns the value of a literal: text, numbers, and collections of them; None for any other expression."""
    try:
        return ast.literal_eval(expression)
    except MALFORMED:
        return None
