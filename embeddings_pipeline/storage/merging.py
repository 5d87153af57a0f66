"""Adding to a published set: what a run with limit or offset, or with `output.keep`, does instead of replacing it.

What belongs here: which published rows stay, and writing files anew that lose some. What does not: when that is
done, and the commit (`publish`).
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.errors import ManifestError, VerificationError
from embeddings_pipeline.storage.index import Hashes, SeenKeys, key_hashes
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.manifests import DatasetFile, PublishedSet
from embeddings_pipeline.storage.parts import Output, VectorsWriter
from embeddings_pipeline.storage.published import is_there
from embeddings_pipeline.storage.scratch import Scratch


def merged(output: Output, scratch: Scratch, before: PublishedSet, after: PublishedSet) -> PublishedSet:
    """Add the rows of `after` to those published before: they replace those with their keys.

    Rows of another version of the model do not stay: they may have another width.
    """
    fresh = {file.path for file in after.files}
    seen = SeenKeys()
    for file in after.files:
        seen.add_hashes(_key_hashes(output.root / file.path))
    stay: list[DatasetFile] = []
    for file in before.files:
        if file.path in fresh or file.fingerprint != after.fingerprint:
            continue
        if not is_there(output.root, file):
            raise VerificationError(
                f"the published file '{output.root / file.path}' is gone or was changed; run the job once without "
                "limit and offset, which computes its vectors again"
            )
        superseded = seen.repeated(_key_hashes(output.root / file.path))
        if not superseded.any():
            stay.append(file)
        elif not superseded.all():
            stay.append(_without(output, scratch, after, file, superseded))
    return replace(after, files=(*stay, *after.files))


def _without(
    output: Output,
    scratch: Scratch,
    after: PublishedSet,
    file: DatasetFile,
    superseded: npt.NDArray[np.bool_],
) -> DatasetFile:
    """Write a published file again without its superseded rows."""
    path = output.root / file.path
    target = scratch.file(f"rest-{file.digest[:16]}.parquet")
    with pq.ParquetFile(path.parquet()) as opened:
        writer = VectorsWriter(target, opened.schema_arrow)
        first = 0
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, use_threads=False)
            writer.write(table.filter(pa.array(~superseded[first : first + table.num_rows])))
            first += table.num_rows
        digest = writer.finish()
    if digest is None:
        raise ManifestError(f"file '{path}' has other rows than when it was listed; run the job again")
    number = path.name.split("-")[1]
    name = output.published(after.slug, after.strategy) / f"part-{number}-{digest[:16]}.parquet"
    size = target.stat().st_size
    name.put(target)
    return replace(
        file, path=output.relative(name), rows=writer.rows, bytes=size, digest=digest, part=f"{file.part}-rest"
    )


def _key_hashes(place: Place) -> Hashes:
    try:
        with pq.ParquetFile(place.parquet()) as opened:
            table = opened.read(columns=["record_id", "chunk"], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise VerificationError(
            f"the published file '{place}' cannot be read ({str(error).splitlines()[0]}); delete it, then run the job "
            "once without limit and offset, which computes its vectors again"
        ) from error
    keys = zip(table.column("chunk").to_pylist(), table.column("record_id").to_pylist(), strict=True)
    return key_hashes([f"{chunk}:{record_id}" for chunk, record_id in keys])
