"""Models in an object store that speaks S3: listing, fetching and uploading their files.

What belongs here: requests, with the standard AWS variables and credential chain. What does not: the
datasets' S3 (`storage.s3`), which lies above this package, and which files are needed (`folder`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from embeddings_pipeline.errors import LocationUnavailableError

_Result = TypeVar("_Result")


class Objects:
    """The objects at or below `s3://bucket/prefix`."""

    def __init__(self, location: str) -> None:
        """Make a client; nothing is asked yet."""
        import boto3
        from botocore.config import Config

        self.location = location.rstrip("/")
        self._bucket, _, self._prefix = self.location.removeprefix("s3://").partition("/")
        config = Config(retries={"mode": "standard", "total_max_attempts": 8}, connect_timeout=10, read_timeout=30)
        self._client = boto3.client("s3", config=config)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the objects below the prefix, by their path relative to it."""

        def read() -> dict[str, int]:
            found: dict[str, int] = {}
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}/"
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    if not item["Key"].endswith("/"):
                        found[item["Key"][len(self._prefix) + 1 :]] = int(item["Size"])
            return found

        return self._call(read)

    def fetch(self, path: str, target: Path) -> None:
        """Bring an object to `target`; with an empty path the one at the prefix itself."""
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        self._call(lambda: self._client.download_file(self._bucket, self._key(path), str(part)))
        part.replace(target)

    def upload(self, file: Path, path: str) -> None:
        """Upload a file whole; with an empty path to the prefix itself."""
        self._call(lambda: self._client.upload_file(str(file), self._bucket, self._key(path)))

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if path else self._prefix

    def _call(self, action: Callable[[], _Result]) -> _Result:
        """Turn what boto3 raises into a sentence."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return action()
        except (BotoCoreError, ClientError, Boto3Error) as error:
            raise LocationUnavailableError(self.location, _reason(error)) from error


def _reason(error: Any) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
