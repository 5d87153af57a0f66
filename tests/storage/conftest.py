from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import Bench
from tests.s3 import S3Bench, serve


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Give a corpus `bench` whose JSONL source folder is empty yet."""
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Give the endpoint of an S3 server."""
    with serve() as url:
        yield url


@pytest.fixture
def s3_bench(tmp_path: Path, endpoint: str) -> S3Bench:
    """Give a corpus in a bucket of its own."""
    return S3Bench(tmp_path, endpoint)
