"""Why finished work does not serve: what it was made with, beside what this run would make it with.

What belongs here: listing every difference between the two, and saying what to do. What does not: deciding that work
does not serve (`finished`), which follows from the fingerprint and the part's id alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.manifests import DeliveryManifest, PartManifest, RecordsManifest, RecordsPart, load
from embeddings_pipeline.storage.parts import Output

_UNKNOWN = "not recorded"


def made_with(model: ResolvedModel) -> dict[str, str]:
    """Return all that the fingerprint covers, by the words of the YAML, and a digest of the weights."""
    facts = {f"model.{name}": str(value) for name, value in model.spec.identity().items()}
    return facts | {"weights": model.weights_digest[:16], "fingerprint": model.fingerprint}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return every entry that differs, as ``name (before -> now), …``, in the order of the names."""
    names = sorted(set(before) | set(now))
    changed = [name for name in names if before.get(name) != now.get(name)]
    return ", ".join(f"{name} ({before.get(name, _UNKNOWN)} -> {now.get(name, _UNKNOWN)})" for name in changed)


def unused_work(
    spec: CorpusSpec, output: Output, records: RecordsManifest, current: DeliveryManifest | None, model: ResolvedModel
) -> tuple[str, ...]:
    """Return a sentence for each strategy whose published rows, or finished parts, do not serve this run."""
    staged = [entry for entry in output.staging.files() if entry.name.endswith(".json")]
    found: list[str] = []
    for strategy in spec.strategies:
        found += _published(strategy.name, current, model)
        mine = [entry for entry in staged if entry.name.split("/")[0] == strategy.name]
        found += _of_other_models(strategy.name, mine, model)
        found += _of_other_records(strategy.name, mine, records.parts, model)
    return tuple(found)


def _published(strategy: str, current: DeliveryManifest | None, model: ResolvedModel) -> list[str]:
    before = current.find(model.slug, strategy) if current else None
    if before is None or before.fingerprint == model.fingerprint or not before.files:
        return []
    rows = sum(file.rows for file in before.files)
    known = before.made_with or {"fingerprint": before.fingerprint}
    return [
        f"the {rows} published texts of strategy '{strategy}' are embedded again, since these differ: "
        f"{_comparable(known, model)}; set them back to keep what is published"
    ]


def _of_other_models(strategy: str, staged: Sequence[FileEntry], model: ResolvedModel) -> list[str]:
    others = Counter(entry.name.split("/")[1] for entry in staged)
    others.pop(model.fingerprint, None)
    found: list[str] = []
    for fingerprint, count in sorted(others.items()):
        entries = (entry for entry in staged if entry.name.split("/")[1] == fingerprint)
        first = next((part for entry in entries if (part := _part(entry)) is not None), None)
        if first is None:
            continue
        known = first.made_with or {"fingerprint": fingerprint}
        found.append(
            f"{count} parts of strategy '{strategy}' that run '{first.run_id}' has finished and not published do not "
            f"serve, since these differ: {_comparable(known, model)}; to use them, set these back and run again "
            "before anything else is published, which removes them"
        )
    return found


def _of_other_records(
    strategy: str, staged: Sequence[FileEntry], parts: Sequence[RecordsPart], model: ResolvedModel
) -> list[str]:
    wanted = {f"part-{part.id}.json" for part in parts if part.strategy == strategy}
    names = [entry.name.split("/")[2] for entry in staged if entry.name.split("/")[1] == model.fingerprint]
    others = [name for name in names if name.startswith("part-") and name not in wanted]
    if not others:
        return []
    return [
        f"{len(others)} parts of strategy '{strategy}' that an earlier run has finished and not published do not "
        "serve, since their records have changed or were cut otherwise (part_texts, limit, offset); their texts are "
        "embedded again, unless the corpus is set back and run again before anything else is published"
    ]


def _part(entry: FileEntry) -> PartManifest | None:
    return load(entry.location, PartManifest) if "/part-" in entry.name else None


def _comparable(before: Mapping[str, str], model: ResolvedModel) -> str:
    """Return the differences; of one whose makers are not recorded, only the fingerprint can be told."""
    now = made_with(model)
    return differences(before, now if len(before) > 1 else {"fingerprint": now["fingerprint"]})
