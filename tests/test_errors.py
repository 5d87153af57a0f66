"""The tree of errors is the one drawn at the head of the module, and every message ends with what to do."""

import inspect
import re

import pytest

from embeddings_pipeline import errors
from embeddings_pipeline.errors import EmbeddingsError, did_you_mean


def classes() -> list[type[EmbeddingsError]]:
    return [thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, EmbeddingsError)]


def test_the_drawing_at_the_head_of_the_module_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^    ([│ ├└─]*)([A-Z]\w+Error)\b", line):
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            drawn[match[2]] = above[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in classes()}


def test_errors_carry_the_ids_they_speak_of() -> None:
    unknown = errors.UnknownModelError("x", ["b", "a"])
    assert (unknown.name, unknown.known) == ("x", ["a", "b"])
    failed = errors.BatchFailedError("r1", "r9", ValueError("why"))
    assert (failed.first, failed.last) == ("r1", "r9")
    assert str(failed) == "the texts of records 'r1' to 'r9' could not be embedded: why"
    assert errors.DeviceUnavailableError("cuda", "no driver").reason == "no driver"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.UnknownModelError("x", ["a"]), "or add model.source with a folder or package:module/path"),
        (errors.DeviceUnavailableError("cuda", "no driver"), "or run it on a machine that has one"),
        (errors.LocationOwnedError("/o", "a", "b"), "give each corpus a location of its own"),
        (errors.SourceUnreadableError("/f", "parquet", "why"), "repair or remove the file, then run again"),
        (errors.PublishConflictError("whole", "r"), "what is published already is skipped, not computed"),
        (errors.ModelNotInCacheError("x", "cpu", []), "name one of these, or load it first"),
        (errors.EmbeddingCancelledError(), "embed them again"),
    ],
)
def test_a_message_is_one_sentence_that_ends_with_what_to_do(error: EmbeddingsError, remedy: str) -> None:
    assert str(error).endswith(remedy)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("full_recrod", ["full_record"], " (did you mean 'full_record'?)"),
        ("all-minilm-l6-v2", ["sentence-transformers/all-MiniLM-L6-v2"], " (did you mean 'sentence-tr"),
        ("LOCATION", ["location", "kind"], " (did you mean 'location'?)"),
        ("xyz", ["location"], ""),
        ("x", [], ""),
        ("", ["a"], ""),
    ],
)
def test_the_nearest_known_words_are_offered_whatever_their_case(word: str, known: list[str], expected: str) -> None:
    assert did_you_mean(word, known).startswith(expected)
    assert bool(did_you_mean(word, known)) == bool(expected)
