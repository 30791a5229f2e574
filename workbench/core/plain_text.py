"""Makes text from foreign code safe to show: characters that move a cursor, clear a screen or change the reading direction
become escapes (`\\x1b[2J`)."""

from __future__ import annotations

import json
import re
from typing import Any

# All controls but tab and newline; what is invisible or changes the direction; halves of characters, which no file can hold.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
                     "\ufff9-\ufffb\U000e0000-\U000e007f]")


def plain(value: Any) -> Any:
    """A text, or all texts within lists and dicts."""
    if isinstance(value, str):
        return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value.replace("\r\n", "\n"))
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def plain_json(text: str) -> Any:
    """What JSON says, all texts of it plain; most lines hold nothing that has to be. Raises ValueError."""
    data = json.loads(text)
    return plain(data) if "\\u" in text or _HIDDEN.search(text) else data
