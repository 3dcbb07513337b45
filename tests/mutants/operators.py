"""What a mutant of a module is: one change of one function; and how it takes the place of the right code.

    a call that is a statement (also one that is yielded) is left out
    a condition is negated: of ``if``, ``while``, a comprehension, and what a predicate returns
    an operand of ``and`` or ``or`` is left out
    an argument is left out: each one that is named, and the last one by place

Calls that only say what happens (`NOTES`) are not touched.
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

NOTES: Final = {"note", "_note", "record", "warning", "info"}
_FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Change(NamedTuple):
    """A change.

    :ivar where: the name of the function in its module
    :ivar what: the change in words and source
    :ivar make: changes the tree
    """

    where: str
    what: str
    make: Callable[[], object]


def changes(tree: ast.AST, where: str = "", in_function: bool = False) -> Iterator[Change]:
    """Yield all changes of the functions of a module, in the order of its text."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(tree, ast.Call):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                name = f"{where}.{node.name}".lstrip(".") if isinstance(node, ast.ClassDef | ast.FunctionDef) else where
                inside = in_function or isinstance(node, _FUNCTION)
                if in_function:
                    yield from (Change(where, *each) for each in _of(node, value))
                yield from changes(node, name, inside)


def _of(node: Any, siblings: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    if isinstance(node, ast.Expr) and _called(node) not in ("", *NOTES):
        # Dead code, so that a generator is still one, and a closure has the same variables.
        dead = ast.If(ast.Constant(0), [node], [])
        yield f"without {_text(node)}", partial(siblings.__setitem__, siblings.index(node), dead)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield f"not: if {_text(node.test)}", partial(setattr, node, "test", _not(node.test))
    if isinstance(node, ast.comprehension):
        for at, test in enumerate(node.ifs):
            yield f"not: if {_text(test)}", partial(node.ifs.__setitem__, at, _not(test))
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Compare | ast.BoolOp):
        yield f"not: {_text(node)}", partial(setattr, node, "value", _not(node.value))
    if isinstance(node, ast.BoolOp):
        neutral = ast.Constant(isinstance(node.op, ast.And))
        for at, operand in enumerate(node.values):
            rest = [neutral, *node.values[:at], *node.values[at + 1 :]]
            yield f"without {_text(operand)}: {_text(node)}", partial(setattr, node, "values", rest)
    if isinstance(node, ast.Call) and _called(node) not in NOTES and not hasattr(builtins, _called(node)):
        for at, keyword in enumerate(node.keywords):
            yield f"without {keyword.arg}: {_text(node)}", partial(node.keywords.pop, at)
        if len(node.args) > 1 and not isinstance(node.args[-1], ast.Starred):
            yield f"without {_text(node.args[-1])}: {_text(node)}", node.args.pop


def _not(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace("\n", " ")[:90]


def _called(node: Any) -> str:
    while isinstance(node, ast.Expr | ast.Yield | ast.YieldFrom):
        node = node.value
    function = getattr(node, "func", None)
    return getattr(function, "attr", getattr(function, "id", "")) if isinstance(node, ast.Call) else ""


# ---- planting


def plant(module: types.ModuleType, number: int) -> None:
    """Make the `number`-th change of a module that is imported: each function that exists of it gets other code.

    :raises ValueError: the changed function has other variables of a closure
    """
    path = str(module.__file__)
    tree = ast.parse(inspect.getsource(module))
    right = compile(tree, path, "exec", dont_inherit=True)
    list(changes(tree))[number].make()
    wrong = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    changed = [pair for pair in zip(_functions(right), _functions(wrong), strict=True) if pair[0] != pair[1]]
    alive = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]
    for old, new in changed:
        for function in alive:
            if function.__code__ == old and function.__code__.co_filename == path:
                function.__code__ = new


def _functions(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from (each,) if each.co_flags & inspect.CO_OPTIMIZED else _functions(each)
