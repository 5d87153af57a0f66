"""What `embeddings create-embeddings` is asked for, as a corpus: a declared one, or one made of options.

What belongs here: which options go together, and the corpus that they mean. What does not: the options'
words (`create`) and the work (`pipeline`).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import click

from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.pipeline.lines import lines_place
from embeddings_pipeline.settings import CorpusSpec, Environment
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.s3 import locate

_WAYS = (
    "name what to embed: --corpus NAME, or --dataset-location with --run-id or --source, or --input-jsonl FILE; "
    "see `embeddings create-embeddings --help`"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that say what to embed and where it goes, as they were given."""

    corpus: str | None
    delivery: tuple[str, ...]
    model_uri: str | None
    model_path: str | None
    dataset_location: str | None
    input_jsonl: str | None
    id_field: str | None
    strategy: tuple[str, ...]
    run_id: str | None
    source: str | None
    output_jsonl: str | None

    def of_a_declared_corpus(self, environment: Environment) -> CorpusSpec:
        """Return the corpus that --corpus names; its YAML says what the other options would."""
        given = [
            f"--{name.replace('_', '-')}"
            for name in (
                "model_uri",
                "model_path",
                "dataset_location",
                "input_jsonl",
                "id_field",
                "strategy",
                "run_id",
                "source",
            )
            if getattr(self, name)
        ]
        if given:
            raise click.UsageError(
                f"--corpus {self.corpus} says where records come from, how and with which model; "
                f"leave {' and '.join(given)} out, or --corpus"
            )
        return find_corpus(self.corpus or "", environment)

    def of_options(self, environment: Environment, part: str) -> tuple[CorpusSpec, Place | None]:
        """Return the corpus that the options mean, and its working folder where it goes when all is done.

        `part` says which slice of the records is asked for: slices may be embedded at the same time, so
        each has manifests of its own.
        """
        if not self.input_jsonl and not self.dataset_location:
            raise click.UsageError(_WAYS)
        if self.delivery:
            raise click.UsageError("--delivery belongs to --corpus; leave it out")
        if not self.strategy:
            raise click.UsageError("--strategy is missing; add --strategy full_record (repeatable)")
        name, path = self.model_uri or environment.model_uri, self.model_path
        if name is None:
            raise click.UsageError("--model-uri is missing; name a model, or set TE_MODEL_URI")
        if path is None and self.model_uri in (None, environment.model_uri):
            path = environment.model_path
        model = {"name": name} | ({"source": path} if path else {})
        source = self._source()
        if self.output_jsonl:
            lines_place(self.output_jsonl)
            if self.output_jsonl == self.input_jsonl:
                raise click.UsageError(f"--output-jsonl is --input-jsonl, {self.input_jsonl}; name another file")
            digest = _digest(source, self.strategy, model, part)
            location = work_location(self.output_jsonl, digest)
            output, corpus, work = {"location": location}, "adhoc", locate(location, "output-jsonl")
        elif self.dataset_location:
            output, work = {"location": self.dataset_location, "layout": "timdex"}, None
            words = self.run_id or self.source or "lines"
            corpus = f"cli_{re.sub('[^a-z0-9]+', '_', words.lower())[:48].strip('_')}_{_digest(source, part)}"
        else:
            raise click.UsageError(
                "--input-jsonl needs a place for the embeddings; add --output-jsonl FILE or --dataset-location"
            )
        attributes = {
            "name": corpus,
            "source": source,
            "strategies": [{"name": strategy} for strategy in self.strategy],
            "model": model,
            "output": output,
        }
        return CorpusSpec.parse(attributes, "(the command line's options)"), work

    def _source(self) -> dict[str, Any]:
        if self.input_jsonl:
            if self.run_id or self.source:
                raise click.UsageError("--input-jsonl takes every line of its file; leave --run-id and --source out")
            if self.id_field and self.dataset_location and not self.output_jsonl:
                raise click.UsageError(
                    "--id-field reads lines that are no TIMDEX records, which do not go into a TIMDEX dataset; "
                    "use --output-jsonl"
                )
            if self.id_field:
                return {"kind": "jsonl", "location": self.input_jsonl, "id": self.id_field}
            return {"kind": "jsonl", "location": self.input_jsonl, "envelope": "timdex"}
        if self.id_field:
            raise click.UsageError("--id-field belongs to --input-jsonl; leave it out")
        if bool(self.run_id) == bool(self.source):
            raise click.UsageError(
                "--dataset-location needs --run-id (the records of a run) or --source (a source's current records), "
                "one of them"
            )
        which = {"run_id": self.run_id} if self.run_id else {"source": self.source}
        return {"kind": "timdex", "location": self.dataset_location, **which}


def work_location(target: str, digest: str) -> str:
    """Return the hidden folder beside a file of lines where the work for it is kept until it is written."""
    folder, slash, name = target.rpartition("/")
    return f"{folder}{slash}.{name}.{digest}.work"


def _digest(*facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
