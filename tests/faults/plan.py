"""The corpus that the fault tests embed, in two versions, and what may be compared between two runs."""

import hashlib
from typing import Any

import numpy as np

from embeddings_pipeline.records import EmbeddedBatch
from tests.fakes import Bench, FakeEncoder, to_jsonl, works

PART_TEXTS = 10
APPLICATION_BATCH = 4
STRATEGIES = [{"name": "full_record"}, {"name": "titles", "fields": ["title"]}]
RECORDS = 47
WIDE_TEXTS = 400
WIDE = 4096
"""Numbers of a wide vector: a part of such has 6.5 MB, and S3 gets it in pieces."""

Row = tuple[Any, ...]


class WideEncoder(FakeEncoder):
    """A fake whose vectors are wide and do not compress."""

    def __init__(self) -> None:
        super().__init__(dimensions=WIDE)

    def embed(self, texts: Any, *rest: Any) -> EmbeddedBatch:
        result = super().embed(texts, *rest)
        bits = [np.frombuffer(hashlib.shake_256(text.encode()).digest(4 * WIDE), np.uint32) for text in texts]
        return EmbeddedBatch(
            token_count=result.token_count,
            token_count_exact=result.token_count_exact,
            truncated=result.truncated,
            dense=(np.stack(bits) >> 8).astype(np.float32) / np.float32(1 << 24),
        )


def records(version: int) -> list[dict[str, Any]]:
    """Return the source; the second version has changed, new and removed records, a second key, and one blank."""
    made = works(RECORDS)
    made.insert(20, {"id": "blank", "title": " "})
    made.append({"id": "r3", "title": "second"})
    if version == 2:
        made = [record for record in made if record["id"] not in ("r5", "r33")] + works(6, 100)
        made = [record | {"title": "changed"} if record["id"] in ("r0", "r25") else record for record in made]
    return made


def prepare(bench: Bench, version: int, *, wide: bool = False) -> None:
    """Write the source of that version, in two files."""
    made = works(WIDE_TEXTS, version) if wide else records(version)
    middle = len(made) if wide else 30
    for name, some in (("a.jsonl", made[:middle]), ("b.jsonl", made[middle:])):
        file = bench.source / name
        if not file.exists() or file.read_text(encoding="utf-8") != to_jsonl(some):
            bench.put(name, some)


def run(bench: Bench, version: int, run_id: str, *, wide: bool = False) -> None:
    """Run the whole corpus in that version; `wide` has one part with vectors of some megabytes."""
    prepare(bench, version, wide=wide)
    if wide:
        bench.run(run_id=run_id, batch=100, part_texts=WIDE_TEXTS, strategies=STRATEGIES[1:])
    else:
        bench.run(run_id=run_id, batch=APPLICATION_BATCH, part_texts=PART_TEXTS, strategies=STRATEGIES)


def comparable(bench: Bench) -> list[Row]:
    """Return what has to be equal whatever was killed when: strategy, key, chunk, text hash, vector."""
    return rows_of(bench.rows())


def rows_of(rows: list[dict[str, Any]]) -> list[Row]:
    """Return the rows so, in the order of their keys."""
    names = ("strategy", "record_id", "chunk", "text_hash")
    return sorted((*(row[name] for name in names), tuple(row["embedding"])) for row in rows)
