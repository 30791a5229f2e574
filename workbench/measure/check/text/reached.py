"""Which parts of a foreign file ran while questions were asked. The file's process records the instructions that ran; here the
judge finds the branches, functions and blocks of the text of which none ran. No question says anything about these.

The judge and the file's process run the same Python, so both compile the text to the same code objects.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ....core.answers import Answer, Question
from ....core.check_parts import FirstError, Log
from ..foreign.replies import InlineCall, NativeLine, Ran
from ..host.lines import FILE, codes_of
from .build_question import in_the_file

KEY, ASKED = "reached", "Did every part of it run?"
_MOST_NAMED = 4
_LONGEST = 60    # of a quoted line
# A compiler makes another code object of these, which is not recorded.
_COMPILED = ("jit", "compile", "vmap", "custom_op", "kernel")
# Lines that test for errors, or choose a dtype.
_NO_HARM = re.compile(r"\w*CHECK\w*\s*\(|\bassert\s*\(|AT_DISPATCH|cudaSuccess|cudaGetLastError|\bthrow\b|printf|\babort\s*\(")
_ONLY_SHOWN = ("extra_repr", "__repr__", "__str__")
_OF_FUNCTIONS = ("forward", "backward", "setup_context", "jvp", "vmap")
_Spot = tuple[int, int]
_Functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Part:
    """Lines of the file, or of one of its `source`s, that did not run; `why` quotes the condition or the function."""

    first: int
    last: int
    why: str
    source: str = ""

    @property
    def text(self) -> str:
        lines = f"line {self.first}" if self.first == self.last else f"lines {self.first}–{self.last}"
        return f"{lines}{self.source and f' of {self.source}'} ({self.why})"


def ask(text: str, class_name: str, calls: Sequence[InlineCall], records: Sequence[Ran]) -> list[Question]:
    """The answer is a note: a right file may have parts for other devices, dtypes or layers. `records`: of each time when the
    process was asked; they do not tell of the Python text if it makes a million steps in a loop."""
    ran = joined([record.codes for record in records])
    parts = parts_that_did_not_run(text, class_name, ran) if ran else None
    if parts is None:
        return [Question(KEY, ASKED, Answer.SKIPPED, "Not known: there is no whole record of what ran.")]
    native = native_parts(text, calls, records[-1].native)
    sources = "Python text and its CUDA" if any(call.cuda_sources for call in calls) and native is not None else "Python text"
    parts += native or []
    if not parts:
        return [Question(KEY, ASKED, Answer.PASSED, f"Yes: every branch and function of its {sources}.")]
    named = "; ".join(part.text for part in parts[:_MOST_NAMED])
    more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    count = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
    return [Question(KEY, ASKED, Answer.NOTE, f"No. No question ran {count} of its {sources}, so nothing is known of "
                     f"{'it' if len(parts) == 1 else 'them'}: {named}{more}.",
                     detail=Log(log="\n".join(part.text for part in parts)))]


def native_parts(text: str, calls: Sequence[InlineCall], lines: Sequence[NativeLine]) -> list[Part]:
    """The parts of CUDA and C++ that did not run. Lines that only report errors do no harm."""
    parts: list[Part] = []
    last: NativeLine | None = None
    for one in lines:
        if one.call >= len(calls):
            continue
        sources = calls[one.call].cuda_sources if one.source == "cuda_sources" else calls[one.call].cpp_sources
        words = "\n".join(sources).split("\n")
        said = words[one.line - 1].strip() if one.line <= len(words) else ""
        follows = last is not None and (one.call, one.source, one.line) == (last.call, last.source, last.line + 1)
        last = one
        if follows and not one.half and parts:
            parts[-1] = replace(parts[-1], last=parts[-1].last + 1)
        elif _NO_HARM.search(said) or not one.half and not any(map(str.isalnum, said)):
            last = None
        else:
            place = in_the_file(FirstError(one.source, one.line, ""), text, calls[one.call])
            line = place.line if place and place.file == "the file" and place.line else one.line
            why = f"one side of `{shortened(said)}` never runs" if one.half else f"`{shortened(said)}` never runs"
            parts.append(Part(line, line, why, "" if line != one.line or place.file == "the file"
                              else one.source))
    return parts


def joined(records: Sequence[Sequence[str]]) -> list[int] | None:
    """What ran in one of the records; None if they are not records of one text."""
    found: list[int] = []
    for record in records:
        try:
            bits = [int(one, 16) for one in record]
        except ValueError:
            return None
        if found and len(bits) != len(found):
            return None
        found = [a | b for a, b in zip(found or [0] * len(bits), bits, strict=True)]
    return found or None


def parts_that_did_not_run(text: str, class_name: str, ran: Sequence[int]) -> list[Part] | None:
    """In the order of the lines; None if the record does not belong to the text. `ran`: for each code object, the instructions
    that ran."""
    tree, codes = ast.parse(text), codes_of(compile(text, FILE, "exec", dont_inherit=True))
    if len(codes) != len(ran):
        return None
    there, executed = set[_Spot](), set[_Spot]()
    for code, bits in zip(codes, ran, strict=True):
        for number, (line, _, column, _) in enumerate(code.co_positions()):
            if line is not None and column is not None:
                there.add((line, column))
                if bits >> number & 1:
                    executed.add((line, column))
    return sorted(_Finder(tree, text, class_name, there, executed).parts(), key=lambda part: part.first)


def shortened(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST - 4]} ..."


class _Finder:
    def __init__(self, tree: ast.Module, text: str, class_name: str, there: set[_Spot], executed: set[_Spot]) -> None:
        self.tree, self.lines, self.class_name = tree, text.splitlines(), class_name
        self.there, self.executed = sorted(there), sorted(executed)
        self.named = {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(tree)
                      if isinstance(n, ast.Name | ast.Attribute)}
        self.compiles = any(word in name for name in self.named for word in _COMPILED)

    def parts(self) -> Iterator[Part]:
        return self._block(self.tree.body)

    def _any(self, spots: Sequence[_Spot], node: ast.AST) -> bool:
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        place = bisect_left(spots, begin)
        return place < len(spots) and spots[place] < end

    def _ran(self, *nodes: ast.AST) -> bool:
        """Whether an instruction of them ran. True if they have none, such as a comment of the type of a name."""
        return any(self._any(self.executed, n) for n in nodes) or not any(self._any(self.there, n) for n in nodes)

    def _block(self, block: Sequence[ast.stmt]) -> Iterator[Part]:
        """Of statements of which the first has begun."""
        for place, one in enumerate(block):
            if not self._ran(one):
                yield from self._of(block[place:], "after a return that always happens" if place else "never reached")
                return
            yield from self._statement(one)

    def _of(self, block: Sequence[ast.AST], why: str) -> Iterator[Part]:
        """The part, unless it can do no harm: it only raises, or does nothing."""
        rest = [n for n in block if not isinstance(n, ast.Pass)]
        if rest and not isinstance(rest[-1], ast.Raise):
            yield Part(rest[0].lineno, rest[-1].end_lineno, why)  # type: ignore[attr-defined]

    def _statement(self, one: ast.stmt) -> Iterator[Part]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._expressions(one)
            yield from self._function(one, one.body)
        elif isinstance(one, ast.ClassDef):
            yield from self._class(one)
        elif isinstance(one, ast.If | ast.While):
            yield from self._test(one)
        elif isinstance(one, ast.For | ast.AsyncFor):
            yield from self._either(one.body, f"{self._quoted(one)} is never entered")
            yield from self._expressions(one)
            yield from self._either(one.orelse, "the `else` of a loop") if one.orelse else ()
        elif isinstance(one, ast.Try):
            yield from self._block(one.body)
            for handler in one.handlers:
                if "Import" not in ast.unparse(handler.type or ast.Name("")) and "ModuleNotFound" not in ast.unparse(
                        handler.type or ast.Name("")):
                    yield from self._either(handler.body, f"{self._quoted(handler)} is never entered")
            yield from self._either(one.orelse, "the `else` of a `try`") if one.orelse else ()
            yield from self._block(one.finalbody)
        elif isinstance(one, ast.With | ast.AsyncWith):
            yield from self._expressions(one)
            yield from self._block(one.body)
        elif isinstance(one, ast.Match):
            for case in one.cases:
                yield from self._either(case.body, f"`case {ast.unparse(case.pattern)}` never fits"[:_LONGEST + 20])
        else:
            yield from self._expressions(one)

    def _test(self, one: ast.If | ast.While) -> Iterator[Part]:
        words = ast.unparse(one.test)
        if "__name__" in words or "TYPE_CHECKING" in words:
            return
        yield from self._either(one.body, f"`{self._cut(one.test)}` is never true")
        if one.orelse:
            chained = isinstance(one.orelse[0], ast.If) and len(one.orelse) == 1 and self._ran(one.orelse[0])
            why = f"`{self._cut(one.test)}` is always true"
            yield from self._block(one.orelse) if chained else self._either(one.orelse, why)
        yield from self._expressions(one.test)

    def _either(self, block: Sequence[ast.stmt], why: str) -> Iterator[Part]:
        yield from self._block(block) if self._ran(*block) else self._of(block, why)

    def _function(self, one: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: Sequence[ast.AST]) -> Iterator[Part]:
        name = getattr(one, "name", "a lambda")
        if self._ran(*body):
            yield from self._block(body) if not isinstance(one, ast.Lambda) else self._expressions(one.body)  # type: ignore[arg-type]
            return
        decorated = " ".join(map(ast.unparse, getattr(one, "decorator_list", [])))
        called = isinstance(one, ast.Lambda) or name in self.named or name in _OF_FUNCTIONS or hasattr(nn.Module, name)
        if called and name not in _ONLY_SHOWN and not self.compiles and not any(w in decorated for w in _COMPILED):
            yield from self._of(body, f"{name} is never called")

    def _class(self, one: ast.ClassDef) -> Iterator[Part]:
        if one.name == self.class_name or one.name in self.named:
            yield from self._block(one.body)

    def _expressions(self, node: ast.AST) -> Iterator[Part]:
        """Of an expression, or of a statement without the statements inside it."""
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case) or isinstance(node, _Functions):
                continue
            yield from self._expression(inner)

    def _expression(self, one: ast.AST) -> Iterator[Part]:
        if isinstance(one, ast.Lambda):
            yield from self._function(one, [one.body])
            return
        if isinstance(one, ast.IfExp):
            yield from self._half(one.body, f"`{self._cut(one.test)}` is never true")
            yield from self._half(one.orelse, f"`{self._cut(one.test)}` is always true")
        elif isinstance(one, ast.BoolOp):
            for value in one.values[1:]:
                if any(isinstance(n, ast.Call) for n in ast.walk(value)):
                    yield from self._half(value, f"`{self._cut(value)}` is never computed")
        elif isinstance(one, ast.ListComp | ast.SetComp | ast.GeneratorExp) and any(g.ifs for g in one.generators):
            yield from self._half(one.elt, f"`{self._cut(one.elt)}` is never computed")
        yield from self._expressions(one)

    def _half(self, one: ast.expr, why: str) -> Iterator[Part]:
        if not self._ran(one):
            yield Part(one.lineno, one.end_lineno or one.lineno, why)

    def _quoted(self, one: ast.AST) -> str:
        return f"`{shortened(self.lines[one.lineno - 1].strip().rstrip(':'))}`"  # type: ignore[attr-defined]

    def _cut(self, one: ast.expr) -> str:
        return shortened(ast.unparse(one))
