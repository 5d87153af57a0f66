"""Times and tokens as people say them."""

import pytest

from embeddings_pipeline.pipeline.wording import in_words, readable


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (1_000, "16 min"),
        (12_060, "3 h 21 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_times_are_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["whale", "##ing", "[CLS]", "##"], ["whale", "…ing", "[CLS]", "##"]),
        (["▁whale", "ing", "▁"], ["whale", "ing", "(space)"]),
        (["Ġwhale", "Ġcaf\u00c3\u00a9", "ing", "Ġ"], ["whale", "café", "ing", "(space)"]),
        (["鲸", "dimension 7"], ["鲸", "dimension 7"]),
        ([], []),
    ],
)
def test_tokens_lose_the_marks_of_their_vocabulary(tokens: list[str], words: list[str]) -> None:
    """A librarian reads `whaling`, not `Ġwhaling` or `##ing`."""
    assert readable(tokens) == words
