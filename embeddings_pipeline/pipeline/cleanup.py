"""The use case of `embeddings gc`: removing what no manifest needs any more.

What belongs here: what of a corpus may go. What does not: how it is found and removed (`storage.collect`).
"""

import dataclasses

from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError
from embeddings_pipeline.pipeline.deliveries import discover
from embeddings_pipeline.pipeline.limits import in_a_sentence
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.collect import Collected, collect, withdraw


@in_a_sentence
def gc(spec: CorpusSpec, *, older_than: float, withdrawn: bool = False) -> Collected:
    """Remove orphans, staging and published records older than so many seconds.

    Args:
        spec: the corpus.
        older_than: the age from which on something may go; in an object store longer than any run.
        withdrawn: remove published deliveries that the source does not have any more, too.
    """
    output = output_of(spec, Delivery(spec.name))
    output.check_owner()
    gone = withdraw(output, _to_withdraw(spec)) if withdrawn else ()
    return dataclasses.replace(collect(output, older_than), withdrawn=gone)


def withdrawn_deliveries(spec: CorpusSpec) -> tuple[str, ...]:
    """Return the deliveries that are published and that the source does not have any more."""
    return discover(spec).withdrawn


def _to_withdraw(spec: CorpusSpec) -> tuple[str, ...]:
    """Return what is withdrawn; a source that is gone or has nothing was more likely unmounted or moved."""
    found = discover(spec)
    if found.withdrawn and not found.deliveries:
        raise ConfigurationError(
            f"source.location '{found.location}' has no delivery at all, and {len(found.withdrawn)} are published: if "
            f"they are to go, remove output.location '{spec.output.location}'; else bring the source back"
        )
    if found.missing is not None:
        raise LocationNotFoundError(
            "source.location", spec.source.location, "so that nobody can tell what was withdrawn; bring the source back"
        )
    return found.withdrawn
