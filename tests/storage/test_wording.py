"""Rejects say what a record holds in words that need no knowledge of Python."""

import json
from typing import Any

import pytest

from embeddings_pipeline.storage.wording import described, json_problem


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "a boolean"),
        (7, "a number"),
        (1.5, "a number"),
        ("x", "a text"),
        ([], "a list"),
        ({}, "an object"),
        (None, "null"),
    ],
)
def test_a_value_is_named_without_pythons_terms(value: Any, words: str) -> None:
    assert described(value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "lists or objects are nested too deeply in it"),
        ("1" * 5_000, "a whole number in it has over 4,300 digits"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_what_is_no_json_is_told_without_pythons_terms(text: str, words: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(text)
    assert json_problem(caught.value) == words
