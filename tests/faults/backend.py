"""Disk and S3 as the fault runs see them: the state to start from, and what is wrong with what is left.

What belongs here: resetting an output, comparing it with an uninterrupted run's, and finding what was left behind.
What does not: faults (`points`, `proxy`, `scenarios`).
"""

import contextlib
import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import boto3
from click.testing import CliRunner

from embeddings_pipeline.cli.datasets import verify
from embeddings_pipeline.errors import VerificationError
from embeddings_pipeline.storage.collect import collect
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.manifests import DeliveryManifest, RecordsManifest, load
from tests.fakes import FakeEncoder
from tests.faults.plan import Row, WideEncoder, prepare, rows_of, run
from tests.faults.target import Order, bench_of, settle

LOCK = "manifests/whole.lock"
"""An empty file that stays, whatever happens: the kernel holds the lock, not the file."""


class Backend:
    """A corpus on disk or in a bucket, one scenario after the other."""

    def __init__(self, name: str, root: Path, endpoint: str = "") -> None:
        self.name, self.endpoint = name, endpoint
        self.root = root / name
        self.temporary = root / f"{name}-tmp"
        self.temporary.mkdir(parents=True)
        bucket = f"faults-{secrets.token_hex(4)}" if endpoint else ""
        self.client = boto3.client("s3", endpoint_url=endpoint) if endpoint else None
        if self.client:
            self.client.create_bucket(Bucket=bucket)
        self.order = Order(str(self.root), str(self.temporary), 1, endpoint, bucket)
        settle(self.order)
        self.bench = bench_of(self.order)
        self.expected = {version: self._uninterrupted(version) for version in (1, 2)}
        self.expected_wide = self._uninterrupted(2, wide=True) if endpoint else []
        self.clear()
        self.again(1)
        self._published = {entry.name: _bytes(entry.location) for entry in self.bench.output.root.files()}

    def _uninterrupted(self, version: int, *, wide: bool = False) -> list[Row]:
        self.clear()
        self.again(version, wide=wide)
        return rows_of(self.rows())

    def clear(self) -> None:
        """Remove the output and all that lies in TMPDIR."""
        if self.client:
            self.bench.location("out").delete_tree()
            self.bench.location("out").delete_uploads(float("inf"))
        for folder in (self.bench.out, self.temporary):
            for path in folder.iterdir() if folder.exists() else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def reset(self) -> None:
        """Have the first version published, and nothing else."""
        self.clear()
        for name, data in self._published.items():
            if self.client:
                self.client.put_object(Bucket=self.order.bucket, Key=f"out/{name}", Body=data)
            else:
                path = self.bench.out / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def attempt(self, version: int, **changes: object) -> Order:
        """Write that version's source, past any proxy, and return the order to run it."""
        prepare(self.bench, version, wide=bool(changes.get("wide")))
        return replace(self.order, version=version, **changes)

    def rows(self) -> list[dict]:
        """Return the rows of all files in the dataset, whether a manifest names them or not."""
        import polars as pl

        files = self.bench.output.dataset.files()
        frames = [pl.read_parquet(_bytes(entry.location)) for entry in files]
        return [row for frame in frames for row in frame.to_dicts()]

    def again(self, version: int, *, wide: bool = False) -> None:
        """Run to the end in this process, as the next attempt."""
        self.bench.encoder = WideEncoder() if wide else FakeEncoder()
        run(self.bench, version, "again", wide=wide)

    def settle(self, version: int) -> None:
        """Run once more where runs may have staged one part at once: an object store has no lock for them.

        The file of one may then lie under the manifest of the other. The next run refuses it, removes it, and says
        to run again.
        """
        with contextlib.suppress(VerificationError):
            self.again(version)

    def problem(self, version: int, *, wide: bool = False) -> str:
        """Start again and say what is wrong with what came out.

        What S3 keeps of uploads in pieces goes by age: with `wide`, after `embeddings gc` with an age of 0.
        """
        self.again(version, wide=wide)
        if wide:
            collect(self.bench.output, -60)
            self.again(version, wide=wide)
        found, expected = rows_of(self.rows()), self.expected_wide if wide else self.expected[version]
        if found != expected:
            return f"THE ROWS DIFFER ({len(found)}, {len(expected)} expected)"
        arguments = [str(self.bench.output.root), "--json", *(["--endpoint", self.endpoint] if self.endpoint else [])]
        result = CliRunner().invoke(verify, arguments)
        if result.exit_code:
            return f"VERIFY EXITS {result.exit_code}: {result.output.strip()[-300:]}"
        if not json.loads(result.output)["passed"]:
            return "VERIFY DID NOT PASS AND EXITS 0"
        left = self.left_behind()
        return f"LEFT BEHIND: {', '.join(left)}" if left else ""

    def left_behind(self) -> list[str]:
        """Return all that is there and that no manifest names: files, folders, uploads, temporary files."""
        output = self.bench.output
        manifest, records = load(output.manifest, DeliveryManifest), load(output.records_manifest, RecordsManifest)
        named = {"corpus.json", "manifests/whole.json", "records/whole/manifest.json", f"records/whole/{records.keys}"}
        named |= {file.path for entry in manifest.sets for file in entry.files}
        named |= {f"records/whole/{part.file}" for part in records.parts if part.file}
        named |= {f"rejects/whole/{part.strategy}/extract-{part.id}.parquet" for part in records.parts if part.rejected}
        left = [entry.name for entry in output.root.files() if entry.name not in named | {LOCK}]
        left += [f"not there: {name}" for name in named - {entry.name for entry in output.root.files()}]
        if self.client:
            uploads = self.client.list_multipart_uploads(Bucket=self.order.bucket).get("Uploads", ())
            left += [f"upload of {upload['Key']}" for upload in uploads]
        elif isinstance(output.root, Location):
            left += [str(path) for path in output.root.path.rglob("*") if path.is_dir() and not any(path.iterdir())]
        return left + [str(path) for path in self.temporary.rglob("*")]


def _bytes(place: Place) -> bytes:
    with place.open() as opened:
        return opened.read()
