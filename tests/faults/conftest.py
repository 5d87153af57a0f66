from pathlib import Path

import pytest

from tests.fakes import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Give a corpus `bench` whose JSONL source folder is empty yet."""
    return Bench(tmp_path)
