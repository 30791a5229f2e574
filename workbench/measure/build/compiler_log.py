"""Reads a compiler's log: the first error with file and line of the template, and a headline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from ...core.check_parts import FirstError
from ...core.plain_text import plain

# Tool, message and place of an error, tried in this order on every line of the log.
_PLACED = (
    re.compile(r"^(?P<file>[^:()]+?):(?P<line>\d+):(?:\d+:)? (?:fatal )?[Ee]rror: (?P<message>.+)$"),  # g++, as
    # nvcc, and ld for code with -g
    re.compile(r"^(?P<file>[^:()]+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<message>.+)$"),
    re.compile(r"^(?P<file>[^:()]+?):(?P<line>\d+): (?P<message>undefined reference to .+)$"),
)
_UNPLACED = (
    re.compile(r"^ptxas [^;]*; (?:error|fatal)\s*: (?P<message>.+)$"),
    re.compile(r"^(?:ptxas|nvlink|nvcc|cudafe\+\+) (?:error|fatal)\s*: (?P<message>.+)$"),
    re.compile(r"^.*?: (?P<message>(?:undefined reference to|multiple definition of) [^;]+)(?:;.*)?$"),
    re.compile(r"^(?:\S*/)?ld(?:\.\w+)?: (?:error: )?(?P<message>cannot find .+)$"),
    re.compile(r"^(?:\S*/)?(?:cc1plus|[\w+.-]*(?:g\+\+|gcc|clang\+\+|clang|c\+\+)[\w.-]*): "
               r"(?:fatal )?error: (?P<message>.+)$"),
    re.compile(r"^(?:\S*/)?ld(?:\.\w+)?: (?P<message>(?!.*: in function).+)$"),
)
_GIVEN = re.compile(r"^\s+argument types are: (\(.*\))$")
_NOT_DEDUCED = re.compile(r"couldn.t deduce template parameter .(\w+)|failed deduction")
_WARNED = re.compile(r"^(?P<file>[^:()\n]+?)\((?P<line>\d+)\): warning(?: #[\w-]+)?: (?P<message>.+)$", re.M)
_SOURCE_NAME = re.compile(r'^[ \t]*#[ \t]*line[ \t]+\d+[ \t]+"([^"]+)"', re.M)
_REFERENCE = re.compile(r"(?P<file>[^:()\n]+?)(?::(?P<colon>\d+)(?::\d+)?:|\((?P<paren>\d+)\))")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_NO_MEMORY = re.compile(r"out of memory allocating \d+ bytes|virtual memory exhausted|: Cannot allocate memory")
_REFUSED = re.compile(r": (Read-only file system|Input/output error|File too large|Too many open files|"
                      r"Resource temporarily unavailable|Stale file handle)$", re.M)
_ENDED = re.compile(r"^# (?P<tool>\S+) ended with code (?P<code>\d+)$", re.M)  # written by the scripts of load_inline
_KILLED = re.compile(r"(?P<name>Killed|Terminated|Bus error|File size limit exceeded) signal terminated program|"
                     r"(?:died due to|terminated with) signal (?P<number>\d+)")
_NAMES = {"Killed": 9, "Terminated": 15, "Bus error": 7, "File size limit exceeded": 25}
_OF_THE_MACHINE = {1: "SIGHUP", 2: "SIGINT", 7: "SIGBUS", 9: "SIGKILL", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ"}
_FILES = ("main.cpp", "cuda.cu", "source.cu")  # the file name under which text without #line is compiled
_MOST_OF_A_LINE = 4000
_CONTEXT_LINES = 12  # how many lines around an error are searched for "required from"


def first_error(log: str, source: str) -> FirstError | None:
    """The first error of a build. An error inside a header is reported at the template line that includes it.

    `source` is the compiled text: its #line directives say which files are the user's.
    """
    return next(_errors(log, source), None)


def first_warning(log: str, source: str) -> FirstError | None:
    """The first warning of nvcc in one of the user's files. It is used if ptxas reports an error, because ptxas names no lines
    of the source."""
    ours = source_names(source)
    for found in _WARNED.finditer(log):
        if (file := _ours(found["file"], ours)) in ours or file in _FILES:
            return FirstError(file, int(found["line"]), _plain(found["message"]))
    return None


def errors(log: str, source: str) -> list[FirstError]:
    """All errors of a build, in the order of the log."""
    return list(_errors(log, source))


def _errors(log: str, source: str) -> Iterator[FirstError]:
    ours = source_names(source)
    lines = [line[:_MOST_OF_A_LINE] for line in log.splitlines()]
    for number, text in enumerate(lines):
        if text.startswith("$ "):  # a command line, written by the wrapper
            continue
        if found := next(filter(None, (pattern.match(text) for pattern in _PLACED)), None):
            file, line = _ours(found["file"], ours), int(found["line"])
            if file not in ours and file not in _FILES:
                file, line = _led_from(lines, number, ours) or (file, line)
            yield FirstError(file, line, _plain(found["message"]) + _more(lines[number + 1:number + _CONTEXT_LINES]))
        elif found := next(filter(None, (pattern.match(text) for pattern in _UNPLACED)), None):
            yield FirstError(None, None, _plain(found["message"]))


def _more(after: list[str]) -> str:
    """The details in the lines after an error: the argument types of a call without a matching function, and the reason."""
    said = ""
    for line in after:
        if " error: " in line or "): error" in line:
            break
        if found := _GIVEN.match(line):
            said += f": {found[1]}"
        elif found := _NOT_DEDUCED.search(line):
            return f"{said}; the template argument {found[1]} cannot be deduced" if found[1] else \
                f"{said}; a template argument cannot be deduced"
    return said


def source_names(source: str) -> set[str]:
    """The files that a translation unit says it is made of."""
    return set(_SOURCE_NAME.findall(source))


def headline(tool: str, error: FirstError) -> str:
    """One sentence: `g++ stopped at naive_gather.cu, line 88: 'smem_w' was not declared.`"""
    message = error.message.rstrip(".")
    message += "" if message.endswith("?") else "."  # some messages of g++ end with a question
    if error.file is None:
        return f"{tool} stopped: {message}"
    return f"{tool} stopped at {PurePosixPath(error.file).name}, line {error.line}: {message}"


def disk_full(texts: Iterable[str]) -> bool:
    return any(_DISK_FULL.search(text) for text in texts)


def machine_failed(tool: str, log: str) -> str | None:
    """The sentence for a build that failed because of the machine: memory, files, or a signal from outside. (SIGSEGV does not
    count, because the compiler itself may crash.) None if a compiler ended normally with an error."""
    ended = _ENDED.search(log)
    tool, code = (ended["tool"], int(ended["code"])) if ended else (tool, 0)
    told = _KILLED.search(log)
    number = int(told["number"] or _NAMES[told["name"]]) if told else code - 128
    if number == 9:
        return f"{tool} was killed (signal 9): out of memory?"
    if number in _OF_THE_MACHINE:
        return f"{tool} was ended by signal {number} ({_OF_THE_MACHINE[number]}) from outside."
    if _NO_MEMORY.search(log):
        return f"{tool} ran out of memory."
    if refused := _REFUSED.search(log):
        return f"{tool} could not read or write its files: {refused[1]}."
    if code in (126, 127):
        return f"{tool} could not be started."
    return None


def ending(tool: str, returncode: int) -> str:
    """The line about a failed compiler, as the scripts of load_inline write it. Python has a signal as a negative code."""
    return f"# {tool} ended with code {returncode if returncode > 0 else 128 - returncode}"


def came_to_an_end(log: str) -> bool:
    """Whether the log says that a compiler failed. If not, something else ended the build."""
    return bool(_ENDED.search(log))


def _ours(file: str, ours: set[str]) -> str:
    """The name without the folder of the build. Assembler and linker put this private folder before the names of #line."""
    named = next((o for o in ours if file.endswith(f"/{o}")), file)
    path = PurePosixPath(named)
    return path.name if path.name in _FILES else named


def _led_from(lines: list[str], number: int, ours: set[str]) -> tuple[str, int] | None:
    """The place in one of the user's files that is nearest to an error in the log: g++ writes "required from" before the error,
    "note: in instantiation" (clang) and "detected during" (nvcc) come after it."""
    before = range(number - 1, max(-1, number - _CONTEXT_LINES), -1)
    after = range(number + 1, min(len(lines), number + _CONTEXT_LINES))
    for index in (*before, *after):
        for found in _REFERENCE.finditer(lines[index]):
            name = found["file"].strip().removeprefix("In file included from ").removeprefix("from ")
            name = next((o for o in ours if name == o or name.endswith(f" {o}")), None) or \
                next((f for f in _FILES if name.endswith(f"/{f}")), None)
            if name and not name.startswith("instance of"):
                return name, int(found["colon"] or found["paren"])
    return None


def _plain(message: str) -> str:
    """The message without the place, and without g++'s note on the option that enables it."""
    message = plain(message.strip()).replace("\u2018", "'").replace("\u2019", "'")
    return re.sub(r" \[-W[^\]]+\]$", "", message).replace(" in this scope", "")
