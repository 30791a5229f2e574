"""CUDA C++ text in, C++ text for `cuda_on_cpu.h` out. Line numbers and `#line` directives stay as they are.

A few things are not C++ to g++ and no macro can make them so; everything else is left to the header:

    kernel<A><<<grid, block, bytes, stream>>>(x)   ->  cuda_on_cpu::launch(kernel<A>, grid, block, bytes, stream)(x)
    the same, __launch_bounds__(128) at the kernel ->  cuda_on_cpu::launch(...).of_most(128)(x)
    kernel<<<grid, block>>>(x), its T deduced      ->  cuda_on_cpu::launch_deduced([&](auto... arguments) {
                                                           kernel(arguments...); }, grid, block)(x)
    extern __shared__ float s[];                   ->  CUDA_ON_CPU_DYNAMIC_SHARED(s, float);
    __shared__ float a[2][8], b;                   ->  CUDA_ON_CPU_SHARED(a, float[2][8]); CUDA_ON_CPU_SHARED(b, float);
    __noinline__                                   ->  __attribute__((noinline))
    decltype(x)::value                             ->  cuda_on_cpu::plain<decltype(x)>::value

The last one is C++, but g++ 12 takes decltype of a parameter that a lambda has captured by reference for a reference.

The text is scanned, not parsed: what is not understood stays as it is, and the compiler names its line.
"""

import re

# `#line 1` without a name keeps the file's own name and makes the added first line invisible.
_PROLOGUE = '#include "cuda_on_cpu.h"\n#line 1\n'

