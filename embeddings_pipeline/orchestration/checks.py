"""The asset checks of a corpus.

What belongs here: what a check is called, what it says and the numbers that it shows. What does not:
counting (`pipeline`), looking at vectors (`storage`), and the identities themselves (`reports.PublishReport`).

| check | asset | fails when |
| --- | --- | --- |
| rejects | records, embeddings | more texts were rejected than `max_rejects` allows; the step fails too |
| truncated | embeddings | a larger share of texts was cut than `max_truncated` allows; only warns |
| identities | dataset | a text is not accounted for, or a vector not published |
| vectors | dataset | new vectors are not finite, zero, all the same, or have another width or length than the model's |
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from embeddings_pipeline.errors import TooManyRejectsError
from embeddings_pipeline.records import Counts, Delivery
from embeddings_pipeline.reports import EmbedReport, ExtractReport, PublishReport
from embeddings_pipeline.settings import CorpusSpec

IDENTITIES, VECTORS, REJECTS, TRUNCATED = "identities", "vectors", "rejects", "truncated"

LENGTH_TOLERANCE = {"float32": 1e-3, "float16": 1e-2}
"""How far from 1 the length of a normalised vector may be, by the precision in which it is stored."""

_CHECKS = {"records": (REJECTS,), "embeddings": (REJECTS, TRUNCATED), "dataset": (IDENTITIES, VECTORS)}
_ONLY_WARNS = (TRUNCATED,)


def check_specs(spec: CorpusSpec, stage: str) -> list[dg.AssetCheckSpec]:
    """Declare the checks of one of a corpus's assets."""
    described = {
        IDENTITIES: "Every text is accounted for (read = embedded + skipped + rejected) and every vector is "
        "published (published rows = embedded + skipped; at least that for a run with limit or offset).",
        VECTORS: "The vectors that were published are finite, not zero and not all the same, have the width that the "
        "model has, and length 1 where the model normalises.",
        REJECTS: f"Not more texts are rejected than the corpus allows ({_rejects_allowed(spec)}).",
        TRUNCATED: "Not more texts are longer than the model takes, and so embedded from their head, than the corpus "
        f"allows ({_share_allowed(spec)}). Only warns.",
    }
    return [
        dg.AssetCheckSpec(
            name,
            asset=dg.AssetKey([spec.name, stage]),
            blocking=name not in _ONLY_WARNS,
            description=described[name],
        )
        for name in _CHECKS[stage]
    ]


def records_results(spec: CorpusSpec, delivery: Delivery, report: ExtractReport) -> list[dg.AssetCheckResult]:
    """Judge extracted records."""
    return [_of(delivery, _rejects(spec, "records", report.counts, report.rejects_by_reason))]


def embeddings_results(spec: CorpusSpec, delivery: Delivery, report: EmbedReport) -> list[dg.AssetCheckResult]:
    """Judge an embedded delivery."""
    results = [_rejects(spec, "embeddings", report.counts, report.rejects_by_reason), _truncated(spec, report)]
    return [_of(delivery, result) for result in results]


def dataset_results(spec: CorpusSpec, delivery: Delivery, report: PublishReport) -> list[dg.AssetCheckResult]:
    """Judge a published delivery."""
    return [_of(delivery, result) for result in (_identities(spec, report), _vectors(spec, report))]


def too_many_rejects(
    spec: CorpusSpec, delivery: Delivery, stage: str, error: TooManyRejectsError
) -> dg.AssetCheckResult:
    """Return the failed check of a step that stopped because of its rejects."""
    metadata = {"rejected": error.rejected, "read": error.read, "allowed": _rejects_allowed(spec)}
    return _of(delivery, _result(spec, stage, REJECTS, str(error), metadata, passed=False))


def _of(delivery: Delivery, result: dg.AssetCheckResult) -> dg.AssetCheckResult:
    """Name the delivery, where there are several: Dagster shows the latest result of a check, of whichever it was.

    It has checks by partition too, which it calls not ready for production.
    """
    if delivery == Delivery(delivery.corpus):
        return result
    named = {"delivery": dg.MetadataValue.text(delivery.name), **result.metadata}
    return result._replace(description=f"{delivery.name}: {result.description}", metadata=named)


def _rejects(spec: CorpusSpec, stage: str, counts: Counts, reasons: Mapping[str, int]) -> dg.AssetCheckResult:
    share = counts.rejected / counts.read if counts.read else 0.0
    limit = spec.max_rejects.broken(counts.rejected, counts.read) if spec.max_rejects is not None else None
    shown = ", ".join(f"{reason} {texts}" for reason, texts in sorted(reasons.items()) if texts)
    return _result(
        spec,
        stage,
        REJECTS,
        f"{counts.rejected:,} of {counts.read:,} texts rejected ({shown or 'none'}); {_rejects_allowed(spec)}",
        {"rejected": counts.rejected, "read": counts.read, "share": round(share, 6), "allowed": _rejects_allowed(spec)},
        passed=limit is None,
    )


