"""Reading rejects back, to show a person some of them.

What belongs here: the first rows of a delivery's reject files. What does not: writing them (`parts`) and
deciding what is one (`pipeline`).
"""

import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.errors import VerificationError
from embeddings_pipeline.records import REJECTS_SCHEMA, Reason, Reject
from embeddings_pipeline.storage.location import Place

MOST_REJECTS_SHOWN = 20


def first_rejects(folder: Place, most: int = MOST_REJECTS_SHOWN) -> tuple[Reject, ...]:
    """Return the first rejects below a folder, by the names of their files; opens at most `most` files.

    Raises:
        VerificationError: a file is no rejects file.
    """
    found: list[Reject] = []
    for entry in folder.files():
        if len(found) >= most:
            break
        if entry.name.endswith(".parquet"):
            found.extend(_rows(entry.location, most - len(found)))
    return tuple(found)


def _rows(file: Place, most: int) -> list[Reject]:
    columns = [name for name in REJECTS_SCHEMA.names if name != "delivery"]
    try:
        with pq.ParquetFile(file.parquet()) as opened:
            batch = next(opened.iter_batches(batch_size=most, columns=columns, use_threads=False), None)
    except FileNotFoundError:
        # Another run of the delivery has replaced it since it was listed.
        return []
    except (pa.ArrowException, OSError) as error:
        raise VerificationError(
            f"the rejects '{file}' cannot be read ({str(error).splitlines()[0]}); delete the file and run the job again"
        ) from error
    rows = batch.to_pylist() if batch is not None else []
    return [Reject(**row | {"reason": Reason(row["reason"])}) for row in rows]
