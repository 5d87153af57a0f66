"""The options of a spec that change vectors: what comes out is what one would compute by hand."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.errors import ConfigurationError, ModelLoadError
from embeddings_pipeline.inference.encoder import ModelEncoder, load_encoder
from embeddings_pipeline.inference.options import Finish, check_dtype
from embeddings_pipeline.inference.selection import choose
from embeddings_pipeline.inference.sparse import Pruning, sparsify
from embeddings_pipeline.inference.tokens import TextTokenizer
from embeddings_pipeline.records import Reason
from embeddings_pipeline.settings import ModelSpec
from tests.inference.tiny import POSITIONS, dense_folder, resolved, sparse_folder, texts

TEXTS = texts(3, 9, 1, 30)


@contextmanager
def encoder(folder: Path, **options: Any) -> Iterator[ModelEncoder]:
    loaded = load_encoder(resolved(folder, **options), "cpu")
    try:
        yield loaded
    finally:
        loaded.close()


def vectors(folder: Path, some: Sequence[str] = TEXTS, **options: Any) -> np.ndarray:
    with encoder(folder, **options) as loaded:
        dense = loaded.embed(some).dense
        assert dense is not None
        assert dense.shape == (len(some), loaded.dimensions)
        return dense


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model without a Normalize module."""
    return dense_folder(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the same model with one."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    return dense_folder(tmp_path_factory.mktemp("normalized"), last=[Normalize()])


@pytest.fixture(scope="module")
def prompted(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model that brings prompts of its own, none of them a default."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(plain), device="cpu", prompts={"query": "w1 w2 ", "passage": "w3 "})
    folder = tmp_path_factory.mktemp("prompted") / "model"
    model.save(str(folder))
    return folder


def scaled(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_a_prompt_is_put_before_every_text(plain: Path) -> None:
    expected = vectors(plain, [f"w7 w8 {text}" for text in TEXTS])
    np.testing.assert_allclose(vectors(plain, prompt="w7 w8 "), expected, atol=1e-6)


def test_a_named_prompt_is_the_models_own(prompted: Path) -> None:
    expected = vectors(prompted, [f"w1 w2 {text}" for text in TEXTS], prompt="")
    np.testing.assert_allclose(vectors(prompted, prompt_name="query"), expected, atol=1e-6)
    assert np.abs(vectors(prompted, prompt_name="passage") - expected).max() > 1e-3


def test_a_name_of_no_prompt_is_refused_with_those_that_there_are(prompted: Path, plain: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match="prompt_name is 'title', but .*are: document, passage, query; name one|"
        "prompt_name is 'title', but .*are: passage, query; name one",
    ):
        vectors(prompted, prompt_name="title")


def test_a_prompt_counts_into_the_length_of_a_text(plain: Path) -> None:
    with encoder(plain, prompt="w7 w8 ") as loaded:
        assert loaded.embed(["w1"]).token_count.tolist() == [5]


def test_truncated_vectors_are_the_beginnings_scaled_to_length_one(plain: Path, normalized: Path) -> None:
    whole = vectors(plain)
    np.testing.assert_allclose(vectors(plain, truncate_dim=5), scaled(whole[:, :5]), atol=1e-6)
    np.testing.assert_allclose(vectors(normalized, truncate_dim=5), scaled(whole[:, :5]), atol=1e-6)
    np.testing.assert_allclose(vectors(plain, truncate_dim=5, normalize=False), whole[:, :5], atol=1e-6)


def test_normalize_scales_or_leaves_out_the_models_own_scaling(plain: Path, normalized: Path) -> None:
    whole = vectors(plain)
    assert not np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-2)
    np.testing.assert_allclose(vectors(plain, normalize=True), scaled(whole), atol=1e-6)
    np.testing.assert_allclose(vectors(normalized), scaled(whole), atol=1e-6)
    np.testing.assert_allclose(vectors(normalized, normalize=False), whole, atol=1e-6)
    with encoder(normalized, normalize=False) as loaded:
        assert loaded.path == "packed"


def test_half_precision_is_what_half_precision_holds(plain: Path) -> None:
    whole = vectors(plain)
    rounded = vectors(plain, precision="float16")
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, rounded.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(rounded, whole, rtol=1e-3, atol=1e-4)


def test_a_number_too_large_for_half_precision_is_infinite_and_so_a_reject() -> None:
    finish = Finish(2, normalize=False, half=True)
    assert np.isinf(finish(np.array([[1e6, 1.0]], np.float32))[0, 0])
    assert Reason.NON_FINITE.value == "non_finite"


def test_a_vector_of_zeros_stays_one() -> None:
    assert not Finish(2, normalize=True, half=False)(np.zeros((1, 3), np.float32)).any()


def test_more_dimensions_than_the_model_has_are_refused(plain: Path) -> None:
    with pytest.raises(ConfigurationError, match="model.truncate_dim is 17, but .* has 16 dimensions; use 16 or less"):
        vectors(plain, truncate_dim=17)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_computing_is_refused_on_a_cpu(plain: Path, dtype: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"model.dtype of 'Bert-dense' is {dtype}, which a CPU computes 5 to 100"
    ):
        vectors(plain, dtype=dtype)
    check_dtype(ModelSpec.model_validate({"name": "x", "dtype": dtype}), "cuda:0")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_packed_path_is_compared_within_what_half_precision_allows(tmp_path: Path, dtype: str) -> None:
    """On a CPU it is only slow, so that the choice of the path can be tried here."""
    import torch
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(dense_folder(tmp_path, "Gte")), device="cpu").to(getattr(torch, dtype)).eval()
    tokenizer = TextTokenizer(library[0].tokenizer.backend_tokenizer, POSITIONS)
    choice = choose(library, None, tokenizer, "", None)
    assert choice.reason == ""
    assert np.isfinite(choice.forward([], [np.array([0, 9, 2])]).values).all()


def test_sparse_weights_are_left_out_in_the_documented_order() -> None:
    """Special tokens, then the share of what is then the largest, then the number."""
    import torch

    scores = torch.tensor([[9.0, 4.0, 3.0, 2.0, 0.3, 0.0], [0.0, 1.0, 0.5, 0.0, 0.0, 0.0]])

    def kept(pruning: Pruning) -> list[list[int]]:
        values = sparsify(scores.clone(), pruning).values
        return [values.indices[a:b].tolist() for a, b in zip(values.indptr[:-1], values.indptr[1:], strict=True)]

    assert kept(Pruning()) == [[0, 1, 2, 3, 4], [1, 2]]
    assert kept(Pruning(ratio=0.4)) == [[0, 1], [1, 2]]
    # Without token 0 the largest weight is 4.0, so that 2.0 is half of it.
    assert kept(Pruning(dropped=(0,), ratio=0.5)) == [[1, 2, 3], [1, 2]]
    assert kept(Pruning(most=2, dropped=(0,), ratio=0.5)) == [[1, 2], [1, 2]]
    assert kept(Pruning(most=1, ratio=0.5)) == [[0], [1]]


def test_pruning_by_ratio_reaches_the_vectors_of_a_model(tmp_path: Path) -> None:
    folder = sparse_folder(tmp_path)
    with encoder(folder) as loaded:
        whole = loaded.embed(TEXTS).sparse
    with encoder(folder, prune_ratio=0.5) as loaded:
        pruned = loaded.embed(TEXTS).sparse
    assert whole is not None
    assert pruned is not None
    for row in range(len(TEXTS)):
        before = whole.values[whole.indptr[row] : whole.indptr[row + 1]]
        after = pruned.values[pruned.indptr[row] : pruned.indptr[row + 1]]
        np.testing.assert_allclose(after, before[before >= before.max() * 0.5], rtol=1e-5)
    assert len(pruned.values) < len(whole.values)


def test_a_model_that_is_too_new_says_which_version_it_was_saved_with(plain: Path, tmp_path: Path) -> None:
    import transformers

    folder = Path(shutil.copytree(plain, tmp_path / "new"))
    (folder / "config.json").write_text(
        '{"model_type": "of_the_future", "transformers_version": "9.1.0", "architectures": ["FutureModel"]}',
        encoding="utf-8",
    )
    with pytest.raises(
        ModelLoadError,
        match=rf"its architecture 'of_the_future' is not in transformers {transformers.__version__}, and it was saved "
        "with 9.1.0; install transformers 9.1.0 or newer",
    ):
        vectors(folder)
