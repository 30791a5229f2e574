"""Writes numbers as text, with one function for each kind of number. Page, command line, notebook and report all use these
functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, isnan, log10

MISSING = "–"
GROUP = "\u202f"  # narrow no-break space
_WHOLE = 9  # places before a decimal point, with the groups


def milliseconds(ms: float | None) -> str:
    """A time as a table cell under a header that says ms: three significant digits, `0.647`, `30.3`, `0.00148`."""
    return MISSING if ms is None else _number(ms) if not isfinite(ms) else _three(ms)


def padded(text: str) -> str:
    """The text of a number as a cell of the page's tables, which sort texts letter by letter: spaces before it give every
    decimal point the same place."""
    whole = next((i for i, sign in enumerate(text) if not sign.isdigit() and sign != GROUP), len(text))
    return f"{'':{max(0, _WHOLE - whole)}}{text}"


def times(values_ms: Sequence[float | None]) -> tuple[str, list[str]]:
    """(unit, cells) of a column of times, for a head that names the unit. The unit is ms, or µs if a time is below 0.01 ms.
    The cells are padded, so that they are in order when sorted as text; a missing time is `–`."""
    small = any(ms is not None and isfinite(ms) and 0 < _rounded(ms) < 0.01 for ms in values_ms)
    return ("µs" if small else "ms"), [
        MISSING if ms is None else padded(milliseconds(ms * 1e3 if small else ms)) for ms in values_ms]


def time(ms: float | None) -> str:
    """`0.647 ms`; in µs below 0.01 ms, in s from 1 000 ms on."""
    if ms is None:
        return MISSING
    if not isfinite(ms):
        return f"{_number(ms)} ms"
    rounded = _rounded(ms)
    if rounded >= 1000:
        return f"{_three(ms / 1e3)} s"
    if 0 < rounded < 0.01:
        return f"{_three(ms * 1e3)} µs"
    return f"{_three(ms)} ms"


def seconds(s: float | None) -> str:
    """A span of seconds in the unit that fits: `2.31 s`, `430 ms`."""
    return time(None if s is None else s * 1e3)


def ratio(value: float | None) -> str:
    """The baseline's time divided by ours: `2.55×`. It has three decimals between 0.9 and 1.1, and one above 10."""
    return MISSING if value is None else f"{_fixed(value, _decimals(value))}×"


def interval(low: float | None, high: float | None, value: float | None = None) -> str:
    """The bounds of a ratio: `2.53 – 2.57`. They have as many decimals as the ratio (default: as their middle)."""
    if low is None or high is None:
        return MISSING
    decimals = _decimals((low + high) / 2 if value is None else value)
    return f"{_fixed(low, decimals)} – {_fixed(high, decimals)}"


def spread(share: float | None) -> str:
    """Half the interquartile range divided by the median: `±0.9 %`. None (below 5 samples) is `–`."""
    return MISSING if share is None else f"±{_fixed(100 * share, 1)} %"


def of_limit(floor_ms: float | None, median_ms: float | None) -> str:
    """The floor divided by the median, in whole percent: `58 %`."""
    return MISSING if floor_ms is None or not median_ms else share(floor_ms / median_ms)


def share(value: float | None, *, decimals: int = 0) -> str:
    """A share from 0 to 1 as percent: `58 %`, `64.2 %`. Only exactly 0 and 1 are shown as 0 % and 100 %."""
    if value is None:
        return MISSING
    step = 10.0 ** -decimals
    percent = 100 * value
    if 0 < percent < step / 2:
        return f"< {_fixed(step, decimals)} %"
    if 100 - step / 2 < percent < 100:
        return f"> {_fixed(100 - step, decimals)} %"
    return f"{_fixed(percent, decimals)} %"


def work(flop: float | None) -> str:
    """`85.9 GFLOP`."""
    return _scaled(flop, "FLOP")


def bytes_decimal(size: float | None) -> str:
    """Traffic: `1.61 GB`."""
    return _scaled(size, "B")


def byte_rate(bytes_per_s: float | None) -> str:
    """`4.26 TB/s`."""
    return _scaled(bytes_per_s, "B/s")


def flop_rate(flop_per_s: float | None) -> str:
    """`133 TFLOP/s`."""
    return _scaled(flop_per_s, "FLOP/s")


def intensity(flop_per_byte: float | None) -> str:
    """`5.61 FLOP/B`."""
    return MISSING if flop_per_byte is None else f"{_three(flop_per_byte)} FLOP/B"


def memory(size: int | None) -> str:
    """Shared memory and GPU memory, with binary prefixes: `64.5 KiB`, `21.7 GiB`. Below 1 KiB it is a whole number of bytes."""
    if size is None:
        return MISSING
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{size} B"
    whole = value == floor(value) and value >= 1
    return f"{int(value) if whole else _three(value)} {unit}"


def error(value: float | None) -> str:
    """`2.9e-4`: two digits, exponent without leading zero; exactly zero is `0`."""
    if value is None:
        return MISSING
    if value == 0 or not isfinite(value):
        return _number(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent):+d}"


def count(value: int | None) -> str:
    """`131 072`: groups of three digits, separated by a narrow no-break space."""
    return MISSING if value is None else f"{value:,}".replace(",", GROUP)


def shape(sizes: Sequence[int] | None) -> str:
    """`16 × 64 × 318 × 638`; numbers of five digits and more are grouped."""
    if sizes is None:
        return MISSING
    return " × ".join(count(v) if v >= 10_000 else str(v) for v in sizes)


def index(name: str, position: Sequence[int]) -> str:
    """`y[0, 0, 12, 19]`."""
    return f"{name}[{', '.join(map(str, position))}]"


def _decimals(value: float) -> int:
    if not isfinite(value):
        return 0
    if 0.9 <= value <= 1.1:
        return 3
    return 1 if round(value, 2) >= 10 else 2


def _rounded(value: float) -> float:
    """To three significant digits."""
    return 0.0 if value == 0 else round(value, 2 - floor(log10(abs(value))))


def _three(value: float) -> str:
    """Three significant digits with trailing zeros. A whole number of more digits is written in full."""
    if value == 0:
        return "0"
    rounded = _rounded(value)
    decimals = max(0, 2 - floor(log10(abs(rounded))))
    return f"{value if decimals == 0 else rounded:,.{decimals}f}".replace(",", GROUP)


def _scaled(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    if not isfinite(value):
        return f"{_number(value)} {unit}"
    if abs(value) < 1000 and value == int(value):
        return f"{value:.0f} {unit}"
    prefixes = "kMGTPE"
    power = 0
    while abs(_rounded(value)) >= 1000 and power < len(prefixes):
        value /= 1000
        power += 1
    return f"{_three(value)} {prefixes[power - 1] if power else ''}{unit}"


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if isfinite(value) else _number(value)


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    return "0" if value == 0 else "∞" if value > 0 else "−∞"
