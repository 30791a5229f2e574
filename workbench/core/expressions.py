"""The small language of a template's header: integer arithmetic and comparisons of names. Anything else is refused."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from .errors import RenderError

Named = int | str | Mapping[str, int]   # the value of a name; a mapping is read by a dot (`layer.groups`)
Names = Mapping[str, Named]
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "gcd": math.gcd,
                                             "ceil_div": lambda a, b: -(-a // b)}


def evaluate(text: str, names: Names) -> Any:
    """Value of `text`, which may use `names`.

    Raises `RenderError` for a syntax error, for anything outside the grammar, and for an undefined name.
    """
    code = _code(text)
    if code is not None:
        try:
            return eval(code, _GLOBALS, names)  # safe: `_Compiled` admits only the nodes of the grammar
        except (NameError, KeyError, TypeError, ArithmeticError, ValueError):
            pass  # `_value` below raises the error, in the terms of this language
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError) as error:
        raise RenderError(f"The expression {text!r} cannot be read: {error.args[0]}.") from error
    try:
        return _value(tree.body, names, text)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        raise RenderError(f"The expression {text!r} has no value: {error}.") from error


def names_in(text: str) -> set[str]:
    """The names that an expression uses; a dotted name counts as one."""
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    dotted = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    owners = {id(n.value) for n in dotted}
    return {f"{n.value.id}.{n.attr}" for n in dotted if isinstance(n.value, ast.Name)} | {
        n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in owners}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.Expression:
    return ast.parse(text, mode="eval")  # a search evaluates the same few dozen expressions for thousands of configs


_GLOBALS = {"__builtins__": {}, "_bool": bool, **{f"_{name}": function for name, function in _FUNCTIONS.items()}}


@lru_cache(maxsize=4096)
def _code(text: str) -> CodeType | None:
    """The expression as compiled Python code, which is ten times as fast as `_value`. None for an expression outside the
    grammar."""
    try:
        tree = ast.fix_missing_locations(_Compiled().visit(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        return None
    return compile(tree, text, "eval")


class _Compiled(ast.NodeTransformer):
    """The same expression for Python: a dot reads a mapping, and/or give a truth value, functions are those of `_FUNCTIONS`.
    Raises ValueError for other nodes."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Expression() | ast.IfExp() | ast.operator() | ast.unaryop() | ast.cmpop() | ast.boolop() | ast.Load():
                pass
            case ast.Constant(value=int() | str()):
                pass
            case ast.Name(id=name) if not name.startswith("_"):
                pass
            case ast.BinOp(op=op) if type(op) in _BINARY:
                pass
            case ast.UnaryOp(op=op) if type(op) in _UNARY:
                pass
            case ast.Compare(ops=ops) if all(type(o) in _COMPARE for o in ops):
                pass
            case ast.List() | ast.Tuple():
                pass
            case _:
                raise ValueError(f"{ast.dump(node)} is not in the grammar")
        return super().generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:  # noqa: N802 (ast's name)
        if not isinstance(node.value, ast.Name):
            raise ValueError("a dot follows a name")
        return ast.Subscript(self.visit(node.value), ast.Constant(node.attr), ast.Load())

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:  # noqa: N802
        values: list[ast.expr] = [self.visit(value) for value in node.values]
        return ast.Call(ast.Name("_bool", ast.Load()), [ast.BoolOp(node.op, values)], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
            raise ValueError("no function of the language")
        return ast.Call(ast.Name(f"_{node.func.id}", ast.Load()), [self.visit(arg) for arg in node.args], [])


def _value(node: ast.expr, names: Names, text: str) -> Any:
    def go(n: ast.expr) -> Any:
        return _value(n, names, text)

    match node:
        case ast.Constant(value=int() | str() | bool()):
            return node.value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise RenderError(f"The expression {text!r} uses {name}, which is not defined; "
                              f"known are {', '.join(sorted(names))}.")
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if isinstance(members := names.get(owner), Mapping):
            if attr not in members:
                raise RenderError(f"The expression {text!r} uses {owner}.{attr}, which does not exist; "
                                  f"known are {', '.join(sorted(members))}.")
            return members[attr]
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _BINARY[type(op)](go(node.left), go(node.right))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](go(node.operand))
        case ast.BoolOp(op=ast.And()):
            return all(go(v) for v in node.values)
        case ast.BoolOp(op=ast.Or()):
            return any(go(v) for v in node.values)
        case ast.Compare(ops=ops) if all(type(o) in _COMPARE for o in ops):
            values = [go(node.left), *map(go, node.comparators)]
            return all(_COMPARE[type(o)](a, b) for o, a, b in zip(ops, values, values[1:], strict=False))
        case ast.IfExp():
            return go(node.body) if go(node.test) else go(node.orelse)
        case ast.List() | ast.Tuple():
            return [go(e) for e in node.elts]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(go, node.args))
    raise RenderError(f"The expression {text!r} uses {ast.unparse(node)!r}; allowed are whole numbers, names, "
                      f"+ - * // % **, comparisons, and/or/not, if/else, {', '.join(_FUNCTIONS)}.")
