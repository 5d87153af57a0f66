"""Locations in an object store that speaks S3.

What belongs here: the S3 implementation of `location.Place`, and the choice between it and a local
path. What does not: anything that asks which of the two a place is, beyond `remote`.

Objects are written whole from local scratch and never streamed: closing a half-written stream
publishes it. They are read by ranges on condition that they are still the object that was opened. One
boto3 client does all of it, with the default credential chain, which refreshes what expires.
"""

import contextlib
import datetime as dt
import functools
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import pyarrow as pa

from embeddings_pipeline.errors import LocationUnavailableError, SourceChangedError
from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage.location import FileEntry, Location, Place, not_text

if TYPE_CHECKING:
    from botocore.client import BaseClient

_BUFFER_BYTES = 4 << 20
_WHOLE_BYTES = 8 << 20
"""A parquet file up to here is read as a whole: column by column it would be a request for each."""
_TRIES = 6
"""Of reading a body; botocore itself repeats only until the answer's head has arrived."""
_ATTEMPTS = 8
"""Of any request, with back-off up to 20 s each: botocore's `standard` mode, 503 SlowDown included."""
_READ_TIMEOUT = 30.0
_MULTIPART_BYTES = 64 << 20
"""From here on an upload goes in pieces. Below it is one request, of which nothing is left where it is broken off."""
_PIECE_BYTES = 16 << 20
_GONE = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}
_LOST_SWAP = {"412", "PreconditionFailed", "409", "ConditionalRequestConflict"}

_Result = TypeVar("_Result")


def locate(text: str, field: str, options: S3Spec | None = None) -> Place:
    """Resolve a location as a YAML gives it: `s3://bucket/prefix`, a path, or `package:module/path`.

    Raises:
        LocationNotFoundError: the package is not installed; `field` names it in the message.
    """
    if not text.startswith("s3://"):
        return Location.parse(text, field)
    bucket, _, key = text.removeprefix("s3://").partition("/")
    return S3Location(bucket, key.strip("/"), options or S3Spec())


