"""Token ids are the library's, counts are those of the whole text, and no text stalls the tokenizer."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.inference.tokens import TextTokenizer
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import Reason
from embeddings_pipeline.settings import ModelSpec
from tests.inference.tiny import texts, tokenizer

LIMIT = 16


@pytest.fixture(scope="module")
def wordpiece() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2")).path)


def byte_level() -> Any:
    """Build a byte-level BPE, for which blanks are tokens and a word has no end but its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    corpus = ["the quick brown fox jumps over the lazy dog", "aaaa aaaaaaa aa", "漢字 漢字", "    a     b"] * 9
    rust.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=320, show_progress=False))
    return rust


def unigram() -> Any:
    """Build a unigram model, which weighs a whole word at once."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = [
        ("<unk>", -9.0),
        ("▁", -3.0),
        *((sign, -4.0) for sign in "abc_漢字"),
        ("aaa", -5.0),
        ("aa", -4.9),
        ("▁a", -4.5),
    ]
    rust = Tokenizer(models.Unigram(pieces, unk_id=0))
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    return rust


def test_the_limit_is_that_of_the_library(wordpiece: Any) -> None:
    """Case 7: texts of limit - 1, limit and limit + 1 tokens."""
    own = TextTokenizer(wordpiece.backend_tokenizer, LIMIT)
    for words in (LIMIT - 3, LIMIT - 2, LIMIT - 1, 3 * LIMIT):
        text = "cat " * words
        tokenized = own.encode([text])
        assert tokenized.ids[0].tolist() == wordpiece(text, truncation=True, max_length=LIMIT)["input_ids"]
        assert tokenized.count[0] == words + 2
        assert tokenized.exact[0]


def test_truncation_may_drop_the_head() -> None:
    """Some models keep the end of a text."""
    fast = tokenizer()
    fast.truncation_side = "left"
    text = texts(40)[0]
    own = TextTokenizer(fast.backend_tokenizer, LIMIT, cut_left=True)
    assert own.encode([text]).ids[0].tolist() == fast(text, truncation=True, max_length=LIMIT)["input_ids"]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "_" * 1_000_000,
        "漢字" * 100_000,
        " " * 10_000_000,
        ("ab+/9Z" * 170_000)[:1_000_000],
        "\n \t" * 900_000 + "end",
    ],
    ids=["a", "underscores", "chinese", "blanks", "base64", "end"],
)
@pytest.mark.parametrize("make", [None, byte_level, unigram], ids=["wordpiece", "bytes", "unigram"])
def test_a_text_far_too_long_is_tokenised_in_part(wordpiece: Any, make: Callable[[], Any] | None, text: str) -> None:
    """Case 11: its first tokens are those of the whole text, in well under a second."""
    rust = wordpiece.backend_tokenizer if make is None else make()
    own = TextTokenizer(rust, LIMIT)
    started = time.process_time()
    tokenized = own.encode([text])
    assert time.process_time() - started < 1.0
    if tokenized.failures:
        assert tokenized.failures[0][0] is Reason.BLANK_TEXT
        return
    rust.no_truncation()
    rust.no_padding()
    # Where the whole would take minutes, four times the prefix decides as well.
    whole = rust.encode(text if make is None or tokenized.exact[0] else text[:40_000]).ids
    if tokenized.exact[0]:
        assert tokenized.count[0] == len(whole)
    else:
        assert LIMIT < tokenized.count[0] <= len(whole)
        head = tokenized.ids[0][: LIMIT - len(own._tail)]
        assert head.tolist() == whole[: len(head)]


def test_texts_that_cannot_be_tokenised_disturb_no_other(wordpiece: Any) -> None:
    """Cases 1 to 3: the tokenizer's own error is about the whole batch and names no row."""
    given: list[Any] = ["good", "ok\ud800bad", None, 3.5, "fine"]
    own = TextTokenizer(wordpiece.backend_tokenizer, LIMIT)
    tokenized = own.encode(given)
    assert {row: reason for row, (reason, _) in tokenized.failures.items()} == {
        1: Reason.LONE_SURROGATE,
        2: Reason.NULL_TEXT,
        3: Reason.NOT_TEXT,
    }
    assert "character 2" in tokenized.failures[1][1]
    assert tokenized.ids[4].tolist() == own.encode(["fine"]).ids[0].tolist()


def test_a_text_without_any_token_is_a_failure() -> None:
    """Tokenizers without special tokens make nothing of a blank text, and a model would divide by it."""
    assert TextTokenizer(unigram(), LIMIT).encode([""]).failures[0][0] is Reason.BLANK_TEXT


def test_the_copy_is_private_and_used_by_many_threads(wordpiece: Any) -> None:
    """Case 37: the library's tokenizer is reconfigured on each of its calls; ours never sees it."""
    own = TextTokenizer(wordpiece.backend_tokenizer, LIMIT)
    sentences = [f"sentence number {number} " * (number % 9 + 1) for number in range(60)]
    expected = [row.tolist() for row in own.encode(sentences).ids]
    failures: list[BaseException] = []

    def ours() -> None:
        try:
            for _ in range(5):
                assert [row.tolist() for row in own.encode(sentences).ids] == expected
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            failures.append(error)

    threads = [threading.Thread(target=ours) for _ in range(16)]
    for thread in threads:
        thread.start()
    for length in range(8, 60):
        wordpiece(sentences, truncation=True, max_length=length, padding=True)
    for thread in threads:
        thread.join()
    assert not failures


def test_a_prompt_stands_before_every_text() -> None:
    fast = tokenizer()
    own = TextTokenizer(fast.backend_tokenizer, LIMIT, prompt="w1 w2 ")
    assert own.encode(["w3"]).ids[0].tolist() == fast("w1 w2 w3")["input_ids"]


def test_another_way_of_tokenising_is_noticed(wordpiece: Any) -> None:
    """Chat templates and added instructions make the library's ids others than the tokenizer's."""
    own = TextTokenizer(wordpiece.backend_tokenizer, LIMIT)
    assert own.matches(["a cat"], lambda text: wordpiece(text)["input_ids"])
    assert not own.matches(["a cat"], lambda text: wordpiece(f"passage: {text}")["input_ids"])


def test_ids_without_a_name_have_an_empty_one(tmp_path: Path) -> None:
    own = TextTokenizer(tokenizer().backend_tokenizer, LIMIT)
    strings = own.strings(own.size + 3)
    assert strings[:2] == ["<s>", "<pad>"]
    assert strings[-3:] == ["", "", ""]
    assert own.around(np.arange(5, 9)).tolist() == [0, 5, 6, 7, 8, 2]
