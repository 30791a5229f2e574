"""Foreign text is written out where it would do something to a terminal, and left alone elsewhere."""

from __future__ import annotations

import pytest

from workbench.core.plain_text import plain, plain_json


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
