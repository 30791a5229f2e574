"""Reads machine code: the instructions of each kernel with their control codes, source lines and loops.

`read` takes what `nvdisasm -c -g -hex` prints, and for the registers in use what `nvdisasm -c -lrm count` prints. The control
codes are those of Volta to Hopper: bits 105 to 125 of an instruction of 128 bits, as maxas and CuAssembler describe them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_KERNEL = re.compile(r"\.text\.(?P<name>[\w$.]+):")
_LABEL = re.compile(r"(?P<name>\.L_\w+):")
_PLACE = re.compile(r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CODE = re.compile(r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<text>.*?)\s*;\s*"
                   r"(?:/\* 0x[0-9a-f]{16} \*/|//\s*\|\s*(?P<live>\d*)\s*\||$)")
_HIGH = re.compile(r"\s*/\* 0x(?P<high>[0-9a-f]{16}) \*/\s*$")
_TARGET = re.compile(r"`\((?P<label>\.L_\w+)\)")
_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.M)
_PTX_LOC = re.compile(r"\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)")
_PRODUCTS = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "FFMA", "HFMA2", "DFMA")
_TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA")
_MEMORY = ("LDS", "LDSM", "STS", "LDG", "STG", "LDL", "STL", "LD", "ST", "LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP", "RED",
           "ATOM", "ATOMG", "ATOMS")
_WAITS = ("BAR", "SYNCS", "WARPGROUP", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "MEMBAR")
_WIDTHS = ("128", "64")
OUTSIDE = "outside of loops"
_MOST_SAID = 6   # kinds in a sentence
_NONE = 7  # the value for none of the six barriers


@dataclass(frozen=True)
class Control:
    """The control code of an instruction. `stall`: cycles before the next instruction. `yields`: the scheduler may switch to
    another warp. `write_barrier`, `read_barrier`: the barrier that is set until the result is written, or until the operands
    are read. `waits`: the barriers that it waits for."""

    stall: int
    yields: bool
    write_barrier: int | None
    read_barrier: int | None
    waits: tuple[int, ...]

    @property
    def text(self) -> str:
        """As CuAssembler writes it: `B01----:R-:W2:Y:S04`."""
        waits = "".join(str(b) if b in self.waits else "-" for b in range(6))
        read, write = ("-" if b is None else b for b in (self.read_barrier, self.write_barrier))
        return f"B{waits}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02d}"


@dataclass(frozen=True)
class Instruction:
    """One instruction. `live`: the number of general registers in use there; None if that was not read. `target`: the address
    to which a branch may jump."""

    address: int
    text: str
    opcode: str
    file: str
    line: int
    control: Control | None
    live: int | None = None
    target: int | None = None

    @property
    def kind(self) -> str:
        """The name under which it is counted: a product with its shape and types, or a load or store with its width; "" for
        other instructions."""
        base, *rest = self.opcode.split(".")
        if base in _TENSOR:
            return self.opcode
        if base in _MEMORY:
            return ".".join([base, *(w for w in _WIDTHS if w in rest)][:2])
        return base if base in (*_PRODUCTS, *_WAITS) else ""


@dataclass(frozen=True)
class Loop:
    """The instructions from the target of a backward branch to that branch. `own`: those that are not in an inner loop."""

    first: int
    last: int
    depth: int
    own: tuple[Instruction, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(i.kind for i in self.own if i.kind)

    @property
    def products(self) -> int:
        """The number of tensor-core products; without them, of multiply-adds."""
        counts = self.counts
        tensor = sum(n for kind, n in counts.items() if kind.startswith(_TENSOR))
        return tensor or sum(n for kind, n in counts.items() if kind.startswith(_PRODUCTS))

    @property
    def place(self) -> tuple[str, int, int]:
        """The file of most of its instructions, and the first and last line there."""
        files = Counter(i.file for i in self.own if i.file)
        if not files:
            return "", 0, 0
        file = files.most_common(1)[0][0]
        lines = [i.line for i in self.own if i.file == file]
        return file, min(lines), max(lines)


@dataclass(frozen=True)
class Kernel:
    """One kernel's machine code, by its mangled name."""

    name: str
    code: tuple[Instruction, ...]
    loops: tuple[Loop, ...] = field(default=())

    @property
    def most_live(self) -> Instruction | None:
        """The instruction with the most registers in use; None if they were not read."""
        return max((i for i in self.code if i.live is not None), key=lambda i: i.live or 0, default=None)

    @property
    def main_loop(self) -> Loop | None:
        """The loop with the most tensor-core products, else with the most multiply-adds. Of loops with equally many, the inner
        one. None without a loop."""
        return max(self.loops, key=lambda x: (any(k.startswith(_TENSOR) for k in x.counts), x.products, x.depth, len(x.own)),
                   default=None)


