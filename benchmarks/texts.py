"""The texts that are embedded: real ones from a folder of data, or made from the bundled sample.

What belongs here: choosing and making texts, and writing them as a source. What does not: relevance
judgements (`scifact`). The same arguments give the same texts on every machine.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MEDIAN_TOKENS = 73
P95_TOKENS = 571
"""The lengths that a catalogue's mixed records have, in tokens of BERT's uncased vocabulary."""

TEXTS_FILE = "texts.parquet"
"""The one file of a source folder; columns id and text."""

_TOKENS_PER_WORD = 1.4
_SHARES = {"titles": 0.24, "cards": 0.40, "abstracts": 0.326, "records": 0.034}
"""Of the real texts; chosen so that the mixture has the lengths above."""


def mixed_texts(count: int, data: Path | None) -> tuple[list[str], str]:
    """Return distinct texts of mixed lengths, and a word on where they come from.

    Args:
        count: how many.
        data: a folder with `scifact/`, `cmoa/`, `timdex_dataset/` and `goodbooks/` (or some of them);
            None makes texts from the sample that the package has.
    """
    if data is None:
        return generated_texts(count), "generated from the bundled sample"
    sources = {name: list(dict.fromkeys(read(data))) for name, read in _READERS.items()}
    if missing := [name for name, texts in sources.items() if not texts]:
        raise SystemExit(
            f"--data {data} has nothing for {', '.join(missing)}; see benchmarks/README.md, or leave it out"
        )
    chosen: list[str] = []
    for number, (name, share) in enumerate(_SHARES.items()):
        wanted = count - len(chosen) if number == len(_SHARES) - 1 else round(count * share)
        texts = sources[name]
        random.Random(number).shuffle(texts)
        chosen += texts[:wanted]
    if len(chosen) < count:
        raise SystemExit(f"--data {data} has too few texts for {count}; the most is about {len(chosen)}")
    random.Random(7).shuffle(chosen)
    return chosen, f"real texts of {data.name}"


def generated_texts(count: int, *, median: int = MEDIAN_TOKENS, p95: int = P95_TOKENS, seed: int = 7) -> list[str]:
    """Return distinct texts of the sample's sentences, their lengths log-normal.

    Args:
        count: how many.
        median: of the length in tokens, about.
        p95: the 95th percentile, about.
        seed: another one gives other texts.
    """
    return list(generate(count, median=median, p95=p95, seed=seed))


def generate(count: int, *, median: int, p95: int, seed: int) -> Iterator[str]:
    """Yield what `generated_texts` returns, one at a time."""
    words = _sample_words()
    source = random.Random(seed)
    spread = math.log(p95 / median) / 1.645
    for number in range(count):
        tokens = source.lognormvariate(math.log(median), spread)
        wanted = max(1, min(4_000, round(tokens / _TOKENS_PER_WORD)))
        start = source.randrange(len(words))
        # The number makes it distinct: equal texts are computed once, which would flatter this engine.
        yield " ".join([f"{number}:", *(words[(start + step) % len(words)] for step in range(wanted))])


def write_source(folder: Path, texts: list[str]) -> Path:
    """Write texts as the parquet source that every way is given; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": [f"{number:08d}" for number in range(len(texts))], "text": texts})
    pq.write_table(table, folder / TEXTS_FILE)
    return folder


def token_lengths(texts: list[str], model: Path, max_length: int) -> list[int]:
    """Return how many tokens of each text a model takes, special ones included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)]


def _sample_words() -> list[str]:
    sample = resources.files("embeddings_pipeline").joinpath("samples/works.jsonl").read_text(encoding="utf-8")
    works = [json.loads(line) for line in sample.splitlines() if line.strip()]
    return " ".join(f"{work['title']}. {work['description']}" for work in works).split()


def _cmoa(data: Path) -> list[dict[str, object]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(data.glob("cmoa/cmoa/*.json"))]


def _titles(data: Path) -> list[str]:
    import csv

    titles = [f"{item['title']} {item.get('medium') or ''}".strip() for item in _cmoa(data) if item.get("title")]
    for file in data.glob("goodbooks/books.csv"):
        with file.open(encoding="utf-8", newline="") as opened:
            titles += [f"{row['title']} {row['authors']}" for row in csv.DictReader(opened)]
    return titles


def _cards(data: Path) -> list[str]:
    fields = ("title", "creation_date", "medium", "classification", "department", "credit_line", "provenance_text")
    return ["\n".join(f"{name}: {item[name]}" for name in fields if item.get(name)) for item in _cmoa(data)]


def _abstracts(data: Path) -> list[str]:
    from benchmarks import scifact

    folder = data / "scifact"
    return [f"{title} {text}" for _, title, text in scifact.load(folder).documents] if folder.is_dir() else []


def _records(data: Path) -> list[str]:
    files = sorted(data.glob("timdex_dataset/data/records/**/*.parquet"))
    columns = [pq.read_table(file, columns=["transformed_record"], partitioning=None).column(0) for file in files]
    return [value.decode() for column in columns for value in column.to_pylist() if value]


_READERS: dict[str, Callable[[Path], list[str]]] = {
    "titles": _titles,
    "cards": _cards,
    "abstracts": _abstracts,
    "records": _records,
}
