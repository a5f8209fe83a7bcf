"""Which script a token is written in."""

from __future__ import annotations

import unicodedata

# By the first words of its letters' Unicode names: Python knows no scripts. The most frequent ones of vocabularies; the rest are "other".
_NAMES = {
    "LATIN": "latin", "CYRILLIC": "cyrillic", "GREEK": "greek", "ARMENIAN": "armenian", "GEORGIAN": "georgian", "HEBREW": "hebrew",
    "ARABIC": "arabic", "DEVANAGARI": "devanagari", "BENGALI": "bengali", "GURMUKHI": "gurmukhi", "GUJARATI": "gujarati", "TAMIL": "tamil",
    "TELUGU": "telugu", "KANNADA": "kannada", "MALAYALAM": "malayalam", "SINHALA": "sinhala", "THAI": "thai", "LAO": "lao",
    "KHMER": "khmer", "MYANMAR": "myanmar", "TIBETAN": "tibetan", "ETHIOPIC": "ethiopic", "HANGUL": "cjk", "HIRAGANA": "cjk",
    "KATAKANA": "cjk", "BOPOMOFO": "cjk", "CJK": "cjk", "IDEOGRAPHIC": "cjk",
}  # fmt: skip
COMMON, BYTES, MIXED, OTHER, CONTROL = "common", "bytes", "mixed", "other", "control"
CHOICES = (*dict.fromkeys(_NAMES.values()), COMMON, BYTES)
"""What --script takes."""
KINDS = (*CHOICES, MIXED, OTHER, CONTROL)


def script_of(content: bytes) -> str:
    """The script of a token's bytes: one of `CHOICES`, MIXED for letters of several, OTHER for one that has no name here.

    COMMON: no letters at all, such as digits, punctuation and blanks. BYTES: a piece of a character, which most scripts but Latin need.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return BYTES
    found = {_script(char) for char in text if unicodedata.category(char)[0] in "LM"}
    return COMMON if not found else found.pop() if len(found) == 1 else MIXED


def _script(letter: str) -> str:
    return _NAMES.get(unicodedata.name(letter, "").partition(" ")[0].partition("-")[0], OTHER)
