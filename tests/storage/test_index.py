"""The look-up tables, against Python's own sets and dicts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings_pipeline.storage.index import RowIndex, SeenKeys, row_hashes

KEYS = st.text(alphabet="abc", max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(KEYS, max_size=30), max_size=12))
def test_seen_keys_answers_as_a_set_does(batches: list[list[str]]) -> None:
    seen, right = SeenKeys(), set()
    for batch in batches:
        expected = []
        for key in batch:
            expected.append(key in right)
            right.add(key)
        assert seen.add(batch).tolist() == expected if batch else True


def test_a_hundred_thousand_keys_are_told_apart() -> None:
    seen = SeenKeys()
    keys = [f"https://example.org/{number}" for number in range(100_000)]
    for first in range(0, len(keys), 5_000):
        assert not seen.add(keys[first : first + 5_000]).any()
    assert seen.add(keys[::100]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(KEYS, min_size=1, max_size=10, unique=True), max_size=5), st.lists(KEYS, max_size=10))
def test_row_index_finds_a_row_that_has_the_key(files: list[list[str]], asked: list[str]) -> None:
    def hashes(keys: list[str]) -> np.ndarray:
        return row_hashes(keys, [0] * len(keys), ["h"] * len(keys))

    index = RowIndex()
    places: dict[str, set[tuple[int, int]]] = {}
    for number, keys in enumerate(files):
        index.add(hashes(keys), number, 0)
        for row, key in enumerate(keys):
            places.setdefault(key, set()).add((number, row))
    found_files, found_rows = index.find(hashes(asked))
    for key, file, row in zip(asked, found_files.tolist(), found_rows.tolist(), strict=True):
        assert (file, row) in places.get(key, {(-1, -1)})


def test_key_chunk_and_text_are_all_in_a_rows_hash() -> None:
    hashes = row_hashes(["a", "a", "b", "a"], [0, 1, 0, 0], ["h", "h", "h", "i"])
    assert len(set(hashes.tolist())) == 4
