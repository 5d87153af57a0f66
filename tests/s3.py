"""An S3 server on this machine (moto's) and a corpus in it, for the tests of remote locations."""

import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
from moto.server import ThreadedMotoServer

from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage.s3 import S3Location
from tests.fakes import Bench, to_jsonl

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def serve() -> Iterator[str]:
    """Run the server and give its endpoint; the standard variables hold credentials meanwhile."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


class S3Bench(Bench):
    """A `Bench` whose source and output lie in a bucket of its own."""

    def __init__(self, root: Path, endpoint: str, bucket: str | None = None) -> None:
        super().__init__(root)
        self.endpoint = endpoint
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.bucket = bucket or f"bucket-{secrets.token_hex(4)}"
        if bucket is None:
            self.client.create_bucket(Bucket=self.bucket)
        self.remote("source", "out")

    def remote(self, source: str, out: str, kind: str = "jsonl") -> None:
        options = {"endpoint": self.endpoint}
        self.changes["source"] = {"kind": kind, "location": f"s3://{self.bucket}/{source}", "id": "id", "s3": options}
        self.changes["output"] = {"location": f"s3://{self.bucket}/{out}", "s3": options}

    def location(self, key: str) -> S3Location:
        return S3Location(self.bucket, key, S3Spec(endpoint=self.endpoint))

    def put(self, name: str, records: Iterable[Mapping[str, Any]] | Any) -> Path:
        file = super().put(name, records if hasattr(records, "schema") else list(records))
        self.client.upload_file(str(file), self.bucket, f"source/{name}")
        return file

    def put_lines(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"source/{name}", Body=to_jsonl(records).encode())

    def keys_below(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for key in self.keys_below("out/dataset/"):
            rows += pq.ParquetFile(self.location(key).parquet()).read().to_pylist()
        return sorted(rows, key=lambda row: (row["strategy"], row["record_id"], row["chunk"]))

    def dataset_files(self) -> dict[str, bytes]:
        prefix = "out/dataset/"
        return {
            key.removeprefix(prefix): self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            for key in self.keys_below(prefix)
        }

    def published_json(self) -> Any:
        return json.loads(self.client.get_object(Bucket=self.bucket, Key="out/manifests/whole.json")["Body"].read())

    def leftovers(self) -> list[str]:
        scratch = self.output.scratch.path
        return [*self.keys_below("out/staging/"), *([str(scratch)] if scratch.exists() else [])]
