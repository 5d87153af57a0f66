"""Manifests survive a round trip, and say so when they cannot be read."""

import json
from pathlib import Path

import pytest

from embeddings_pipeline.errors import ManifestError
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.manifests import DeliveryManifest, PartManifest, RecordsManifest, dump, load
from tests.fakes import Bench, works


def test_manifests_read_back_as_they_were_written(bench: Bench) -> None:
    bench.put("ünïcode.jsonl", [*works(3), {"id": None}])
    bench.extract()
    bench.embed()
    records = bench.records_manifest()
    assert records.parts[0].source == "ünïcode.jsonl"
    assert json.loads(dump(records))["format_version"] == 1
    (part,) = bench.output.staging.path.rglob("*.json")
    manifest = load(Location(part), PartManifest)
    assert manifest is not None
    assert dump(manifest) == part.read_text(encoding="utf-8")
    bench.publish()
    assert dump(bench.manifest()) == bench.output.manifest.read_text()


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert load(Location(tmp_path / "no.json"), RecordsManifest) is None


@pytest.mark.parametrize("kind", [RecordsManifest, PartManifest, DeliveryManifest])
def test_a_newer_format_is_refused_in_a_sentence(tmp_path: Path, kind: type) -> None:
    (tmp_path / "m.json").write_text('{"format_version": 2, "unheard": "of"}', encoding="utf-8")
    with pytest.raises(
        ManifestError, match=r"has format_version 2, and this version reads up to 1; use the version of"
    ):
        load(Location(tmp_path / "m.json"), kind)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"format_version": "x"}', '{"format_version": 1}'])
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"manifest '.*m\.json' cannot be read .*restore it from a backup"):
        load(Location(tmp_path / "m.json"), DeliveryManifest)


def test_a_manifest_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match=r"m\.json' cannot be read"):
        load(Location(tmp_path / "m.json"), DeliveryManifest)


def test_a_newer_published_manifest_stops_every_use_case(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    newer = json.loads(str(bench.output.manifest.read_text())) | {"format_version": 99}
    bench.output.manifest.path.write_text(json.dumps(newer), encoding="utf-8")
    for use_case in (bench.extract, bench.embed, bench.publish):
        with pytest.raises(ManifestError, match="format_version 99"):
            use_case()
    assert len(bench.rows()) == 2
    assert not (bench.out / "scratch").exists()