_COMMENT_OR_STRING = re.compile(
    r'//(?:\\\n|[^\n])*'  # to the end of the line, which a backslash continues
    r"|/\*.*?\*/"
    r'|R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'",  # not the ' in 1'000
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_ALIGNMENT = r"(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)"
_SHARED = re.compile(rf"(?<!\w)(?:(?:extern|static|volatile|const|{_ALIGNMENT})\s+)*__shared__(?!\w)")
_DECLARATOR = re.compile(r"\s*(?P<type>.*?[\s>&*])?\s*(?P<name>[A-Za-z_]\w*)\s*(?P<extent>(?:\[.*\])?)\s*", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)", re.DOTALL)
_NOINLINE = re.compile(r"(?<!\w)__noinline__(?!\w)")
_DECLTYPE_VALUE = re.compile(r"(?<!\w)decltype\(\w+\)(?=::value(?!\w))")
_TEMPLATE = re.compile(r"(?<!\w)template\s*<")
_LAUNCH_BOUNDS = re.compile(r"(?<!\w)__launch_bounds__\s*\(\s*(\w+)\s*[,)]([^;{}]*)")
_KERNEL_NAME = re.compile(r"(\w+)\s*\(")
_ATTRIBUTES = re.compile(r"__\w+__\s*(?:\((?:[^()]|\([^()]*\))*\))?")
_CLOSING = re.compile(r">>>(?=\s*(?:\\\n\s*)*\()")  # the one before the arguments
_OPENING = {")": "(", "]": "[", "}": "{"}


def translate(source: str) -> str:
    """C++ text that compiles with the emulator's include folders and flags; the same lines in the same places."""
    source = _shared_variables(source)
    source = _launches(source)
    source = _noinline(source)
    source = _values_of_types(source)
    return _PROLOGUE + source


def _code(source: str) -> str:
    """The text with comments and strings blanked: the same length, the same lines."""
    return _COMMENT_OR_STRING.sub(_blank, source)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _replace(source: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _shared_variables(source: str) -> str:
    # In a macro's body the declaration is incomplete text: there `__shared__` stays, and means thread_local.
    code = _DIRECTIVE.sub(_blank, _code(source))
    edits = []
    for match in _SHARED.finditer(code):
        end = code.find(";", match.end())
        if end < 0:
            continue
        text = _shared_declaration(match.group(), code[match.end() : end])
        if text is not None:
            edits.append((match.start(), end + 1, text + "\n" * code.count("\n", match.start(), end)))
    return _replace(source, edits)


def _shared_declaration(prefix: str, rest: str) -> str | None:
    """The macros that declare what `<prefix> <rest>;` declares; None if the text is not understood."""
    qualifiers = " ".join(re.findall(r"\b(?:volatile|const)\b", prefix))
    # Every buffer is aligned to 128 bytes, more than CUDA code may ask for.
    rest = re.sub(_ALIGNMENT, " ", rest)
    if re.search(r"[{}=]", rest):
        return None
    base = None
    macros = []
    for part in _split_at_commas(rest):
        match = _DECLARATOR.fullmatch(part)
        if match is None or (base is None) == (match["type"] is None):
            return None
        if base is None:
            base = " ".join(f"{qualifiers} {match['type']}".split())
        extent = " ".join(match["extent"].split())
        if re.search(r"\bextern\b", prefix):
            # `extern __shared__ T s[][8]` is a pointer to rows of 8.
            rows = re.sub(r"^\[.*?\]", "", extent)
            macros.append(f"CUDA_ON_CPU_DYNAMIC_SHARED({match['name']}, {base}{' ' + rows if rows else ''});")
        else:
            macros.append(f"CUDA_ON_CPU_SHARED({match['name']}, {base}{extent});")
    return " ".join(macros)


def _split_at_commas(text: str) -> list[str]:
    """Split at the commas that separate declarators, not at those within (), [] or template arguments."""
    parts = []
    start = brackets = angles = 0
    for position, char in enumerate(text):
        if char in "([":
            brackets += 1
        elif char in ")]":
            brackets -= 1
        elif brackets == 0 and char in "<>":
            angles += 1 if char == "<" else -1
        elif char == "," and brackets == angles == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _launches(source: str) -> str:
    code = _code(source)
    required, most = _required_template_arguments(code), _most_threads(code)
    edits = []
    end = 0
    while (opening := code.find("<<<", end)) >= 0:
        end = opening + 3
        closing = _CLOSING.search(code, end)
        start = _start_of_kernel(code, opening)
        if closing is None or start == opening:
            continue
        # Only these three places change, so every line break stays.
        if _leaves_arguments_to_deduce(code[start:opening], required):
            edits.append((start, start, "cuda_on_cpu::launch_deduced([&](auto... arguments) { "))
            edits.append((opening, end, "(arguments...); }, "))
        else:
            edits.append((start, start, "cuda_on_cpu::launch("))
            edits.append((opening, end, ", "))
        end = closing.end()
        name = re.search(r"(\w+)\s*(?:<.*>\s*)?$", code[start:opening], re.DOTALL)
        bound = most.get(name[1]) if name else None
        edits.append((closing.start(), end, f").of_most({bound})" if bound else ")"))
    return _replace(source, edits)


def _most_threads(code: str) -> dict[str, int]:
    """Name of each kernel whose launch bound is a number, or a constant that is set to a number -> that number."""
    most: dict[str, int] = {}
    for match in _LAUNCH_BOUNDS.finditer(code):
        bound, after = match.groups()
        if not bound.isdigit():
            known = re.search(rf"(?:#[ \t]*define[ \t]+{bound}[ \t]+|(?<!\w){bound}\s*=\s*)(\d+)\s*[;\n]", code)
            bound = known[1] if known else ""
        if bound and (name := _KERNEL_NAME.search(_ATTRIBUTES.sub(" ", after))):
            most[name[1]] = max(int(bound), most.get(name[1], 0))
    return most


def _required_template_arguments(code: str) -> dict[str, int]:
    """Name of each kernel template in the text -> how many of its parameters have no default."""
    required: dict[str, int] = {}
    for match in _TEMPLATE.finditer(code):
        after = _after_template_parameters(code, match.end())
        signature = re.match(r"[^;{}]*", code[after:])
        if signature is None or "__global__" not in signature.group():
            continue
        name = _KERNEL_NAME.search(_ATTRIBUTES.sub(" ", signature.group()))
        if name is not None:
            parameters = _split_at_commas(code[match.end() : after - 1])
            count = sum("=" not in parameter for parameter in parameters)
            required[name[1]] = max(count, required.get(name[1], 0))
    return required


def _after_template_parameters(code: str, start: int) -> int:
    depth = 1
    for position in range(start, len(code)):
        depth += (code[position] == "<") - (code[position] == ">")
        if depth == 0:
            return position + 1
    return len(code)


def _leaves_arguments_to_deduce(kernel: str, required: dict[str, int]) -> bool:
    """Whether `kernel`, as written before <<<, names a template without all of its arguments."""
    kernel = kernel.strip()
    given = 0
    if kernel.endswith(">"):
        start = _before_template_arguments(kernel, len(kernel))
        given = len(_split_at_commas(kernel[start + 1 : -1]))
        kernel = kernel[:start].rstrip()
    return given < required.get(re.sub(r".*\W", "", kernel, flags=re.DOTALL), 0)


def _start_of_kernel(code: str, end: int) -> int:
    """Where the kernel begins: `name`, `A<int>::name<B<C>, (d > e)>` or `(expression)` before position `end`."""
    position = _skip_space(code, end)
    while True:
        if position and code[position - 1] == ">":
            position = _skip_space(code, _before_template_arguments(code, position))
        elif position and code[position - 1] == ")":
            return _opening_bracket(code, position)
        while position and (code[position - 1].isalnum() or code[position - 1] == "_"):
            position -= 1
        if code[max(0, position - 2) : position] != "::":
            return position if code[position:end].strip() else end
        position -= 2


def _skip_space(code: str, end: int) -> int:
    while end and code[end - 1].isspace():
        end -= 1
    return end


def _before_template_arguments(code: str, end: int) -> int:
    depth = 0
    position = end
    while position:
        char = code[position - 1]
        if char in _OPENING:
            position = _opening_bracket(code, position)
            continue
        position -= 1
        depth += (char == ">") - (char == "<")
        if depth == 0:
            return position
    return end


def _opening_bracket(code: str, end: int) -> int:
    """The position of the bracket that the one before `end` closes; 0 if there is none."""
    opened = []
    for position in range(end - 1, -1, -1):
        char = code[position]
        if char in _OPENING:
            opened.append(_OPENING[char])
        elif opened and char == opened[-1]:
            opened.pop()
            if not opened:
                return position
    return 0


def _noinline(source: str) -> str:
    # Not a macro, as in nvcc: the C++ library's own headers say __attribute__((__noinline__)).
    code = _ATTRIBUTE.sub(_blank, _code(source))
    return _replace(source, [(m.start(), m.end(), "__attribute__((noinline))") for m in _NOINLINE.finditer(code)])


def _values_of_types(source: str) -> str:
    edits = [(*m.span(), f"cuda_on_cpu::plain<{m.group()}>") for m in _DECLTYPE_VALUE.finditer(_code(source))]
    return _replace(source, edits)
