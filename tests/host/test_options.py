"""A model's options through a model host, and the fingerprint that everybody sees."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from embeddings_pipeline.cli.main import embeddings
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec
from tests.host.conftest import LIMITS


@pytest.mark.slow
def test_a_host_applies_the_options_of_the_spec_and_lists_its_fingerprint(home, tiny_dense_model, monkeypatch):
    spec = ModelSpec(name="my/tiny", source=str(tiny_dense_model), prompt="work: ", truncate_dim=6, precision="float16")
    model = resolve(spec)
    texts = ["ghosts in an old house", "a lamp"]
    here = load_encoder(model, "cpu")
    expected = here.embed(texts).dense
    here.close()
    cache = RemoteCache("cpu", Hosts(home, Environment.read(), LIMITS))
    try:
        with cache.lease(model) as encoder:
            np.testing.assert_allclose(encoder.embed(texts).dense, expected, atol=1e-3)
            assert encoder.dimensions == 6
    finally:
        cache.close()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    (row,) = json.loads(CliRunner().invoke(embeddings, ["models", "list", "--json"]).stdout)["models"]
    assert (row["fingerprint"], row["dimensions"], row["dtype"]) == (model.fingerprint, 6, "float32")
    assert model.fingerprint in CliRunner().invoke(embeddings, ["models", "list"]).stdout