@dataclass(frozen=True, slots=True)
class S3Location:
    """An object or a prefix; `etag` and `length` are known where a listing gave them."""

    bucket: str
    key: str
    options: S3Spec
    etag: str | None = None
    length: int | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> "S3Location":
        return replace(self, key=f"{self.key}/{name}" if self.key else name, etag=None, length=None)

    @property
    def name(self) -> str:
        """The last step of the key."""
        return self.key.rsplit("/", 1)[-1]

    @property
    def remote(self) -> bool:
        """True: there are no locks and no folders."""
        return True

    def relative_to(self, root: "S3Location") -> str:
        """Return the key below `root`."""
        return self.key[len(root.key) :].lstrip("/")

    def exists(self) -> bool:
        """Tell whether an object or a prefix is there."""
        return self.size() is not None or self._below(1) != []

    def size(self) -> int | None:
        """Return the bytes of the object, None where there is none."""
        if self.length is not None:
            return self.length
        head = self._head() if self.key else None
        return None if head is None else int(head["ContentLength"])

    def files(self) -> list[FileEntry]:
        """List the object of this name, or those below it; what browsers keep for empty folders is left out."""
        if self.key and (head := self._head()) is not None:
            return [self._entry(self.name, self.key, head["ETag"], int(head["ContentLength"]), head["LastModified"])]
        start = len(self.key) + 1 if self.key else 0
        found = [
            self._entry(item["Key"][start:], item["Key"], item["ETag"], int(item["Size"]), item["LastModified"])
            for item in self._below()
            if not item["Key"].endswith("/")
        ]
        return sorted(found, key=lambda entry: entry.name)

    def open(self) -> BinaryIO:
        """Open the object as it is now: reading fails if it is replaced meanwhile."""
        return cast("BinaryIO", io.BufferedReader(self._raw(), _BUFFER_BYTES))

    def parquet(self) -> pa.NativeFile:
        """Return what `pq.ParquetFile` takes to read this object: a small one as a whole, by one request."""
        data, etag, length = self._beginning()
        if len(data) == length:
            return pa.BufferReader(data)
        return pa.PythonFile(_RangeReader(self, etag, length), mode="r")

    def read_text(self) -> str | None:
        """Return the text of a small object, or None where there is none."""
        return self.read_version()[0]

    def read_version(self) -> tuple[str | None, str | None]:
        """Return the text of a small object and its etag.

        Raises:
            ManifestError: it is no text.
        """

        def read() -> tuple[bytes, str] | None:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.key)
            except self.client.exceptions.ClientError as error:
                if _code(error) in _GONE:
                    return None
                raise
            return answer["Body"].read(), answer["ETag"]

        found = self._repeated(read)
        if found is None:
            return None, None
        try:
            return found[0].decode("utf-8"), found[1]
        except UnicodeDecodeError as error:
            raise not_text(self) from error

    def fetch(self, into: Path) -> Path:
        """Copy the object to a local path."""
        into.parent.mkdir(parents=True, exist_ok=True)
        with self.open() as source, into.open("wb") as target:
            while block := source.read(_BUFFER_BYTES):
                target.write(block)
        return into

    def put(self, finished: Path) -> None:
        """Upload a finished scratch file whole, in parts where it is large; it has the name once all are there."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=_MULTIPART_BYTES, multipart_chunksize=_PIECE_BYTES)
        extra = self.options.upload()
        self._call(
            lambda: self.client.upload_file(str(finished), self.bucket, self.key, ExtraArgs=extra, Config=config)
        )
        finished.unlink()

    def swap(self, finished: Path, expected: str | None) -> bool:
        """Put on condition of the etag; an answer that was lost and asked for again counts as the first one."""
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        data = finished.read_bytes()

        def put() -> bool:
            try:
                self.client.put_object(
                    Bucket=self.bucket, Key=self.key, Body=data, **condition, **self.options.upload()
                )
            except self.client.exceptions.ClientError as error:
                if _code(error) in _LOST_SWAP | _GONE:
                    return False
                raise
            return True

        done = self._call(put) or self.read_text() == data.decode("utf-8")
        finished.unlink()
        return done

    def delete(self) -> bool:
        """Remove the object; False where there was none."""
        if self._head() is None:
            return False
        self._call(lambda: self.client.delete_object(Bucket=self.bucket, Key=self.key))
        return True

    def delete_tree(self) -> bool:
        """Remove the object and all below it; False where there was nothing."""
        keys = [item["Key"] for item in self._below()]
        for start in range(0, len(keys), 1000):
            some = {"Objects": [{"Key": key} for key in keys[start : start + 1000]], "Quiet": True}
            self._call(lambda some=some: self.client.delete_objects(Bucket=self.bucket, Delete=some))
        return bool(keys)

    def delete_uploads(self, before: float) -> int:
        """Remove the pieces of uploads to here or below that a process began and did not live to end."""

        def read() -> list[Any]:
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.key)
            return [upload for page in pages for upload in page.get("Uploads", ())]

        old = [
            upload
            for upload in self._repeated(read)
            if (upload["Key"] == self.key or upload["Key"].startswith(f"{self.key}/" if self.key else ""))
            and upload["Initiated"].timestamp() < before
        ]
        for upload in old:
            self._call(lambda upload=upload: self._abort(upload["Key"], upload["UploadId"]))
        return len(old)

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except self.client.exceptions.ClientError as error:
            if _code(error) not in _GONE:
                raise

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold nothing: who writes here swaps."""
        return contextlib.nullcontext()

    @property
    def client(self) -> Any:
        """The process's client for this store."""
        return _client(self.options.endpoint, self.options.region, self.options.path_style)

    def _entry(self, name: str, key: str, etag: str, size: int, modified: dt.datetime) -> FileEntry:
        place = replace(self, key=key, etag=etag, length=size)
        return FileEntry(name, place, size, f"{size}-{etag}", modified.timestamp())

    def _below(self, most: int | None = None) -> list[Any]:
        prefix = f"{self.key}/" if self.key else ""

        def read() -> list[Any]:
            found: list[Any] = []
            limit = {} if most is None else {"PaginationConfig": {"MaxItems": most}}
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, **limit)
            for page in pages:
                found.extend(page.get("Contents", ()))
            return found

        return self._repeated(read)

    def _head(self) -> Any | None:
        def head() -> Any | None:
            try:
                return self.client.head_object(Bucket=self.bucket, Key=self.key)
            except self.client.exceptions.ClientError as error:
                if _code(error) in _GONE:
                    return None
                raise

        return self._call(head)

    def _raw(self) -> "_RangeReader":
        etag, length = self.etag, self.length
        if etag is None or length is None:
            head = self._head()
            if head is None:
                raise FileNotFoundError(2, "No such object", str(self))
            etag, length = head["ETag"], int(head["ContentLength"])
        return _RangeReader(self, etag, length)

    def _beginning(self) -> tuple[bytes, str, int]:
        """Return the first bytes of the object, its etag and its length; no bytes of a large one whose etag is known.

        Raises:
            FileNotFoundError: there is none.
            SourceChangedError: it is not the one that was listed any more.
        """
        if self.etag is not None and self.length is not None:
            whole = self.length <= _WHOLE_BYTES
            return self.range(self.etag, 0, self.length) if whole and self.length else b"", self.etag, self.length

        def read() -> tuple[bytes, str, int] | None:
            wanted = {"Range": f"bytes=0-{_WHOLE_BYTES - 1}"}
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.key, **wanted)
            except self.client.exceptions.ClientError as error:
                if _code(error) in _GONE:
                    return None
                if _code(error) == "InvalidRange":
                    return b"", "", 0
                raise
            length = int(answer["ContentRange"].rpartition("/")[2]) if "ContentRange" in answer else None
            data = answer["Body"].read()
            return data, answer["ETag"], len(data) if length is None else length

        found = self._repeated(read)
        if found is None:
            raise FileNotFoundError(2, "No such object", str(self))
        return found

    def range(self, etag: str, start: int, stop: int) -> bytes:
        """Return bytes of the object, if it still has that etag.

        Raises:
            SourceChangedError: it was replaced.
        """

        def read() -> bytes:
            try:
                answer = self.client.get_object(
                    Bucket=self.bucket, Key=self.key, Range=f"bytes={start}-{stop - 1}", IfMatch=etag
                )
            except self.client.exceptions.ClientError as error:
                if _code(error) in _LOST_SWAP | _GONE:
                    raise SourceChangedError(str(self)) from error
                raise
            return answer["Body"].read()

        return self._repeated(read)

    def _repeated(self, action: Callable[[], _Result]) -> _Result:
        """Do it again where the answer's body broke off."""
        from botocore.exceptions import BotoCoreError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        for tries in range(1, _TRIES + 1):
            try:
                return self._call(action)
            except LocationUnavailableError as error:
                broken = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
                if tries == _TRIES or not isinstance(error.__cause__, (*broken, OSError)):
                    raise
                time.sleep(min(5.0, 0.1 * 2**tries))
        raise BotoCoreError

    def _call(self, action: Callable[[], _Result]) -> _Result:
        """Turn what boto3 raises into a sentence."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return action()
        except (BotoCoreError, ClientError, Boto3Error, ConnectionError, TimeoutError) as error:
            raise LocationUnavailableError(str(self), _reason(error)) from error


class _RangeReader(io.RawIOBase):
    """A seekable file over an object; each read is one request for just these bytes."""

    def __init__(self, location: S3Location, etag: str, length: int) -> None:
        self._location = location
        self._etag = etag
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the length, as pyarrow asks for it."""
        return self._length

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._length if size is None or size < 0 else min(self._length, self._at + size)
        if stop <= self._at:
            return b""
        data = self._location.range(self._etag, self._at, stop)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@functools.lru_cache(maxsize=16)
def _client(endpoint: str | None, region: str | None, path_style: bool | None) -> "BaseClient":
    """Return the process's client; it may be used by several threads, and asks for credentials anew when they end."""
    import boto3
    from botocore.config import Config

    style = {} if path_style is None else {"s3": {"addressing_style": "path" if path_style else "virtual"}}
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=10,
        read_timeout=_READ_TIMEOUT,
        max_pool_connections=20,
        **style,
    )
    return cast("BaseClient", boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config))


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
