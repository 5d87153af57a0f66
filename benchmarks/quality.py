"""Whether the vectors still retrieve what they should: `python -m benchmarks.quality --data FOLDER`.

What belongs here: SciFact through the pipeline, dense and sparse. What does not: the metrics
(`ranking`), reading the collection (`scifact`).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import models, report
from benchmarks.ranking import evaluate, rank
from benchmarks.scifact import Collection, load
from embeddings_pipeline import pipeline
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings, ModelSpec

PUBLISHED = {"ndcg@10": 0.64508, "recall@100": 0.925}
"""all-MiniLM-L6-v2 on SciFact in the MTEB paper: 256 tokens, title and text joined by a space, cosine."""

SPARSE_EXPECTED = {"ndcg@10": 0.8057}
"""splade-tiny on the cut of 566 documents, as sentence-transformers' own vectors give it."""

_MAX_LENGTH = {"dense": 256, "sparse": 512}
_CUT = 300
_DEPTH = 100


def embed_documents(
    collection: Collection, model: dict[str, Any], cache: ModelCache, folder: Path
) -> Iterator[pa.Table]:
    """Embed the documents with the pipeline and yield its dataset, file by file."""
    ids, titles, texts = zip(*collection.documents, strict=True)
    folder.mkdir()
    pq.write_table(pa.table({"id": ids, "title": titles, "text": texts}), folder / "documents.parquet")
    corpus = CorpusSpec.parse(
        {
            "name": "scifact",
            "source": {"kind": "parquet", "location": str(folder / "documents.parquet"), "id": "id"},
            "strategies": [{"name": "title_and_text", "template": "{title} {text}"}],
            "model": model,
            "output": {"location": str(folder / "out")},
        },
        "the quality benchmark",
    )
    delivery = Delivery(corpus.name)
    pipeline.extract(corpus, delivery, ExtractSettings(), run_id="quality")
    done = pipeline.embed(corpus, delivery, EmbedSettings(), cache, run_id="quality")
    report.say(f"embedded {done.counts.embedded} documents in {done.seconds:.0f} s")
    pipeline.publish(corpus, delivery, run_id="quality")
    for file in sorted((folder / "out" / "dataset").rglob("*.parquet")):
        yield pq.read_table(file, partitioning=None)


def dense(collection: Collection, folder: Path) -> dict[str, float]:
    """Rank by cosine of all-MiniLM-L6-v2's vectors; the queries go through the same encoder."""
    model = {"name": models.MINILM, "max_length": _MAX_LENGTH["dense"]}
    cache = ModelCache("cpu")
    ids: list[str] = []
    blocks: list[npt.NDArray[np.float32]] = []
    for table in embed_documents(collection, model, cache, folder):
        ids += table.column("record_id").to_pylist()
        column = table.column("embedding").combine_chunks()
        blocks.append(np.asarray(column.flatten()).reshape(len(table), -1))
    with cache.lease(resolve(ModelSpec(**model))) as encoder:
        queries = encoder.embed(list(collection.queries.values())).dense
    cache.close()
    scores = _unit(np.asarray(queries)) @ _unit(np.concatenate(blocks)).T
    return _evaluate(collection, scores, ids)


def sparse(collection: Collection, folder: Path, source: Path) -> dict[str, float]:
    """Rank by the dot product of a sparse model's vectors; the queries are the library's `encode_query`."""
    from sentence_transformers import SparseEncoder

    model = {"name": "sparse", "source": str(source), "kind": "sparse", "max_length": _MAX_LENGTH["sparse"]}
    cache = ModelCache("cpu")
    library = SparseEncoder(str(source), device="cpu", local_files_only=True)
    texts = list(collection.queries.values())
    queries = library.encode_query(texts, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()
    ids: list[str] = []
    blocks: list[npt.NDArray[np.float32]] = []
    for table in embed_documents(collection, model, cache, folder):
        ids += table.column("record_id").to_pylist()
        indices, values = (table.column(f"sparse_{name}").combine_chunks() for name in ("indices", "values"))
        documents = np.zeros((len(table), queries.shape[1]), np.float32)
        rows = np.repeat(np.arange(len(table)), np.asarray(indices.value_lengths()))
        documents[rows, np.asarray(indices.flatten())] = np.asarray(values.flatten())
        blocks.append(queries @ documents.T)
    cache.close()
    return _evaluate(collection, np.concatenate(blocks, axis=1), ids)


def _evaluate(collection: Collection, scores: npt.NDArray[np.float32], ids: list[str]) -> dict[str, float]:
    """Rank all documents for each query; *Shape:* scores float[queries, documents]."""
    rankings = {query: rank(row, ids, _DEPTH) for query, row in zip(collection.queries, scores, strict=True)}
    return evaluate(rankings, collection.judgements)


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    options = report.parser("SciFact nDCG@10 and recall@100, dense and sparse, through the whole pipeline.")
    options.add_argument(
        "--data", type=Path, required=True, help="folder of SciFact: BEIR's layout or the original files"
    )
    options.add_argument("--only", default="dense,sparse", help="which models, with commas")
    options.add_argument("--sparse-model", type=Path, help="folder; splade-tiny by default")
    arguments = options.parse_args(argv)
    collection = load(arguments.data)
    cut = collection.cut(_CUT)
    report.say(f"{len(collection.documents)} documents, {len(cut.documents)} in the cut, {len(cut.queries)} queries")
    models.quiet()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="embeddings-benchmark-") as folder:
        if "dense" in arguments.only.split(","):
            chosen = cut if arguments.quick else collection
            figures["dense.documents"] = len(chosen.documents)
            figures |= {f"dense.{name}": value for name, value in dense(chosen, Path(folder) / "dense").items()}
            if not arguments.quick:
                figures |= {f"dense.published_{name}": value for name, value in PUBLISHED.items()}
        if "sparse" in arguments.only.split(","):
            source = arguments.sparse_model or models.splade_tiny_folder()
            figures["sparse.documents"] = len(cut.documents)
            figures |= {f"sparse.{name}": value for name, value in sparse(cut, Path(folder) / "sparse", source).items()}
            figures |= {f"sparse.expected_{name}": value for name, value in SPARSE_EXPECTED.items()}
    report.finish("quality", figures, arguments)


if __name__ == "__main__":
    main()
