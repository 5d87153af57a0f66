"""The use cases: extract, embed and publish a delivery, without Dagster.

What belongs here: the order of things, resume, and counting. What does not: how files are laid out
(`storage`), how vectors are computed (`inference`), and what a person sees of it (`orchestration`,
`cli`).
"""

from embeddings_pipeline.pipeline.deliveries import Due, discover, due
from embeddings_pipeline.pipeline.embedding import PartOutput, embed, embed_part
from embeddings_pipeline.pipeline.extraction import extract
from embeddings_pipeline.pipeline.preflight import preflight
from embeddings_pipeline.pipeline.progress import attach_log_handler
from embeddings_pipeline.pipeline.publication import publish

__all__ = [
    "Due",
    "PartOutput",
    "attach_log_handler",
    "discover",
    "due",
    "embed",
    "embed_part",
    "extract",
    "preflight",
    "publish",
]
