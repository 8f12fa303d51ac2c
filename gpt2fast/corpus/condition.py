"""Conditions on a document's numbers, such as 'perplexity < 200 and bits_per_byte < 1.2': read, checked, decided.

The language is a part of Python's expressions, so Python's own parser reads it; nothing of it is run by Python.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt2fast.errors import InputError, InputTypeError

__all__ = ["Condition"]

#: Longer ones, and those nested more deeply, are refused: they would be a question to the stack.
_MOST_CHARACTERS = 1000
_MOST_NESTED = 100

Numbers = Mapping[str, float]


class Condition:
    """A condition on the numbers of a document.

    Numbers are named as the columns are; there are comparisons (< <= > >= == !=, also in chains: 20 < perplexity <
    200), `and`, `or`, `not`, parentheses, and + - * / of numbers.  Numbers are IEEE doubles: what is divided by 0 is an
    infinity or NaN, and every comparison with NaN is false, but for !=.  So a document without a perplexity, an empty
    one, does not meet `perplexity < 200`, and meets `not perplexity < 200`.

    Raises InputTypeError for what is no str, InputError for what is no condition: it says what is wrong and where.

    >>> condition = Condition("10 < perplexity < 200 and tokens / bytes < 0.5", ["perplexity", "tokens", "bytes"])
    >>> condition.names
    ['bytes', 'perplexity', 'tokens']
    >>> condition({"perplexity": 35.5, "tokens": 20, "bytes": 90})
    True
    >>> Condition("perplexty < 200", ["perplexity"])
    Traceback (most recent call last):
      ...
    gpt2fast.errors.InputError: the condition 'perplexty < 200': there is no 'perplexty'; expected perplexity
    """

    def __init__(self, text: str, known: Sequence[str]) -> None:
        if not isinstance(text, str):
            raise InputTypeError(f"the condition is of type {type(text).__name__}; expected str")
        self._text = text.strip()
        self._known = known
        self._names: set[str] = set()
        tree = self._parsed()
        if _is_deeper(tree, _MOST_NESTED):
            raise InputError(f"{self._what} is nested too deeply")
        if self._is_number(tree):
            raise self._error(tree, "is a number; expected a comparison, such as perplexity < 200")
        self._test = self._condition(tree)

    def __call__(self, numbers: Numbers) -> bool:
        """Whether a document with these numbers meets it."""
        return bool(self._test(numbers))

    def __reduce__(self) -> tuple[Any, ...]:
        return Condition, (self._text, self._known)

    def __repr__(self) -> str:
        return f"Condition({self._text!r})"

    @property
    def names(self) -> list[str]:
        """The names of the numbers that it looks at, sorted."""
        return sorted(self._names)

    # Both kinds of expressions become functions of the numbers.

    def _condition(self, node: ast.expr) -> Callable[[Numbers], bool]:
        if isinstance(node, ast.BoolOp):
            parts = [self._condition(value) for value in node.values]
            every = all if isinstance(node.op, ast.And) else any
            return lambda numbers: every(part(numbers) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._condition(node.operand)
            return lambda numbers: not inner(numbers)
        if isinstance(node, ast.Compare):
            for kind in node.ops:
                if type(kind) not in _COMPARISONS:
                    raise self._error(node, "compares with what is none of < <= > >= == !=")
            sides = [self._number(side) for side in (node.left, *node.comparators)]
            tests = [_COMPARISONS[type(kind)] for kind in node.ops]
            return lambda numbers: _holds(tests, [side(numbers) for side in sides])
        if self._is_number(node):
            raise self._error(node, "is a number where a comparison is expected")
        raise self._error(node, _FORMS)

    def _number(self, node: ast.expr) -> Callable[[Numbers], float]:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            try:
                value = float(node.value)
            except OverflowError:
                raise self._error(node, "is too large a number") from None
            return lambda numbers: value
        if isinstance(node, ast.Name):
            name = node.id
            if name not in self._known:
                raise InputError(f"{self._what}: there is no {name!r}; expected {', '.join(self._known)}")
            self._names.add(name)
            return lambda numbers: float(numbers[name])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = self._number(node.operand)
            return (lambda numbers: -inner(numbers)) if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right, calculate = self._number(node.left), self._number(node.right), _ARITHMETIC[type(node.op)]
            return lambda numbers: calculate(left(numbers), right(numbers))
        if isinstance(node, (ast.BoolOp, ast.Compare)) or isinstance(getattr(node, "op", None), ast.Not):
            raise self._error(node, "is a condition where a number is expected")
        raise self._error(node, _FORMS)

    def _is_number(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not)
        if isinstance(node, ast.Constant):
            return type(node.value) in (int, float)
        return isinstance(node, (ast.Name, ast.BinOp))

    def _parsed(self) -> ast.expr:
        if not self._text:
            raise InputError("the condition is empty; expected one such as perplexity < 200")
        if len(self._text) > _MOST_CHARACTERS:
            raise InputError(f"the condition has {len(self._text):,} characters; at most {_MOST_CHARACTERS:,} are read")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # "2perplexity" is deprecated, and no condition
                return ast.parse(self._text, mode="eval").body
        except SyntaxError as error:
            at = self._text[max((error.offset or 1) - 1, 0) :][:20]
            place = f"at {at!r}" if at.strip() else "at its end"
            raise InputError(f"{self._what} cannot be read {place}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError, SyntaxWarning, DeprecationWarning) as error:
            raise InputError(f"{self._what} cannot be read: {error or 'it is nested too deeply'}") from None

    @property
    def _what(self) -> str:
        return f"the condition {self._text!r}"

    def _error(self, node: ast.expr, message: str) -> InputError:
        return InputError(f"{self._what}: {ast.get_source_segment(self._text, node)!r} {message}")


def _is_deeper(node: ast.AST, most: int) -> bool:
    return not most or any(_is_deeper(child, most - 1) for child in ast.iter_child_nodes(node))


def _holds(tests: Sequence[Callable[[Any, Any], bool]], values: Sequence[float]) -> bool:
    return all(test(left, right) for test, left, right in zip(tests, values, values[1:], strict=False))


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) or math.isnan(b) else math.copysign(math.inf, a) * math.copysign(1, b)


_FORMS = "is no part of the language: it has names of columns, numbers, + - * /, comparisons, and, or, not, parentheses"
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
}