def read(text: str, live: str = "") -> list[Kernel]:
    """Every kernel of the listing, in its order."""
    in_use = {(k.name, i.address): i.live for k in read(live) for i in k.code} if live else {}
    kernels: list[Kernel] = []
    name, file, line = "", "", 0
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    aims: dict[int, str] = {}

    def close() -> None:
        if name and code:
            done = tuple(_aimed(i, labels.get(aims.get(i.address, ""))) for i in code)
            kernels.append(Kernel(name, done, _loops(done)))

    for raw in text.splitlines():
        if found := _KERNEL.match(raw):
            close()
            name, file, line, code, labels, waiting, aims = found["name"], "", 0, [], {}, [], {}
        elif found := _LABEL.match(raw.strip()):
            waiting.append(found["name"])
        elif found := _PLACE.search(raw):
            file, line = found["file"], int(found["line"])
        elif found := _CODE.search(raw):
            at, words = int(found["at"], 16), found["text"]
            labels |= dict.fromkeys(waiting, at)
            waiting = []
            if aim := _TARGET.search(words):
                aims[at] = aim["label"]
            opcode = re.sub(r"^@!?U?P\w+\s+", "", words).split(" ")[0]
            count = int(found["live"]) if found["live"] else in_use.get((name, at))
            code.append(Instruction(at, words, opcode, file, line, None, count))
        elif (found := _HIGH.match(raw)) and code:
            last = code[-1]
            code[-1] = Instruction(last.address, last.text, last.opcode, last.file, last.line, control(int(found["high"], 16)),
                                   last.live)
    close()
    return kernels


def ptx_lines(ptx: str, mangled: str) -> list[tuple[str, str]]:
    """(text, "file:line" of its source or "") of each line of a kernel's PTX; for the kernel "", of the whole PTX. Lines that
    only name a place are left out."""
    files = {number: name for number, name in _PTX_FILE.findall(ptx)}
    one = re.search(rf"(?:\.visible|\.weak)?\s*\.entry\s+{re.escape(mangled)}\b.*?^\}}", ptx, re.S | re.M) if mangled else None
    found, place = [], ""
    for line in (one[0] if one else ptx).splitlines():
        if at := _PTX_LOC.match(line):
            place = f"{files.get(at['file'], '')}:{at['line']}"
        elif line.strip():
            found.append((line.expandtabs(4).rstrip(), place))
    return found


def control(high: int) -> Control:
    """The control code in the upper 64 bits of an instruction."""
    bits = high >> 41
    write, read_ = bits >> 5 & 7, bits >> 8 & 7
    waits = bits >> 11 & 0x3F
    return Control(bits & 15, not bits >> 4 & 1, None if write == _NONE else write, None if read_ == _NONE else read_,
                   tuple(b for b in range(6) if waits >> b & 1))


def sentence(kernel: Kernel) -> str:
    """A static analysis of the main loop: what it issues in one iteration, how many loads there are for each product, and
    whether it uses local memory."""
    loop = kernel.main_loop
    spills = sum(i.kind in ("LDL", "STL") or i.kind.startswith(("LDL.", "STL.")) for i in kernel.code)
    local = "no local memory" if not spills else f"{spills} access{'es' if spills > 1 else ''} to local memory in the kernel"
    most = kernel.most_live
    where = f", at {most.file}:{most.line}" if most and most.file else ""
    live = f" At most {most.live} registers are in use{where}." if most else ""
    if loop is None:
        counts = Counter(i.kind for i in kernel.code if i.kind)
        return f"There is no loop. The kernel issues {_listed(counts)}, {local}.{live}"
    counts = loop.counts
    loads = sum(n for kind, n in counts.items() if kind.startswith(("LDS", "LDG", "LD.")) and not kind.startswith("LDGSTS"))
    ratio = f"; {_each(loads, loop.products)}" if loads and loop.products else ""
    return f"The main loop issues {_listed(counts)}, {local}{ratio}.{live}"


def differences(a: Kernel, b: Kernel) -> list[tuple[str, str, int, int]]:
    """(loop, kind, count in A, count in B) of each difference. Loops are sorted by their products and compared pair by pair;
    then the code outside of loops is compared."""
    rows: list[tuple[str, str, int, int]] = []
    ours, theirs = _ranked(a), _ranked(b)
    for number in range(max(len(ours), len(theirs))):
        x, y = (some[number] if number < len(some) else None for some in (ours, theirs))
        rows += _differing(f"loop {number + 1}", x.own if x else (), y.own if y else ())
    return rows + _differing(OUTSIDE, _outside(a), _outside(b))