def _truncated(spec: CorpusSpec, report: EmbedReport) -> dg.AssetCheckResult:
    share, embedded = report.truncated_share, report.counts.embedded
    passed = spec.max_truncated is None or share <= spec.max_truncated
    said = f"{report.truncated:,} of {embedded:,} texts are longer than the model takes ({share:.2%}); "
    said += _share_allowed(spec)
    if not passed:
        said += ": use a model that takes longer texts, or a strategy that gives shorter ones"
    return _result(
        spec,
        "embeddings",
        TRUNCATED,
        said if embedded else "no text was embedded",
        {"truncated": report.truncated, "embedded": embedded, "share": round(share, 6)},
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
    )


def _identities(spec: CorpusSpec, report: PublishReport) -> dg.AssetCheckResult:
    counts = report.counts
    accounted = counts.embedded + counts.skipped + counts.rejected
    expected = counts.embedded + counts.skipped
    relation = "at least" if report.partial else "exactly"
    return _result(
        spec,
        "dataset",
        IDENTITIES,
        f"{counts.read} read, {accounted} accounted for; {report.published_rows} rows published, "
        f"{relation} {expected} expected",
        {
            "read": counts.read,
            "embedded": counts.embedded,
            "skipped": counts.skipped,
            "rejected": counts.rejected,
            "accounted_for": accounted,
            "published_rows": report.published_rows,
            "expected_rows": expected,
            "partial_run": report.partial,
        },
        passed=report.identities_hold,
    )


def _vectors(spec: CorpusSpec, report: PublishReport) -> dg.AssetCheckResult:
    seen = report.vectors
    problems = _vector_problems(spec, report)
    if not seen.rows:
        said = f"no new file; the {report.published_rows:,} rows were looked at when they were published"
    elif problems:
        said = f"of {seen.rows:,} new rows {'; '.join(problems)}; look at the model, then run with force: true"
    else:
        said = f"{seen.rows:,} new rows: finite, of length {seen.min_norm:.4g} to {seen.max_norm:.4g}"
    return _result(
        spec,
        "dataset",
        VECTORS,
        said,
        {
            "rows": seen.rows,
            "width": seen.width,
            "non_finite": seen.non_finite,
            "min_norm": float(seen.min_norm),
            "max_norm": float(seen.max_norm),
            "constant": seen.constant,
            "normalized": report.normalized,
        },
        passed=not problems,
    )


def _vector_problems(spec: CorpusSpec, report: PublishReport) -> list[str]:
    """Say what is wrong with the vectors that were taken in; a sparse one may well be empty."""
    seen = report.vectors
    problems: list[str] = []
    if not seen.rows:
        return problems
    index = report.schema.get_field_index("embedding")
    dense = index >= 0
    width = report.schema.field(index).type.list_size if dense else 0
    if seen.non_finite:
        problems.append(f"{seen.non_finite:,} are not finite")
    if dense and seen.width != width:
        problems.append(f"the width is {seen.width}, and the model has {width}")
    if dense and seen.min_norm == 0:
        problems.append("some are zero")
    tolerance = LENGTH_TOLERANCE[spec.model.precision]
    if report.normalized and max(abs(seen.min_norm - 1), abs(seen.max_norm - 1)) > tolerance:
        problems.append(
            f"the lengths are {seen.min_norm:.4g} to {seen.max_norm:.4g}, and the model's vectors have length 1"
        )
    if seen.constant:
        problems.append("all are the same, though the texts differ")
    return problems


def _result(
    spec: CorpusSpec,
    stage: str,
    name: str,
    description: str,
    metadata: Mapping[str, Any],
    *,
    passed: bool,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey([spec.name, stage]),
        check_name=name,
        passed=passed,
        severity=severity,
        description=description,
        metadata=metadata,
    )


def _rejects_allowed(spec: CorpusSpec) -> str:
    limits = spec.max_rejects
    allowed = [
        *([f"{limits.count:,} texts"] if limits is not None and limits.count is not None else []),
        *([f"{limits.share:.2%} of the texts"] if limits is not None and limits.share is not None else []),
    ]
    return f"max_rejects allows {' and '.join(allowed)}" if allowed else "max_rejects sets no limit"


def _share_allowed(spec: CorpusSpec) -> str:
    return (
        "max_truncated sets no limit"
        if spec.max_truncated is None
        else f"max_truncated allows {spec.max_truncated:.0%}"
    )
