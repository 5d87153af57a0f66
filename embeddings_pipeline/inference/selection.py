"""Which path a loaded model takes, decided by trying it.

What belongs here: the conditions of the packed path and the self-test that compares it with the
library's own padded result. What does not: the paths themselves (`packed`, `forward`, `sparse`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embeddings_pipeline.inference.forward import (
    Forward,
    LibraryForward,
    PaddedForward,
    applied_modules,
    first_module,
)
from embeddings_pipeline.inference.linear import switch_layers
from embeddings_pipeline.inference.packed import ATTENTION, PackedForward, register
from embeddings_pipeline.inference.sparse import (
    ChunkedHead,
    LibrarySparseForward,
    PackedTokens,
    PaddedTokens,
    Pruning,
    SpladeForward,
    take_out_head,
)
from embeddings_pipeline.inference.tokens import Ids, TextTokenizer
from embeddings_pipeline.records import FloatMatrix

_TAKES_PACKED = {"Pooling", "SpladePooling", "Dense", "Normalize", "LayerNorm", "Dropout"}
"""The library's modules that handle flattened features; others (WordWeights, LSTM, CNN) are wrong in silence."""

_TOLERANCES = {"torch.float32": 5e-5, "torch.float16": 2e-2, "torch.bfloat16": 1e-1}
"""Largest difference to the library's vectors, relative to their largest value, by dtype; float32 gives about 6e-6."""

_Tests = list[list[Ids]]

_WORDS = ("a", "The lamp stood on the third shelf, 1998.", "naïve café, déjà vu; 東京", "x" * 300)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model's vectors are computed; `reason` says why not packed, and is empty where they are."""

    forward: Forward
    reason: str
    dimensions: int


def choose(library: Any, task: str | None, tokenizer: TextTokenizer, prompt: str, pruning: Pruning | None) -> Choice:
    """Return the fastest way to compute a model's vectors that gives what the library gives.

    Args:
        library: the loaded model; its attention and its head are changed where that is the way.
        task: the route to take, where the model has routes.
        tokenizer: the private copy of its tokenizer.
        prompt: what is put before every text.
        pruning: for a sparse model, what is left out of its vectors; None for a dense one.
    """
    most = None if pruning is None else pruning.most
    if reason := _why_not_ids(library, task, tokenizer, prompt):
        whole = LibraryForward(library, task=task, prompt=prompt, max_active_dims=most)
        width = whole.embeddings(["a"]).shape[1]
        if pruning is None:
            return Choice(whole, reason, width)
        return Choice(LibrarySparseForward(lambda texts, _: whole.embeddings(texts), pruning), reason, width)
    padded = PaddedForward(library, task=task, max_active_dims=most)
    tests = _test_rows(library, task, tokenizer)

    def alone() -> list[FloatMatrix]:
        # One by one: the library's logits of a whole batch would be the largest thing this process ever holds.
        return [padded.embeddings([row]).float().cpu().numpy() for rows in tests for row in rows]

    reference = np.concatenate(alone())
    if (undo := switch_layers(library)) is not None and _compare(alone, reference):
        undo()
    if pruning is None:
        forward, reason = _choose_dense(library, task, padded, tests, reference)
    else:
        forward, reason = _choose_sparse(library, task, padded, tests, reference, pruning)
    return Choice(forward, reason, reference.shape[1])


def _choose_dense(
    library: Any, task: str | None, padded: PaddedForward, tests: _Tests, reference: FloatMatrix
) -> tuple[Forward, str]:
    if reason := _why_not_packed(library, task):
        return padded, reason
    forward = PackedForward(library, task)
    reason = _try_packed(library, task, lambda: [np.asarray(forward([], rows).values) for rows in tests], reference)
    return (padded if reason else forward), reason


def _choose_sparse(
    library: Any, task: str | None, padded: PaddedForward, tests: _Tests, reference: FloatMatrix, pruning: Pruning
) -> tuple[Forward, str]:
    whole = LibrarySparseForward(lambda _, ids: padded.embeddings(ids), pruning)
    transformer, *rest = applied_modules(library, task)
    if len(rest) != 1 or not _is(rest[0], "SpladePooling"):
        return (
            whole,
            f"the module {type(rest[0]).__name__ if rest else 'list'} is not SPLADE pooling of a vocabulary head",
        )
    unpackable = _why_not_packed(library, task)
    if (taken := take_out_head(transformer.model)) is None:
        return whole, f"the vocabulary head of {type(transformer.model).__name__} is no linear layer"
    layer, put_back = taken
    head = ChunkedHead(layer, rest[0])

    def pooled(forward: SpladeForward) -> list[FloatMatrix]:
        return [forward.pooled(rows).float().cpu().numpy() for rows in tests]

    if not unpackable:
        packed = SpladeForward(PackedTokens(library, task), head, pruning, padded=False)
        if not (unpackable := _try_packed(library, task, lambda: pooled(packed), reference)):
            return packed, ""
    chunked = SpladeForward(PaddedTokens(library, task), head, pruning, padded=True)
    if headless := _compare(lambda: pooled(chunked), reference, _tolerance(library)):
        put_back()
        return whole, f"{unpackable}; its head is computed whole: {headless}"
    return chunked, unpackable


