"""Files of lines: long lines, compression, encodings, CSV; what cannot be read is a record with its place."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import SourceUnreadableError
from embeddings_pipeline.records import Counts, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.sources import list_source, reader
from tests.fakes import Bench, to_jsonl, works

ENCODING = "where files are in another encoding, name it with source.encoding, such as cp1252"


def read(location: Path, kind: str = "jsonl", **options: object) -> list[Record]:
    spec = SourceSpec.model_validate({"kind": kind, "location": str(location), "id": "id", **options})
    source = reader(spec, (StrategySpec(name="full_record"),))
    files = list_source(spec).files
    source.check(files, ())
    return [record for file in files for record in source.read(file)]


def compress(data: bytes, suffix: str) -> bytes:
    return gzip.compress(data) if suffix == ".gz" else pa.compress(data, "zstd", asbytes=True)


def problems(records: list[Record]) -> list[tuple[str, str, str]]:
    return [(record.position, str(record.problem[0]), record.problem[1]) for record in records if record.problem]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_compressed_files_give_the_records_of_plain_ones(tmp_path: Path, suffix: str, kind: str) -> None:
    lines = (
        to_jsonl(works(2000)) if kind == "jsonl" else "id,title\n" + "".join(f"r{n},work {n}\n" for n in range(2000))
    )
    (tmp_path / f"plain.{kind}").write_text(lines, encoding="utf-8")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / f"plain.{kind}{suffix}").write_bytes(compress(lines.encode(), suffix))
    plain, packed = read(tmp_path / f"plain.{kind}", kind), read(tmp_path / "packed", kind)
    assert [(record.key, record.values) for record in packed] == [(record.key, record.values) for record in plain]
    assert len(plain) == 2000


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_is_an_error_that_names_it(tmp_path: Path, suffix: str) -> None:
    """Its readable head is no delivery."""
    data = compress(to_jsonl(works(5000)).encode(), suffix)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceUnreadableError, match=rf"a\.jsonl\{suffix}' cannot be read as jsonl"):
        read(tmp_path)


def test_a_line_over_the_limit_is_a_reject_and_the_next_is_read(tmp_path: Path) -> None:
    """Case 13: and however long it is, no more of it than the limit and one block is held."""
    long = '{"id": "long", "title": "' + "x" * 3_000_000 + '"}\n'
    (tmp_path / "a.jsonl").write_text(to_jsonl(works(1)) + long + to_jsonl(works(1, 1)).rstrip("\n"), encoding="utf-8")
    found = read(tmp_path, max_line_bytes=100_000)
    assert [record.key for record in found] == ["r0", None, "r1"]
    assert problems(found) == [
        (
            "a.jsonl line 2",
            "too_large",
            "the line has 3000028 bytes, more than source.max_line_bytes, 100000",
        )
    ]
    assert [record.key for record in read(tmp_path)] == ["r0", "long", "r1"]


def test_another_encoding_is_an_option_and_a_bad_byte_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"id": "é", "title": "Œuvres"}\n'.encode("cp1252") + b'{"id": "b\x81"}\n')
    found = read(tmp_path, encoding="cp1252")
    assert (found[0].key, found[0].values["title"]) == ("é", "Œuvres")
    assert problems(found) == [
        ("a.jsonl line 2", "unparsable", "the line is not cp1252 (byte 0x81 at 10); " + ENCODING)
    ]


def test_a_file_that_cannot_be_opened_is_passed_over_by_option_and_counted(bench: Bench) -> None:
    """Case 15: a zero-byte parquet is an error that names it, or a counted skip."""
    bench.parquet()
    bench.put("a.parquet", works(3))
    (bench.source / "empty.parquet").touch()
    with pytest.raises(SourceUnreadableError, match=r"empty\.parquet"):
        bench.extract()
    source = bench.changes["source"] | {"on_unreadable": "skip"}
    report = bench.extract(source=source)
    assert (report.files, report.unreadable, report.counts.read) == (1, 1, 3)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_is_passed_over_by_option_as_a_whole(bench: Bench, suffix: str) -> None:
    """None of its records is taken: half a file is no delivery, and the keys it would take belong to others."""
    data = compress(to_jsonl(works(5000)).encode(), suffix)
    (bench.source / f"a.jsonl{suffix}").write_bytes(data[: len(data) // 2])
    bench.put("b.jsonl", works(3))
    source = {"kind": "jsonl", "location": str(bench.source), "id": "id", "on_unreadable": "skip"}
    report = bench.extract(source=source)
    assert (report.files, report.unreadable, report.counts) == (1, 1, Counts(read=3))


def test_a_parquet_file_with_a_broken_page_is_passed_over_by_option(bench: Bench) -> None:
    """Its footer is whole: only reading tells."""
    bench.put("b.parquet", works(3))
    file = bench.source / "a.parquet"
    rows = {"id": [str(number) for number in range(5000)], "title": [os.urandom(20).hex() for _ in range(5000)]}
    pq.write_table(pa.table(rows), file, compression="zstd")
    data = bytearray(file.read_bytes())
    data[200:4000] = b"\xff" * 3800
    file.write_bytes(data)
    source = {"kind": "parquet", "location": str(bench.source), "id": "id"}
    with pytest.raises(SourceUnreadableError, match=r"a\.parquet"):
        bench.extract(source=source)
    report = bench.extract(source=source | {"on_unreadable": "skip"})
    assert (report.files, report.unreadable, report.counts) == (1, 1, Counts(read=3))
