"""Every kind of number in the form the page, the command line and the notebook share. Foreign text is written out where it
would do something to a terminal."""

from __future__ import annotations

from math import inf, nan

import pytest

from workbench.core import numbers
from workbench.core.plain_text import plain, plain_json


@pytest.mark.parametrize(("function", "arguments", "text"), [
    ("time", (0.647,), "0.647 ms"), ("time", (1.65,), "1.65 ms"), ("time", (30.3,), "30.3 ms"),
    ("time", (0.00148,), "1.48 µs"), ("time", (0.01,), "0.0100 ms"), ("time", (0.009999,), "0.0100 ms"),
    ("time", (1.0,), "1.00 ms"), ("time", (999.4,), "999 ms"), ("time", (999.6,), "1.00 s"),
    ("time", (2310,), "2.31 s"), ("time", (12_345_678,), "12\u202f346 s"), ("time", (0,), "0 ms"),
    ("time", (None,), "–"), ("milliseconds", (9.7,), "9.70"), ("milliseconds", (0.26,), "0.260"),
    ("milliseconds", (None,), "–"), ("milliseconds", (1234.5,), "1\u202f234"), ("seconds", (2.31,), "2.31 s"),
    ("ratio", (2.549,), "2.55×"), ("ratio", (1.015,), "1.015×"), ("ratio", (16.38,), "16.4×"),
    ("ratio", (9.996,), "10.0×"), ("ratio", (0.9,), "0.900×"), ("ratio", (0.13,), "0.13×"), ("ratio", (1.11,), "1.11×"),
    ("ratio", (None,), "–"), ("interval", (2.531, 2.568), "2.53 – 2.57"),
    ("interval", (0.997, 1.033, 1.015), "0.997 – 1.033"), ("interval", (None, 1.0), "–"),
    ("spread", (0.0091,), "±0.9 %"), ("spread", (None,), "–"), ("of_limit", (0.378, 0.647), "58 %"),
    ("of_limit", (None, 1.0), "–"), ("of_limit", (0.378, None), "–"), ("share", (0.6423,), "64 %"),
    ("share", (0.0,), "0 %"), ("share", (1e-9,), "< 1 %"), ("share", (1 - 1e-9,), "> 99 %"), ("share", (1.0,), "100 %"),
    ("work", (85.9e9,), "85.9 GFLOP"), ("work", (4.757e9,), "4.76 GFLOP"), ("work", (512,), "512 FLOP"),
    ("bytes_decimal", (1.6107e9,), "1.61 GB"), ("bytes_decimal", (999.7e6,), "1.00 GB"),
    ("bytes_decimal", (848e6,), "848 MB"), ("bytes_decimal", (0,), "0 B"), ("byte_rate", (4.26e12,), "4.26 TB/s"),
    ("flop_rate", (133.1e12,), "133 TFLOP/s"), ("intensity", (5.61,), "5.61 FLOP/B"),
    ("memory", (66048,), "64.5 KiB"), ("memory", (232448,), "227 KiB"), ("memory", (1000,), "1000 B"),
    ("memory", (23_300_000_000,), "21.7 GiB"), ("memory", (None,), "–"),
    ("error", (2.9e-4,), "2.9e-4"), ("error", (1.2e-6,), "1.2e-6"), ("error", (1.3,), "1.3e+0"), ("error", (0.0,), "0"),
    ("error", (nan,), "NaN"), ("error", (inf,), "∞"), ("error", (9.96e-5,), "1.0e-4"), ("error", (1e-12,), "1.0e-12"),
    ("count", (131072,), "131\u202f072"), ("count", (999,), "999"), ("count", (None,), "–"),
    ("shape", ((16, 64, 318, 638),), "16 × 64 × 318 × 638"), ("shape", ((32, 64, 131084),), "32 × 64 × 131\u202f084"),
    ("index", ("y", (0, 0, 12, 19)), "y[0, 0, 12, 19]"),
])
def test_form(function: str, arguments: tuple, text: str) -> None:
    assert getattr(numbers, function)(*arguments) == text


def test_a_column_of_times_has_one_unit_and_sorts_as_text_by_its_numbers() -> None:
    for values, unit, words in (((1234.5, 0.02, 12.5), "ms", ["0.0200", "12.5", "1\u202f234"]),
                                ((5.0, 0.00005, 0.0123), "µs", ["0.0500", "12.3", "5\u202f000"])):
        found, cells = numbers.times(values)
        assert found == unit and [cell.strip() for cell in sorted(cells)] == words
    assert numbers.times([None, nan, inf, 0.0]) == ("ms", ["–", *(numbers.padded(text) for text in ("NaN", "∞", "0"))])
    bounds = [(9.5, 9.6), (10.2, 10.4), (0.5, 0.7), (117.0, 119.0)]
    assert sorted(bounds, key=lambda two: numbers.padded(numbers.interval(*two))) == sorted(bounds), "an interval too"


def test_a_share_may_ask_for_a_decimal() -> None:
    assert numbers.share(0.64226, decimals=1) == "64.2 %"
    assert numbers.share(0.0001, decimals=1) == "< 0.1 %"


@pytest.mark.parametrize(("text", "seen"), [
    ("\x1b[2J17 OF 17 PASSED", "\\x1b[2J17 OF 17 PASSED"), ("wrong\rright", "wrong\\rright"), ("a\x9b2Jb", "a\\x9b2Jb"),
    ("\u202egnorw", "\\u202egnorw"), ("\u2066x\u2069", "\\u2066x\\u2069"), ("half \ud800", "half \\ud800"), ("a\x00b\x08\x7f",
     "a\\x00b\\x08\\x7f"), ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"), ("two\u2028lines", "two\\u2028lines"),
    ("tag \U000e0041", "tag \\U000e0041"), ("one\r\ntwo\n\tthree", "one\ntwo\n\tthree"),
    ("2 \u00b7 \u00b5s, \u4e2d\u6587 \u00e9", "2 \u00b7 \u00b5s, \u4e2d\u6587 \u00e9")])
def test_what_acts_is_written_out(text: str, seen: str) -> None:
    assert plain(text) == seen and plain(seen) == seen


def test_texts_within_other_values() -> None:
    assert plain({"a\x1b": ["\x07", ("\x08", 1, None)], "b": 2.5}) == {"a\\x1b": ["\\x07", ("\\x08", 1, None)], "b": 2.5}


def test_json_with_what_acts_in_it() -> None:
    assert plain_json('{"name": "a\\u001b[2J", "n": 1}') == {"name": "a\\x1b[2J", "n": 1}
    assert plain_json('["\u202e"]') == ["\\u202e"] and plain_json('["\u00b5s"]') == ["\u00b5s"]
