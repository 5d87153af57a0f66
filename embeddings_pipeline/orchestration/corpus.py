"""The `Corpus` component: one corpus YAML becomes its assets, checks, jobs, schedule and sensor.

What belongs here: reading corpus YAMLs through Dagster's component trees, from the package's `defs/`
and from a folder outside it. What does not: the YAML's shape (`settings.CorpusSpec`) and what the
definitions do (`assets`, `checks`, `jobs`, `schedules`, `sensors`).
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Self

import dagster as dg
from pydantic import BaseModel, ConfigDict

from embeddings_pipeline.corpora import DEFS_FILE, PACKAGE_DEFS, fill_variables
from embeddings_pipeline.errors import CorpusSpecError, EmbeddingsError, LocationNotFoundError
from embeddings_pipeline.orchestration.assets import build_assets
from embeddings_pipeline.orchestration.jobs import build_discover_job, build_job, job_name
from embeddings_pipeline.orchestration.schedules import build_schedule
from embeddings_pipeline.orchestration.sensors import build_sensor
from embeddings_pipeline.settings import CorpusSpec, Environment


class _Attributes(BaseModel):
    """Any attributes: `CorpusSpec` checks them once `{{ env.X }}` is resolved, and says more in one sentence."""

    model_config = ConfigDict(extra="allow")


class Corpus(dg.Component):
    """A named source of records with its strategies and its model.

    Gives the assets `<name>/records`, `<name>/embeddings` and `<name>/dataset` with their checks, `<name>_job`,
    `<name>_discover`, and `<name>_schedule` and `<name>_sensor` where the YAML has them.
    """

    def __init__(self, spec: CorpusSpec, where: str) -> None:
        self.spec = spec
        self.where = where

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model that Dagster reads the attributes with."""
        return _Attributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Build the corpus from its YAML.

        Raises:
            CorpusSpecError: naming the file, the field, its value and what would be right.
        """
        where = str(context.path / DEFS_FILE if context.path.is_dir() else context.path)
        raw = attributes.model_dump(exclude_unset=True) if attributes else {}
        return cls(CorpusSpec.parse(fill_variables(raw, Environment.read(), Path(where)), where), where)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the corpus's definitions.

        Raises:
            CorpusSpecError: owners, kinds, deps or a cron expression that Dagster does not take.
        """
        try:
            return _definitions(self.spec)
        except (dg.DagsterInvalidDefinitionError, dg.DagsterInvariantViolationError) as error:
            raise CorpusSpecError(f"corpus file {self.where}: {error}") from error


def _definitions(spec: CorpusSpec) -> dg.Definitions:
    job = build_job(spec)
    return dg.Definitions(
        assets=build_assets(spec),
        jobs=[job, build_discover_job(spec)],
        schedules=[build_schedule(spec, spec.schedule, job)] if spec.schedule else [],
        sensors=[build_sensor(spec, spec.sensor, job)] if spec.sensor else [],
    )


def load_corpora(folder: str | None) -> tuple[list[Corpus], dg.Definitions]:
    """Return the package's corpora and those of a folder outside it, and their definitions.

    Args:
        folder: holds `<corpus>/defs.yaml` files; None for none.

    Raises:
        EmbeddingsError: what is wrong with a YAML, without Dagster's exceptions around it.
    """
    tree = _tree(PACKAGE_DEFS)
    # Dagster marks the links from an asset to its YAML line as beta, with a warning for each.
    with warnings.catch_warnings(), _plain_errors():
        warnings.simplefilter("ignore", dg.BetaWarning)
        bundled = tree.get_all_components(Corpus)
        outside = _outside(folder) if folder else []
        _refuse_same_names([*bundled, *outside])
        # Definitions of two trees do not merge.
        definitions = dg.Definitions.merge(tree.build_defs(), *map(dg.build_defs_for_component, outside))
    return [*bundled, *outside], definitions


def check_run_configs(corpora: Iterable[Corpus], definitions: dg.Definitions) -> None:
    """Check the run configs of the corpora's jobs against what the assembled jobs take.

    Raises:
        CorpusSpecError: naming the file and what the run config may hold.
    """
    for corpus in corpora:
        if corpus.spec.run_config:
            try:
                dg.validate_run_config(definitions.resolve_job_def(job_name(corpus.spec.name)), corpus.spec.run_config)
            except dg.DagsterInvalidConfigError as error:
                problems = "; ".join(problem.message for problem in error.errors)
                raise CorpusSpecError(
                    f"corpus file {corpus.where}: run_config does not fit {job_name(corpus.spec.name)}: {problems}"
                ) from None


def _outside(folder: str) -> list[Corpus]:
    path = _existing(folder)
    # Dagster's component tree fails on a folder without any: that of a team before its first corpus.
    return _tree(path).get_all_components(Corpus) if any(path.rglob(DEFS_FILE)) else []


def _existing(folder: str) -> Path:
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise LocationNotFoundError(
            "EMBEDDINGS_CORPORA", folder, f"name a folder that holds <corpus>/{DEFS_FILE} files, or unset it"
        )
    return path


def _tree(folder: Path) -> dg.ComponentTree:
    """Return the component tree of a folder.

    Dagster finds definitions below a module, and a folder of YAML files needs no more of one than a
    path. `load_from_defs_folder` would do for the package's folder, but it reads a location name from
    dg.toml and warns twelve times where the CLI's `-m` gives the location another one.
    """
    module = ModuleType("embeddings_corpora")
    module.__file__ = str(folder / "__init__.py")
    module.__path__ = [str(folder)]
    return dg.ComponentTree.from_module(defs_module=module, project_root=folder)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise our own errors without the exceptions that Dagster wraps around them, so that they are read last."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, EmbeddingsError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause.with_traceback(None) from None


def _refuse_same_names(corpora: Iterable[Corpus]) -> None:
    files: dict[str, str] = {}
    for corpus in corpora:
        if other := files.get(corpus.spec.name):
            raise CorpusSpecError(
                f"corpus file {corpus.where}: name '{corpus.spec.name}' is taken by {other}; "
                "give each corpus its own name"
            )
        files[corpus.spec.name] = corpus.where
