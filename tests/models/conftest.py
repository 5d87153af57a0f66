"""What the tests of models share: a hub on this machine, a store of one's own, and tiny models, made once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from embeddings_pipeline.settings import Environment, ModelSpec
from tests.inference.tiny import dense_folder, sparse_folder
from tests.models.checkpoints import alibaba_folder
from tests.models.hub import COMMIT, StubHub, serve


@pytest.fixture
def hub() -> Iterator[StubHub]:
    """Give a hub that serves nothing yet."""
    with serve() as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path, hub: StubHub) -> Environment:
    """Give an environment with a store of its own and the hub on this machine, and no token."""
    return replace(
        Environment.read(), model_store=str(tmp_path / "store"), hub=hub.endpoint, hub_token=None, model_download=False
    )


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dense model."""
    return dense_folder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a sparse model."""
    return sparse_folder(tmp_path_factory.mktemp("splade"))


@pytest.fixture(scope="session")
def gte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a sparse model in Alibaba's layout; the folder `Gte-sparse` beside it is the one that it was made from."""
    return alibaba_folder(tmp_path_factory.mktemp("gte"))


def on_hub(name: str = "org/model", **options: object) -> ModelSpec:
    """Return the spec of a model on the hub, at its one commit."""
    return ModelSpec.model_validate({"name": name, "source": f"hub:{name}", "revision": COMMIT, **options})