def _why_not_ids(library: Any, task: str | None, tokenizer: TextTokenizer, prompt: str) -> str:
    """Return why the tokens of a model have to be left to the library, or an empty string."""
    module = first_module(library, task)
    if not _is(module, "Transformer", "MLMTransformer"):
        return f"the model's first module is {type(module).__name__}, not a transformer"

    def reference(text: str) -> Sequence[int]:
        kwargs = {} if task is None else {"task": task}
        ids: Sequence[int] = library.preprocess([text], prompt=prompt or None, **kwargs)["input_ids"][0].tolist()
        return ids

    # The long one is cut by both; its words differ, so that a cut at another place is seen.
    long = (
        " ".join(f"word{number}" for number in range(tokenizer.max_length)) if tokenizer.max_length <= 65_536 else "a b"
    )
    if not tokenizer.matches([*_WORDS, long], reference):
        return "the library makes other tokens of a text than the model's tokenizer alone"
    return ""


def _why_not_packed(library: Any, task: str | None) -> str:
    """Return why a model cannot take packed rows, as far as one can tell without trying."""
    transformer, *rest = applied_modules(library, task)
    if strange := sorted({type(module).__name__ for module in rest if not _is(module, *_TAKES_PACKED)}):
        return f"the module {strange[0]} after the transformer does not take packed texts"
    if any(getattr(module, "include_prompt", True) is False for module in rest):
        return "its pooling leaves the prompt out"
    if transformer.module_output_name != "token_embeddings":
        return f"its transformer yields {transformer.module_output_name} instead of token embeddings"
    if not getattr(transformer.model, "is_backend_compatible", lambda: False)():
        return f"{type(transformer.model).__name__} does not use the attention interface of transformers"
    if transformer.model_forward_params is not None:
        return f"{type(transformer.model).__name__} passes no further arguments on to its attention"
    return ""


def _try_packed(
    library: Any, task: str | None, attempt: Callable[[], list[FloatMatrix]], reference: FloatMatrix
) -> str:
    """Switch a model to packed attention and compare; where that fails, switch it back and return why."""
    model = first_module(library, task).model
    before = model.config._attn_implementation
    register()
    model.set_attn_implementation(ATTENTION)
    if reason := _compare(attempt, reference, _tolerance(library)):
        model.set_attn_implementation(before)
        return f"the packed self-test {reason}"
    return ""


def _tolerance(library: Any) -> float:
    return _TOLERANCES[str(next(library.parameters()).dtype)]


def _compare(
    attempt: Callable[[], list[FloatMatrix]], reference: FloatMatrix, tolerance: float = _TOLERANCES["torch.float32"]
) -> str:
    """Return what is wrong with computed vectors, or an empty string.

    *Shape:* the arrays of the attempt, joined, and reference: float32[texts, dimensions].
    """
    try:
        result = np.concatenate(attempt())
    except Exception as error:  # noqa: BLE001 (model code may raise anything; another path is used and the reason shown)
        return f"raised {type(error).__name__}: {error}"[:300]
    difference = float(np.abs(result - reference).max())
    if difference <= tolerance * float(np.abs(reference).max()):
        return ""
    return f"differed from the library by {difference:.1e}"


def _test_rows(library: Any, task: str | None, tokenizer: TextTokenizer) -> _Tests:
    """Return batches of tokens for the self-test: short, mixed, and longer than two local windows."""
    transformer = first_module(library, task)
    config = transformer.model.config.get_text_config()
    windows = [getattr(config, name, None) for name in ("local_attention", "sliding_window")]
    window = max((value for value in windows if isinstance(value, int)), default=0)
    longest = min(tokenizer.max_length, max(96, 2 * window + 9))
    random = np.random.default_rng(0)
    special = set(transformer.tokenizer.all_special_ids)
    size = min(tokenizer.size, transformer.model.get_input_embeddings().num_embeddings)
    usable = np.asarray([number for number in range(size) if number not in special], np.int64)

    def rows(*lengths: int) -> list[Ids]:
        return [tokenizer.around(random.choice(usable, min(length, longest))) for length in lengths]

    # Together more tokens than one text may have, up to a point: nothing may take the row for one long text.
    filling = [47] * (min(tokenizer.max_length, 512) // 47)
    return [rows(longest, *filling, 23, 9, 9, 4, 1), rows(1), rows(7, 7, 7)]


def _is(module: Any, *names: str) -> bool:
    """Tell whether a module is one of the library's own of these names, and no subclass of them."""
    kind = type(module)
    return kind.__name__ in names and kind.__module__.startswith("sentence_transformers.")
