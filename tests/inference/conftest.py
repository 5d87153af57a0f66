"""What the tests of the inference engine share: the libraries, imported once and kept from each other's way."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Import the libraries in one thread only, and let tiny models compute without a pool of threads.

    Two threads that import transformers for the first time at once can see half of it.
    """
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    assert SentenceTransformer
    assert transformers.PreTrainedTokenizerFast
