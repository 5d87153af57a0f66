"""What a restart costs when nearly all is done: seconds and peak memory, with manifests that were made up.

Usage: python -m benchmarks.restart --json FILE [--texts N] [--strategies N] [--quick]

Makes an output as a killed run leaves it, without computing it: real source files are extracted, then their manifest,
part manifests and files are multiplied until they stand for N texts. The files have the sizes that the manifests say
and no content, since a restart looks at no more. Two restarts are measured, each in a process of its own:

* staged: all parts but one are finished and staged, nothing is published yet. Extract and embed, which computes the
  last part with a stand-in for a model.
* published: all is published. Extract, embed and publish.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.unchanged import StandIn
from embeddings_pipeline import pipeline
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Counts, Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.manifests import (
    DatasetFile,
    DeliveryManifest,
    PartManifest,
    PublishedSet,
    RecordsManifest,
    RecordsPart,
    dump,
    load,
)
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.strategies import definition_hash

PART_TEXTS = 10_000
PARTS_PER_FILE = 10
LAST_TEXTS = 1_000
"""Texts of the one part that is left to do."""
LONG_AGO = 1_700_000_000
BYTES_PER_TEXT = 1_600
"""Of a dataset file with 384 dimensions."""


def corpus(root: Path, strategies: int) -> CorpusSpec:
    """Return the corpus below a folder."""
    return CorpusSpec.parse(
        {
            "name": "restart",
            "source": {"kind": "jsonl", "location": str(root / "source"), "id": "id"},
            "strategies": [{"name": f"title_{number}", "fields": ["title"]} for number in range(strategies)],
            "model": {"name": "benchmarks/stand-in", "source": str(root / "model"), "kind": "dense"},
            "output": {"location": str(root / "out")},
            "part_texts": PART_TEXTS,
        },
        "benchmarks.restart",
    )


def make(root: Path, state: str, texts: int, strategies: int) -> int:
    """Write everything that the restart finds; return how many parts there are."""
    source, model = root / "source", root / "model"
    source.mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["StandIn"]}', encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"none")
    files = max(1, texts // strategies // (PART_TEXTS * PARTS_PER_FILE))
    for number in range(files):
        _source_file(source / f"{number:05d}.jsonl", number, 1)
    if state == "staged":
        _source_file(source / "last.jsonl", files, LAST_TEXTS)
    spec = corpus(root, strategies)
    pipeline.extract(spec, Delivery(spec.name), ExtractSettings(), run_id="killed")
    output = output_of(spec, Delivery(spec.name))
    records = load(output.records_manifest, RecordsManifest)
    if records is None:
        raise SystemExit("nothing was extracted")
    records = _multiplied(output, records)
    _write(output.records_manifest, dump(records))
    finish = _publish if state == "published" else _stage
    finish(spec, output, records)
    return len(records.parts)


def _source_file(path: Path, number: int, count: int) -> None:
    records = [{"id": f"https://example.org/{number}/{key}", "title": f"A title, {key}"} for key in range(count)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))


def _multiplied(output: Output, records: RecordsManifest) -> RecordsManifest:
    """Let every source file of one record stand for one of a hundred thousand."""
    parts: list[RecordsPart] = []
    sources = []
    first = 0
    for entry in records.sources:
        mine = records.parts[first : first + entry.parts]
        first += entry.parts
        if entry.records > 1:
            sources.append(entry)
            parts.extend(mine)
            continue
        made = [
            replace(
                part,
                id=f"{part.id[:14]}{number:06d}",
                texts=PART_TEXTS,
                file=f"{part.strategy}/part-{part.id[:14]}{number:06d}.parquet",
                start=number * PART_TEXTS,
                stop=(number + 1) * PART_TEXTS,
            )
            for number in range(PARTS_PER_FILE)
            for part in mine
        ]
        for part in made:
            _sized(output.records / str(part.file), PART_TEXTS * 60)
        parts.extend(made)
        total = PART_TEXTS * PARTS_PER_FILE
        sources.append(replace(entry, records=total, parts=len(made), keyed=total))
    _sized(output.records / str(records.keys), 16 * sum(entry.keyed for entry in sources))
    return replace(records, parts=tuple(parts), sources=tuple(sources), records=sum(part.texts for part in parts))


def _stage(spec: CorpusSpec, output: Output, records: RecordsManifest) -> None:
    fingerprint = resolve(spec.model).fingerprint
    for part in (part for part in records.parts if part.texts == PART_TEXTS):
        place = output.staged(part.strategy, fingerprint) / f"part-{part.id}.parquet"
        file = _file(output, part, place, fingerprint)
        manifest = PartManifest(
            part=part.id,
            strategy=part.strategy,
            fingerprint=fingerprint,
            run_id="killed",
            counts=Counts(read=part.texts, embedded=part.texts),
            tokens=12 * part.texts,
            truncated=0,
            kind="dense",
            dimensions=StandIn.dimensions,
            file=file,
            kept=False,
            seconds=1.0,
            rejects_by_reason={},
        )
        _write(output.staged(part.strategy, fingerprint) / f"part-{part.id}.json", dump(manifest))


def _publish(spec: CorpusSpec, output: Output, records: RecordsManifest) -> None:
    model = resolve(spec.model)
    sets = []
    for strategy in spec.rendered_strategies():
        parts = [part for part in records.parts if part.strategy == strategy.name]
        folder = output.published(model.slug, strategy.name)
        files = [
            _file(output, part, folder / f"part-{number:05d}-{part.id[-16:]}.parquet", model.fingerprint)
            for number, part in enumerate(parts)
        ]
        total = sum(part.texts for part in parts)
        sets.append(
            PublishedSet(
                model=model.name,
                slug=model.slug,
                strategy=strategy.name,
                kind="dense",
                dimensions=StandIn.dimensions,
                fingerprint=model.fingerprint,
                definition=definition_hash(strategy),
                counts=Counts(read=total, embedded=total),
                seconds=1.0,
                files=tuple(files),
            )
        )
    manifest = DeliveryManifest(
        corpus=spec.name,
        delivery=records.delivery,
        commit="0" * 16,
        extraction=records.extraction,
        run_id="before",
        published_at="2026-01-01T00:00:00+00:00",
        sets=tuple(sets),
        versions={},
    )
    _write(output.manifest, dump(manifest))


def _file(output: Output, part: RecordsPart, place: Any, fingerprint: str) -> DatasetFile:
    size = part.texts * BYTES_PER_TEXT
    _sized(place, size)
    digest = f"{part.id:0>64}"
    return DatasetFile(output.relative(place), part.texts, size, digest, part.id, fingerprint)


def _sized(place: Any, size: int) -> None:
    """Make a file of that size without content, which takes no room."""
    path = _path(place)
    with path.open("wb") as opened:
        opened.truncate(size)


def _write(place: Any, text: str) -> None:
    _path(place).write_text(text, encoding="utf-8")


def _path(place: Any) -> Path:
    if not isinstance(place, Location):
        raise SystemExit(f"{place} is not on a local disk")
    place.path.parent.mkdir(parents=True, exist_ok=True)
    return place.path


def peak_mib() -> float:
    """Return the kernel's peak of this process's memory; that of `getrusage` would have its parent's in it."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return round(int(line.split()[1]) / 1024, 1)


