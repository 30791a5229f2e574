"""Which parts of a foreign file ran while questions were asked. The file's process records the instructions that ran; here the
judge finds the branches, functions and blocks of the text of which none ran. No question says anything about these.

The judge and the file's process run the same Python, so both compile the text to the same code objects.
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ....core.answers import FEW_PARTS, Answer, Question
from ....core.check_parts import FirstError, Log
from ..foreign.replies import InlineCall, NativeLine, Ran
from ..host.lines import FILE, codes_of
from .build_question import in_the_file

KEY, ASKED = "reached", "Did every part of it run?"
_MOST_PARTS = 1000     # of CUDA
_LONGEST = 60    # of a quoted line
_MOST_WORDS = 6   # of an argument of a reference
# A compiler makes other code objects of functions, which are not recorded.
_COMPILERS = {"jit", "script", "vmap", "custom_op", "register_kernel", "register_fake"}
# Lines that test for errors, or choose a dtype.
_NO_HARM = re.compile(r"\w*CHECK\w*\s*\(|\bassert\s*\(|AT_DISPATCH|cudaSuccess|cudaGetLastError|\bthrow\b|printf|\babort\s*\(")
_OF_ARCH = re.compile(r"#\s*(el)?if(def)?\b.*\b__CUDA_ARCH__\b")
_OPENS, _TURNS, _CLOSES = (re.compile(rf"#\s*{words}") for words in ("if", "el", "endif"))
_ONLY_SHOWN = ("extra_repr", "__repr__", "__str__")
_OF_FUNCTIONS = ("forward", "backward", "setup_context", "jvp", "vmap")
_Spot = tuple[tuple[int, int], tuple[int, int]]   # (line, column) of the begin and of the end
_SOURCES = ("cuda_sources", "cpp_sources")


def words(text: str) -> dict[str, tuple[str, ...]]:
    """Name -> the words with which the text of a reference compares it, or by which it chooses something: an argument of the
    constructor may have other ones of these."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            about, those = [node], [node]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            about, those = [node.slice], node.value.keys
        elif isinstance(node, ast.Match):
            about, those = [node.subject], [case.pattern for case in node.cases]
        else:
            continue
        names = {n.id if isinstance(n, ast.Name) else n.attr for one in about for n in ast.walk(one)
                 if isinstance(n, ast.Name | ast.Attribute)}
        for name in names:
            found.setdefault(name, []).extend(n.value for one in those if one is not None for n in ast.walk(one)
                                              if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {name: tuple(dict.fromkeys(there))[:_MOST_WORDS] for name, there in found.items() if there}


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


def ask(text: str, class_name: str, calls: Sequence[InlineCall], records: Sequence[Ran], *, device: str) -> list[Question]:
    """The answer is a note: a right file may have parts for other devices, dtypes or layers. `records`: one for each time when
    the process was asked. A record has no `codes` if one function ran more than a million instructions."""
    if device != "cpu" and sys.version_info < (3, 12) and "def backward" in text:
        return [Question(KEY, ASKED, Answer.SKIPPED, "Not known: before Python 3.12 a backward on a GPU is not recorded.")]
    ran = joined([record.codes for record in records])
    parts = parts_that_did_not_run(text, class_name, ran) if ran else None
    if parts is None:
        return [Question(KEY, ASKED, Answer.SKIPPED, "Not known: there is no whole record of what ran.")]
    counted = records[-1].native
    parts += native_parts(text, calls, counted) if counted is not None else []
    cuda = counted is not None and any(call.cuda_sources for call in calls)
    sources = "Python text and its CUDA" if cuda else "Python text"
    if not parts:
        what = "branch" if compiles(ast.parse(text)) else "branch and function"
        return [Question(KEY, ASKED, Answer.PASSED, f"Yes: every {what} of its {sources}.")]
    longest = sorted(parts, key=lambda part: part.first - part.last)[:FEW_PARTS]
    named = "; ".join(part.text for part in (longest if len(parts) > FEW_PARTS else parts))
    more = f"; and {len(parts) - FEW_PARTS} more" if len(parts) > FEW_PARTS else ""
    count = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
    return [Question(KEY, ASKED, Answer.NOTE, f"No. No question ran {count} of its {sources}, so nothing is known of "
                     f"{'it' if len(parts) == 1 else 'them'}: {named}{more}.",
                     detail=Log(log="\n".join(part.text for part in parts)))]


def native_parts(text: str, calls: Sequence[InlineCall], lines: Sequence[NativeLine]) -> list[Part]:
    """The parts of CUDA and C++ that did not run. Lines that only report errors do no harm."""
    parts: list[Part] = []
    last: NativeLine | None = None
    words = {(number, source): "\n".join(getattr(call, source)).split("\n") for number, call in enumerate(calls)
             for source in _SOURCES}
    for (number, source), there in words.items():
        for first, end, condition in _only_on_a_gpu(there):
            ends = [in_the_file(FirstError(source, line, ""), text, calls[number]) for line in (first, end)]
            found = all(place is not None and place.file == "the file" and place.line for place in ends)
            first, end = [place.line for place in ends if place] if found else (first, end)
            parts.append(Part(first, end, f"`{shortened(condition)}` is compiled for a GPU only", "" if found else source))
    for one in (line for line in lines if (line.call, line.source) in words):
        there = words[one.call, one.source]
        said = there[one.line - 1].strip() if one.line <= len(there) else ""
        follows = last is not None and (one.call, one.source, one.line) == (last.call, last.source, last.line + 1)
        last = one
        if follows and not one.half and parts:
            parts[-1] = replace(parts[-1], last=parts[-1].last + 1)
        elif _NO_HARM.search(said) or not one.half and not any(map(str.isalnum, said)):
            last = None
        elif len(parts) < _MOST_PARTS:
            place = in_the_file(FirstError(one.source, one.line, ""), text, calls[one.call])
            found = place is not None and place.file == "the file" and place.line
            line = place.line if found else one.line
            why = f"one side of `{shortened(said)}` never runs" if one.half else f"`{shortened(said)}` never runs"
            parts.append(Part(line, line, why, "" if found else one.source))
    return parts


def _only_on_a_gpu(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """First and last line of what the preprocessor leaves out because a condition needs __CUDA_ARCH__; and the condition."""
    first, depth, condition = 0, 0, ""
    for number, line in enumerate(lines, 1):
        said = line.strip()
        if not first:
            if _OF_ARCH.match(said) and "!" not in said:
                first, depth, condition = number + 1, 0, said
        elif _OPENS.match(said):
            depth += 1
        elif depth and _CLOSES.match(said):
            depth -= 1
        elif not depth and (_CLOSES.match(said) or _TURNS.match(said)):
            if any(any(map(str.isalnum, one)) for one in lines[first - 1:number - 1]):
                yield first, number - 1, condition
            first = 0


def joined(records: Sequence[Sequence[str]]) -> list[int] | None:
    """What ran in one of the records; None if one is not whole, or if they are not records of one text."""
    found: list[int] = []
    for record in records:
        try:
            bits = [int(one, 16) for one in record]
        except ValueError:
            return None
        if not bits or found and len(bits) != len(found):
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
        for number, (line, end_line, column, end_column) in enumerate(code.co_positions()):
            if line is not None and end_line is not None and column is not None and end_column is not None:
                spot = (line, column), (end_line, end_column)
                there.add(spot)
                if bits >> number & 1:
                    executed.add(spot)
    if not there:   # Python was told to keep no columns
        return None
    try:
        return sorted(_Finder(tree, text, class_name, there, executed).parts(), key=lambda part: part.first)
    except RecursionError:   # a very long expression, or a long chain of elif
        return None


def compiles(tree: ast.Module) -> bool:
    """Whether the text may compile its functions. It is then not known which of them were called."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    return any((n.id if isinstance(n, ast.Name) else n.attr) in _COMPILERS for n in nodes) or any(
        isinstance(n, ast.Attribute) and n.attr == "compile" and ast.unparse(n) != "re.compile" for n in nodes)


def shortened(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST - 4]} ..."


def _defaults(one: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[ast.expr]:
    yield from one.args.defaults
    yield from filter(None, one.args.kw_defaults)


class _Finder:
    def __init__(self, tree: ast.Module, text: str, class_name: str, there: set[_Spot], executed: set[_Spot]) -> None:
        self.tree, self.lines, self.class_name = tree, re.split("\r\n|\r|\n", text), class_name
        self.there, self.executed = sorted(there), sorted(executed)
        self.named = {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(tree)
                      if isinstance(n, ast.Name | ast.Attribute)}
        self.compiles = compiles(tree)

    def parts(self) -> Iterator[Part]:
        return self._block(self.tree.body)

    def _any(self, spots: Sequence[_Spot], node: ast.AST) -> bool:
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        place = bisect_left(spots, (begin, begin))
        while place < len(spots) and spots[place][0] < end:
            if spots[place][1] <= end:   # the jump of `1 if x else 2` begins where the 1 begins, but ends behind it
                return True
            place += 1
        return False

    def _ran(self, *nodes: ast.AST) -> bool:
        """Whether an instruction of them ran. True if they have none, such as a comment of the type of a name."""
        return any(self._any(self.executed, n) for n in nodes) or not any(self._any(self.there, n) for n in nodes)

    def _block(self, block: Sequence[ast.stmt]) -> Iterator[Part]:
        """Of statements of which the first has begun."""
        for place, one in enumerate(block):
            if not self._ran(one):
                yield from self._of(block[place:], "never reached")
                return
            yield from self._statement(one)

    def _of(self, block: Sequence[ast.AST], why: str) -> Iterator[Part]:
        """The part, unless it can do no harm: it only raises, or does nothing."""
        rest = [n for n in block if not isinstance(n, ast.Pass)]
        if rest and not isinstance(rest[-1], ast.Raise):
            yield Part(rest[0].lineno, rest[-1].end_lineno, why)  # type: ignore[attr-defined]

    def _statement(self, one: ast.stmt) -> Iterator[Part]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in (*one.decorator_list, *_defaults(one)):
                yield from self._expression(inner)
            yield from self._function(one, one.body)
        elif isinstance(one, ast.ClassDef):
            yield from self._class(one)
        elif isinstance(one, ast.If | ast.While):
            yield from self._test(one)
        elif isinstance(one, ast.For | ast.AsyncFor):
            yield from self._either(one.body, f"{self._quoted(one)} is never entered")
            yield from self._expressions(one)
            yield from self._either(one.orelse, "the `else` of a loop never runs") if one.orelse else ()
        elif isinstance(one, ast.Try | ast.TryStar):
            yield from self._try(one)
        elif isinstance(one, ast.With | ast.AsyncWith):
            yield from self._expressions(one)
            yield from self._block(one.body)
        elif isinstance(one, ast.Match):
            for case in one.cases:
                yield from self._either(case.body, f"`case {shortened(ast.unparse(case.pattern))}` never fits")
        else:
            yield from self._expressions(one)

    def _try(self, one: ast.Try | ast.TryStar) -> Iterator[Part]:
        imports = any("Import" in (words := ast.unparse(h.type or ast.Name(""))) or "ModuleNotFound" in words
                      for h in one.handlers)   # then it depends on the machine what runs
        if not imports:
            yield from self._block(one.body)
            for handler in one.handlers:
                yield from self._either(handler.body, f"{self._quoted(handler)} is never entered")
            yield from self._either(one.orelse, "the `else` of a `try` never runs") if one.orelse else ()
        yield from self._block(one.finalbody)

    def _test(self, one: ast.If | ast.While) -> Iterator[Part]:
        words = ast.unparse(one.test)
        if "__name__" in words or "TYPE_CHECKING" in words:
            return
        yield from self._either(one.body, f"`{self._cut(one.test)}` is never true")
        if one.orelse:
            chained = isinstance(one.orelse[0], ast.If) and len(one.orelse) == 1 and self._ran(one.orelse[0])
            why = f"the `else` of `{self._cut(one.test)}` never runs"
            yield from self._block(one.orelse) if chained else self._either(one.orelse, why)
        yield from self._expression(one.test)

    def _either(self, block: Sequence[ast.stmt], why: str) -> Iterator[Part]:
        yield from self._block(block) if self._ran(*block) else self._of(block, why)

    def _function(self, one: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: Sequence[ast.AST]) -> Iterator[Part]:
        name = getattr(one, "name", "a lambda")
        if self._ran(*body):
            yield from self._expression(one.body) if isinstance(one, ast.Lambda) else self._block(one.body)
            return
        called = isinstance(one, ast.Lambda) or name in self.named or name in _OF_FUNCTIONS or hasattr(nn.Module, name)
        if called and name not in _ONLY_SHOWN and not self.compiles:
            yield from self._of(body, f"{name} is never called")

    def _class(self, one: ast.ClassDef) -> Iterator[Part]:
        if one.name == self.class_name or one.name in self.named:
            yield from self._block(one.body)

    def _expressions(self, node: ast.AST) -> Iterator[Part]:
        """Of an expression, or of a statement without the statements inside it."""
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
                yield from self._expression(inner)

    def _expression(self, one: ast.AST) -> Iterator[Part]:
        if isinstance(one, ast.Lambda):
            for inner in _defaults(one):
                yield from self._expression(inner)
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
