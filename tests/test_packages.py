"""What `package:module/path` stands for."""

from pathlib import Path

import pytest

import embeddings_pipeline
from embeddings_pipeline.errors import LocationNotFoundError
from embeddings_pipeline.packages import path_in_package


def test_it_is_a_path_inside_the_installed_package() -> None:
    found = path_in_package("package:embeddings_pipeline/samples/works.jsonl", "source.location")
    assert found == Path(embeddings_pipeline.__file__).parent / "samples" / "works.jsonl"


@pytest.mark.parametrize("module", ["not_installed", "not.installed", ""])
def test_a_module_that_is_not_installed_is_named_with_what_brings_it(module: str) -> None:
    with pytest.raises(
        LocationNotFoundError, match=f"source.location 'package:{module}/x' .* brings the module '{module}'"
    ):
        path_in_package(f"package:{module}/x", "source.location")
    with pytest.raises(LocationNotFoundError, match="install the package that brings it: pip install the-package"):
        path_in_package(f"package:{module}/x", "model.source", "the-package")
