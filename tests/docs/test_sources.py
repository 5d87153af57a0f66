"""What docs/sources.md declares can be declared, and its table has every reason."""

import re

import pytest
import yaml

from embeddings_pipeline.records import Reason
from embeddings_pipeline.settings import SourceSpec
from tests.docs.pages import ROOT, blocks

PAGE = "docs/sources.md"


@pytest.mark.parametrize("block", blocks(PAGE, "yaml"))
def test_every_source_on_the_page_is_one(block: str) -> None:
    assert SourceSpec.model_validate(yaml.safe_load(block)["source"]).location


def test_every_reason_stands_in_the_table() -> None:
    table = [line for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {name for line in table for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])} == set(Reason)


def test_every_option_of_a_source_is_explained() -> None:
    """But for those of S3 and TIMDEX, which have pages of their own."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    elsewhere = {"s3", "compression", "action", "envelope"}
    assert [name for name in SourceSpec.model_fields if name not in text and name not in elsewhere] == []
