"""What is counted in seconds and in tokens, as people say it.

What belongs here: lengths of time in words, and tokens without the marks that WordPiece, SentencePiece and byte-level
vocabularies put on them. What does not: the strings that go into the dataset, which stay as the vocabulary has them.
"""

from collections.abc import Sequence

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + number): byte for number, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}
"""The letters that byte-level vocabularies write for bytes: `Ġ` is a space, `Ã©` an é."""


def readable(tokens: Sequence[str]) -> list[str]:
    """Return tokens of one vocabulary without its marks; the inside of a word begins with `…`."""
    byte_level = any(token.startswith("Ġ") for token in tokens)
    return [_readable(_decoded(token) if byte_level else token) for token in tokens]


def in_words(seconds: float) -> str:
    """Return a length of time as people say it: `8 s`, `17 min`, `3 h 20 min`, `2 d 4 h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes >= 5 else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _readable(token: str) -> str:
    if token.startswith("##") and len(token) > 2:
        return f"…{token[2:]}"
    return token.replace("▁", " ").strip() or "(space)"


def _decoded(token: str) -> str:
    if not all(sign in _BYTES for sign in token):
        return token
    return bytes(_BYTES[sign] for sign in token).decode("utf-8", errors="replace")
