"""SciFact: abstracts, claims and judgements, as BEIR has them.

What belongs here: reading the two layouts in which it is found. What does not: metrics (`ranking`)
and embedding (`quality`).
"""

import ast
import csv
import gzip
import io
import json
import tokenize
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents (id, title, text), queries by id, and judged documents of each query with their grade."""

    documents: list[tuple[str, str, str]]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def cut(self, first: int) -> "Collection":
        """Return the collection with the documents that are judged or among the first ones."""
        judged = {document for grades in self.judgements.values() for document in grades}
        kept = [entry for number, entry in enumerate(self.documents) if number < first or entry[0] in judged]
        return Collection(kept, self.queries, self.judgements)


def load(folder: Path) -> Collection:
    """Read a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv), or of original files.

    The original files are allenai's `scifact.zip`, whose abstracts are printed numpy arrays of
    sentences, and Anserini's topics and judgements; joined with one space they are BEIR's texts.
    """
    if (folder / "corpus.jsonl").is_file():
        documents = [(row["_id"], row["title"], row["text"]) for row in _json_lines(folder / "corpus.jsonl")]
        queries = {row["_id"]: row["text"] for row in _json_lines(folder / "queries.jsonl")}
        lines = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
        return _with_judged_queries(documents, queries, (line.split("\t") for line in lines))
    if not (folder / "scifact.zip").is_file():
        raise SystemExit(f"{folder} holds neither corpus.jsonl nor scifact.zip; see benchmarks/README.md")
    csv.field_size_limit(1 << 30)
    with zipfile.ZipFile(folder / "scifact.zip") as archive, archive.open("corpus_train.csv") as opened:
        rows = list(csv.DictReader(io.TextIOWrapper(opened, "utf-8", newline="")))
    documents = [(row["doc_id"], row["title"], " ".join(_sentences(row["abstract"]))) for row in rows]
    with gzip.open(folder / "topics.beir-v1.0.0-scifact.test.tsv.gz", "rt", encoding="utf-8") as opened:
        queries = dict(line.rstrip("\n").split("\t", 1) for line in opened)
    lines = (folder / "qrels.beir-v1.0.0-scifact.test.txt").read_text(encoding="utf-8").splitlines()
    fields = (line.split() for line in lines)
    return _with_judged_queries(documents, queries, ((query, document, grade) for query, _, document, grade in fields))


def _with_judged_queries(
    documents: list[tuple[str, str, str]], queries: dict[str, str], judgements: Iterable[Iterable[str]]
) -> Collection:
    grades: dict[str, dict[str, int]] = {}
    for query, document, grade in judgements:
        grades.setdefault(query, {})[document] = int(grade)
    return Collection(documents, {query: queries[query] for query in grades}, grades)


def _json_lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


def _sentences(printed: str) -> list[str]:
    """Return the strings of a printed numpy array of strings, which has no commas."""
    tokens = tokenize.generate_tokens(io.StringIO(printed).readline)
    return [ast.literal_eval(token.string).strip() for token in tokens if token.type == tokenize.STRING]