def measure(root: Path, state: str, strategies: int) -> dict[str, Any]:
    """Restart in this process and return what it cost; memory includes the libraries'."""
    before = peak_mib()
    spec, delivery = corpus(root, strategies), Delivery("restart")
    cache = ModelCache("cpu", load=lambda model, _: StandIn(model))
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def took(name: str) -> None:
        nonlocal started
        seconds[name], started = round(time.perf_counter() - started, 3), time.perf_counter()

    pipeline.preflight([spec], device="cpu", extract=ExtractSettings(), embed=EmbedSettings())
    took("preflight")
    extracted = pipeline.extract(spec, delivery, ExtractSettings(), run_id="restart")
    took("extract")
    embedded = pipeline.embed(spec, delivery, EmbedSettings(), cache, run_id="restart")
    took("embed")
    if state == "published":
        pipeline.publish(spec, delivery, run_id="restart")
        took("publish")
    cache.close()
    return {
        "texts": embedded.counts.read,
        "computed": embedded.computed,
        "skipped": embedded.counts.skipped,
        "files_reused": extracted.files_reused,
        "seconds": seconds | {"all": round(sum(seconds.values()), 3)},
        "peak_rss_mib": peak_mib(),
        "imports_rss_mib": before,
    }


def restarts(texts: int, strategies: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each state with its figures."""
    for state in ("staged", "published"):
        with tempfile.TemporaryDirectory(prefix="embeddings-restart-") as folder:
            parts = make(Path(folder) / "corpus", state, texts, strategies)
            command = [sys.executable, "-m", "benchmarks.restart", "--measure", state, "--strategies", str(strategies)]
            done = subprocess.run(
                [*command, "--root", str(Path(folder) / "corpus")], check=True, capture_output=True, text=True
            )
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        expected = LAST_TEXTS * strategies if state == "staged" else 0
        if found["computed"] != expected:
            raise SystemExit(f"restart '{state}' computed {found['computed']} texts instead of {expected}")
        yield state, found | {"parts": parts}


def main() -> None:
    """Make, measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--texts", type=int, default=10_000_000)
    parser.add_argument("--strategies", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="200,000 texts")
    parser.add_argument("--measure", choices=["staged", "published"], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.root, arguments.measure, arguments.strategies)))
        return
    if arguments.json is None:
        parser.error("--json FILE is needed")
    texts = 200_000 if arguments.quick else arguments.texts
    result: dict[str, Any] = {"quick": arguments.quick, "cpus": len(os.sched_getaffinity(0))}
    result |= dict(restarts(texts, arguments.strategies))
    result["seconds"] = max(result[state]["seconds"]["all"] for state in ("staged", "published"))
    result["peak_rss_mb"] = max(result[state]["peak_rss_mib"] * 1.048576 for state in ("staged", "published"))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
