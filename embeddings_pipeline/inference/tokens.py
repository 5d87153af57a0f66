"""From texts to token ids, each text on its own.

What belongs here: a private copy of the model's tokenizer, truncation, token counts, and what to do
with a text that cannot be tokenised or is far too long to be tokenised whole. What does not: padding
and packing (`forward`, `packed`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from embeddings_pipeline.records import BoolVector, IntVector, Reason

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Ids = npt.NDArray[np.int64]

_FAR_TOO_LONG = 32
"""Characters per token of the limit from which on a text is not tokenised whole; English has 4 to 5 per token."""

_TEXTS_AT_A_TIME = 64
"""Texts whose full encodings are alive at once: with their strings and masks they take over 100 bytes a token."""

_LEAST_FAR_TOO_LONG = 8_192

_BLANKS = re.compile(r"[ \t\r\n]{2,}")


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """The tokens of n texts, cut to the model's limit; `count` and `exact` speak of the whole texts.

    `failures` maps a position to the reason why that text has no tokens.

    *Shape:* ids n arrays int64[tokens of the text]; count int32[n]; exact bool[n].
    """

    ids: Sequence[Ids]
    count: IntVector
    exact: BoolVector
    failures: Mapping[int, tuple[Reason, str]]


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: Reason
    detail: str


class TextTokenizer:
    """A tokenizer that is never changed after construction, so that any number of threads may use it.

    Its ids are those of the library: `matches` at load compares them.
    """

    def __init__(
        self, tokenizer: "Tokenizer", max_length: int, *, cut_left: bool = False, prompt: str = "", special: bool = True
    ) -> None:
        """Take a private copy of a tokenizer.

        Args:
            tokenizer: a Rust tokenizer; it is copied, without its padding and truncation.
            max_length: tokens that the model takes, special ones included.
            cut_left: whether truncation drops the head of a text instead of its tail.
            prompt: put before every text.
            special: whether the model's special tokens are put around every text.
        """
        copy = type(tokenizer).from_str(tokenizer.to_str())
        copy.no_padding()
        copy.no_truncation()
        self._tokenizer = copy
        self.max_length = max_length
        self._cut_left = cut_left
        self._prompt = prompt
        self._special = special
        self._head, self._tail = self._special_ids()
        self._far = max(_LEAST_FAR_TOO_LONG, _FAR_TOO_LONG * max_length)
        self._blanks_vanish = self._same(" alpha beta ", "   alpha \t\r\n  beta  \n ")

    @property
    def size(self) -> int:
        """The number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def around(self, inner: Ids) -> Ids:
        """Put the special tokens around the tokens of a text and cut it to the limit.

        *Shape:* inner int64[n].
        """
        return self._cut([*self._head, *inner.tolist(), *self._tail])

    def strings(self, count: int, missing: str = "") -> list[str]:
        """Return the vocabulary's strings for the ids 0 to `count`, `missing` where an id has none."""
        strings = [missing] * count
        for string, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number < count:
                strings[number] = string
        return strings

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise texts; one that cannot be tokenised becomes a failure and disturbs no other."""
        failures: dict[int, tuple[Reason, str]] = {}
        ids: list[Ids] = [np.empty(0, np.int64)] * len(texts)
        count = np.zeros(len(texts), np.int32)
        exact = np.ones(len(texts), np.bool_)
        short = [position for position, text in enumerate(texts) if not _length(text) > self._far]
        for first in range(0, len(short), _TEXTS_AT_A_TIME):
            some = short[first : first + _TEXTS_AT_A_TIME]
            for position, encoding in zip(some, self._encodings([texts[position] for position in some]), strict=True):
                if isinstance(encoding, _Failure):
                    failures[position] = (encoding.reason, encoding.detail)
                else:
                    whole = encoding.ids
                    count[position] = len(whole)
                    ids[position] = self._cut(whole)
        for position in sorted(set(range(len(texts))) - set(short)):
            found, exact[position] = self._encode_prefix(texts[position])
            if isinstance(found, _Failure):
                failures[position] = (found.reason, found.detail)
            else:
                count[position] = len(found)
                ids[position] = self._cut(found)
        for position, row in enumerate(ids):
            if not len(row) and position not in failures:
                failures[position] = (Reason.BLANK_TEXT, "the tokenizer makes no token of it")
        return TokenizedTexts(ids, count, exact, failures)

    def matches(self, texts: Sequence[str], reference: Callable[[str], Sequence[int]]) -> bool:
        """Tell whether another way of tokenising these texts, truncated, gives the same ids."""
        return all(np.array_equal(self.encode([text]).ids[0], np.asarray(reference(text))) for text in texts)

    def _encodings(self, texts: Sequence[str]) -> "Sequence[Encoding | _Failure]":
        try:
            return self._tokenizer.encode_batch_fast(
                [self._prompt + text for text in texts], add_special_tokens=self._special
            )
        except Exception as error:  # noqa: BLE001 (the tokenizer names no row: its error becomes that of a single text)
            if len(texts) == 1:
                return [_why_not(texts[0], error)]
        return [self._encodings([text])[0] for text in texts]

    def _encode_prefix(self, text: str) -> "tuple[Sequence[int] | _Failure, bool]":
        """Tokenise as much of a text as decides its tokens up to the limit.

        Prefixes are doubled until two in a row begin with the same tokens up to the limit: the last
        tokens of one alone could still change with what follows.
        """
        if self._blanks_vanish:
            text = _BLANKS.sub(" ", text)
        length = len(text) if self._cut_left else self._far // 2
        before: list[int] | None = None
        while True:
            encoding = self._encodings([text[:length]])[0]
            if isinstance(encoding, _Failure):
                return encoding, False
            ids = encoding.ids
            if length >= len(text):
                return ids, True
            begin = ids[: self.max_length - len(self._tail)]
            if before == begin and len(ids) > self.max_length:
                return ids, False
            before, length = begin, 2 * length

    def _cut(self, ids: Sequence[int]) -> Ids:
        """Truncate as the library does: special tokens stay, the text gives way."""
        if len(ids) <= self.max_length:
            return np.asarray(ids, np.int64)
        room = max(0, self.max_length - len(self._head) - len(self._tail))
        inner = ids[len(self._head) : len(ids) - len(self._tail)]
        kept = inner[len(inner) - room :] if self._cut_left else inner[:room]
        return np.asarray([*self._head, *kept, *self._tail], np.int64)

    def _special_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer puts before and after every text."""
        encoding = self._tokenizer.encode("a", add_special_tokens=self._special)
        text = [position for position, special in enumerate(encoding.special_tokens_mask) if not special]
        if not text:
            return encoding.ids, []
        return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]

    def _same(self, one: str, other: str) -> bool:
        return bool(self._tokenizer.encode(one).ids == self._tokenizer.encode(other).ids)


def _length(text: object) -> int:
    """Return the characters of a text; what is no text at all is dealt with like a short one."""
    return len(text) if isinstance(text, str) else 0


def _why_not(text: object, error: Exception) -> _Failure:
    if text is None:
        return _Failure(Reason.NULL_TEXT, "the text is null")
    if not isinstance(text, str):
        return _Failure(Reason.NOT_TEXT, f"the text is of type {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as lone:
        return _Failure(Reason.LONE_SURROGATE, f"character {lone.start} is a lone surrogate ({text[lone.start]!a})")
    return _Failure(Reason.MODEL_ERROR, f"the tokenizer raised {type(error).__name__}: {error}")