def loop_rows(kernel: Kernel) -> list[tuple[str, ...]]:
    """(number, depth, file and lines, number of instructions, all of their kinds) of each loop, the one with the most products
    first; last the code outside of loops. Nothing for a kernel without loops."""
    found: list[tuple[str, ...]] = []
    for number, loop in enumerate(_ranked(kernel), 1):
        found.append((f"{number}", f"{loop.depth}", _lines_of(loop), f"{len(loop.own)}", _listed(loop.counts, len(loop.own))))
    outside = _outside(kernel)
    counts = Counter(i.kind for i in outside if i.kind)
    return [*found, ("–", "0", OUTSIDE, f"{len(outside)}", _listed(counts, len(outside)))] if found else []


def kinds_by_loop(kernel: Kernel) -> list[dict[str, int | str]]:
    """One row for each loop, the one with the most products first, then one for the code outside of loops, then their sum. Each
    has "loop" (its number or a word), "source" (file and lines), "instructions", and a count for each kind that the kernel has;
    "other" counts what is no product, load, store or wait."""
    ranked, outside = _ranked(kernel), _outside(kernel)
    parts = [(f"{number}, depth {loop.depth}", _lines_of(loop), loop.own) for number, loop in enumerate(ranked, 1)]
    parts += [(OUTSIDE, "", tuple(outside)), ("all", "", kernel.code)] if parts else [("all", "", kernel.code)]
    order = [kind for kind, _ in _ordered(Counter(i.kind for i in kernel.code if i.kind))]
    rows: list[dict[str, int | str]] = []
    for name, place, code in parts:
        counts = Counter(i.kind for i in code)
        rows.append({"loop": name, "source": place, "instructions": len(code), **{kind: counts[kind] for kind in order},
                     "other": counts[""]})
    return rows


def _lines_of(loop: Loop) -> str:
    """`forward/tiny.cu:5-11`; "" if no instruction has a source line."""
    file, first, last = loop.place
    return f"{file}:{first}" + (f"-{last}" if last != first else "") if file else ""


def _ranked(kernel: Kernel) -> list[Loop]:
    return sorted(kernel.loops, key=lambda x: (-x.products, x.first))


def _outside(kernel: Kernel) -> list[Instruction]:
    inside = {i.address for loop in kernel.loops for i in loop.own}
    return [i for i in kernel.code if i.address not in inside]


def _differing(name: str, ours: Sequence[Instruction], theirs: Sequence[Instruction]) -> list[tuple[str, str, int, int]]:
    a, b = (Counter(i.kind for i in some if i.kind) for some in (ours, theirs))
    found = [(name, kind, a[kind], b[kind]) for kind in sorted({*a, *b}) if a[kind] != b[kind]]
    return found + ([(name, "all instructions", len(ours), len(theirs))] if len(ours) != len(theirs) else [])


def _loops(code: Sequence[Instruction]) -> tuple[Loop, ...]:
    """The loops, found by their backward branches. Several branches to one target are one loop, which ends at the last of them.
    A branch to itself is the end of a kernel, not a loop."""
    ends: dict[int, int] = {}
    for i in code:
        if i.target is not None and i.target < i.address:
            ends[i.target] = max(ends.get(i.target, 0), i.address)
    spans = sorted(ends.items())
    found = []
    for first, last in spans:
        inner = [(f, e) for f, e in spans if (f, e) != (first, last) and first <= f and e <= last]
        depth = sum(f <= first and last <= e for f, e in spans)
        own = tuple(i for i in code if first <= i.address <= last and not any(f <= i.address <= e for f, e in inner))
        found.append(Loop(first, last, depth, own))
    return tuple(found)


def _aimed(i: Instruction, target: int | None) -> Instruction:
    return i if target is None else Instruction(i.address, i.text, i.opcode, i.file, i.line, i.control, i.live, target)


def _listed(counts: Counter[str], most: int = _MOST_SAID) -> str:
    """"96 HMMA.1688.F32.TF32, 24 LDS.128": products first, then the others, the most frequent first; beyond `most` kinds, how
    many instructions are of others."""
    order = _ordered(counts)
    shown, rest = order[:most], sum(n for _, n in order[most:])
    return ", ".join([*(f"{n} {kind}" for kind, n in shown), *([f"{rest} of other kinds"] if rest else [])]) or (
        "no product, load or store")


def _ordered(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (not pair[0].startswith(_PRODUCTS), -pair[1], pair[0]))


def _each(loads: int, products: int) -> str:
    if loads >= products:
        return f"about {loads / products:.1f} loads for each product"
    return f"about 1 load for {products / loads:.1f} products"
