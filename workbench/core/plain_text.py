"""Makes text from foreign code safe to show: characters that move a cursor, clear a screen or change the reading direction
become escapes (`\\x1b[2J`)."""

from __future__ import annotations

import json
import re
from typing import Any

# All control characters except tab and newline; invisible characters; those that change the reading direction; single
# surrogates, which UTF-8 cannot encode.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
                     "\ufff9-\ufffb\U000e0000-\U000e007f]")


def plain(value: Any) -> Any:
    """The text with these characters escaped; of lists and dicts, all texts in them."""
    if isinstance(value, str):
        return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value.replace("\r\n", "\n"))
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def plain_json(text: str) -> Any:
    """The value of a JSON text, with all its texts escaped. Most lines need no escape, so they are tested first. Raises
    ValueError."""
    data = json.loads(text)
    return plain(data) if "\\u" in text or _HIDDEN.search(text) else data
