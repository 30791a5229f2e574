"""The small language of a template's header: integer arithmetic and comparisons of names. Anything else is refused.

`evaluate_python` evaluates the expressions of tuning problems that others wrote (T1 files), which are Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
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
_PYTHON_BINARY = {type_: of for type_, of in _BINARY.items() if type_ not in (ast.LShift, ast.RShift)} | {
    ast.Div: operator.truediv}
_PYTHON_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "int": int, "float": float,
                                                    "list": list}
# Limits of a Python expression: the length of a list, any number, an exponent.
_LONGEST, _LARGEST, _LARGEST_POWER = 10_000, 1e18, 64


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


def folded(text: str, known: Names, *, truths: Collection[str] = (), is_condition: bool = False) -> str:
    """The expression with the values of the known names, and with what follows from them; other names stay, and what uses none
    of the known names stays as it is written. `truths`: the other names whose value is only true or false. `is_condition`: only
    its truth counts, not its value."""
    tree = ast.parse(text, mode="eval")
    if not names_in(text) & set(known):
        return text
    folding = _Folded(known, truths)
    body = folding.condition(tree.body) if is_condition else folding.visit(tree.body)
    return _written(body)


def is_truth(text: str, truths: Collection[str] = ()) -> bool:
    """Whether the expression's value is only true or false. `truths`: the names of which this holds."""
    return _is_truth(ast.parse(text, mode="eval").body, truths)


def _written(node: ast.expr) -> str:
    """As `ast.unparse`, which puts the last comparison of an `and` in brackets."""
    def inner(one: ast.expr) -> str:
        return f"({_written(one)})" if isinstance(one, (ast.BoolOp, ast.IfExp)) else _written(one)

    match node:
        case ast.BoolOp(op=op, values=values):
            return (" and " if isinstance(op, ast.And) else " or ").join(map(inner, values))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            test_text = inner(test) if isinstance(test, ast.IfExp) else _written(test)
            return f"{inner(body)} if {test_text} else {_written(orelse)}"
    return ast.unparse(node)


def _is_truth(node: ast.expr, truths: Collection[str]) -> bool:
    match node:
        case ast.Constant(value=bool()) | ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp(values=values):
            return all(_is_truth(value, truths) for value in values)
    return isinstance(node, ast.Name) and node.id in truths


class _Folded(ast.NodeTransformer):
    """`found`: the constants that replace a name or what was computed."""

    def __init__(self, known: Names, truths: Collection[str]) -> None:
        self.known, self.truths, self.found = known, truths, set[ast.AST]()

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802 (ast's name)
        value = self.known.get(node.id)
        return self._constant(value) if isinstance(value, (int, str)) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test = self.condition(node.test)
        if not isinstance(test, ast.Constant) or test not in self.found:
            return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))
        chosen: ast.expr = self.visit(node.body if test.value else node.orelse)
        return self._constant(chosen.value) if isinstance(chosen, ast.Constant) else chosen

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        found = self.condition(node)
        asks = isinstance(found, ast.BoolOp) or found in self.found or _is_truth(found, self.truths)
        return found if asks else ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), found))

    def condition(self, node: ast.expr) -> ast.expr:
        """The same where only the truth of the node counts."""
        if not isinstance(node, ast.BoolOp):
            return self.visit(node)  # type: ignore[no-any-return]  # ast says Any
        strong, left = isinstance(node.op, ast.Or), list[ast.expr]()
        for value in map(self.condition, node.values):
            if not isinstance(value, ast.Constant) or value not in self.found:
                left.append(value)
            elif bool(value.value) == strong:
                return self._constant(strong)
        return ast.BoolOp(node.op, left) if len(left) > 1 else left[0] if left else self._constant(not strong)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        parts: list[ast.expr] = []
        match node:
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=1) as one) if one in self.found:
                return node.right
            case ast.BinOp(op=ast.Mult() | ast.FloorDiv(), right=ast.Constant(value=1) as one) if one in self.found:
                return node.left
            case ast.BinOp(left=left, right=right):
                parts = [left, right]
            case ast.Compare(left=left, comparators=others):
                parts = [left, *others]
            case ast.UnaryOp(operand=operand):
                parts = [operand]
            case ast.Call(args=args):
                parts = args
        if self.found & {*parts} and all(isinstance(part, ast.Constant) for part in parts):
            return self._constant(evaluate(ast.unparse(node), {}))
        return node

    def _constant(self, value: Any) -> ast.Constant:
        found = ast.Constant(value)
        self.found.add(found)
        return found


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


def parse_python(text: str) -> ast.expr:
    """Raises ValueError if the text is no expression."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is no expression") from error


def evaluate_python(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a Python expression of numbers, texts, names, arithmetic, comparisons, lists and `range`.

    Raises ValueError for anything else, and for huge numbers and lists, because the text may come from somebody else.
    """
    def go(one: ast.expr) -> Any:
        return evaluate_python(one, names)

    match node:
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(op=op) if type(op) in _PYTHON_BINARY:
            left, right = go(node.left), go(node.right)
            if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
                return _short([*left, *right])
            if not all(isinstance(v, (int, float)) and abs(v) <= _LARGEST for v in (left, right)):
                raise ValueError(f"{ast.unparse(node)} is no arithmetic of numbers up to {_LARGEST:g}")
            if isinstance(op, ast.Pow) and abs(right) > _LARGEST_POWER:
                raise ValueError(f"the power {ast.unparse(node)} is too large")
            return _PYTHON_BINARY[type(op)](left, right)
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](go(node.operand))
        case ast.BoolOp(op=ast.And()):
            return all(go(value) for value in node.values)
        case ast.BoolOp(op=ast.Or()):
            return any(go(value) for value in node.values)
        case ast.Compare(ops=ops) if all(type(op) in _COMPARE for op in ops):
            values = [go(node.left), *map(go, node.comparators)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.List() | ast.Tuple():
            return [go(one) for one in node.elts]
        case ast.Call(func=ast.Name(id="range"), keywords=[]):
            return _short(range(*map(go, node.args)))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _PYTHON_FUNCTIONS:
            return _PYTHON_FUNCTIONS[name](*map(go, node.args))
        case ast.ListComp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=ifs)]):
            every = ({**names, name: value} for value in go(over))
            return [evaluate_python(elt, one) for one in every if all(evaluate_python(condition, one) for condition in ifs)]
    raise ValueError(f"{ast.unparse(node)} is not evaluated")


def _short(values: Sequence[Any]) -> list[Any]:
    if len(values) > _LONGEST:
        raise ValueError(f"a list has more than {_LONGEST} values")
    return list(values)
