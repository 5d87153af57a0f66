"""The corpora that this installation declares, read without Dagster for the command line.

What belongs here: finding corpus YAMLs and resolving `{{ env.X }}` in them. What does not: their
shape (`settings.CorpusSpec`) and what Dagster makes of them (`orchestration.corpus`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, TemplateError, UndefinedError
from jinja2.nativetypes import NativeEnvironment

from embeddings_pipeline.errors import CorpusSpecError, did_you_mean
from embeddings_pipeline.settings import CorpusSpec, Environment

DEFS_FILE = "defs.yaml"
PACKAGE_DEFS = Path(__file__).parent / "defs"
_COMPONENT = "embeddings_pipeline.orchestration.corpus.Corpus"


def find_corpus(name: str, environment: Environment) -> CorpusSpec:
    """Return the corpus of that name, from the package's defs/ or the folder EMBEDDINGS_CORPORA.

    Raises:
        CorpusSpecError: no YAML declares it, or the one that does is wrong.
    """
    folders = [PACKAGE_DEFS, *([Path(environment.corpora).expanduser()] if environment.corpora else [])]
    names: list[str] = []
    for file in sorted(file for folder in folders for file in folder.rglob(DEFS_FILE)):
        attributes = _attributes(file)
        if attributes is None:
            continue
        declared = fill_variables(attributes.get("name"), environment, file)
        if declared == name:
            return CorpusSpec.parse(fill_variables(attributes, environment, file), str(file))
        names.append(str(declared))
    places = " or ".join(str(folder) for folder in folders)
    here = ", ".join(sorted(names)) or "none"
    raise CorpusSpecError(
        f"corpus '{name}' is not declared{did_you_mean(name, names)}; corpora here: {here}; "
        f"add <corpus>/{DEFS_FILE} below {places}"
    )


def _attributes(file: Path) -> Mapping[str, Any] | None:
    """Return what a YAML declares of a corpus; None where it declares something else."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorpusSpecError(
            f"corpus file {file}: this is no YAML ({str(error).splitlines()[0]}); correct it"
        ) from error
    if not isinstance(document, dict) or document.get("type") != _COMPONENT:
        return None
    attributes = document.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def fill_variables(value: Any, environment: Environment, file: Path) -> Any:
    """Fill `{{ env.X }}` in every text of a YAML.

    Dagster's own resolving makes "None" of a variable that is not set, and a path below it of the rest.

    Raises:
        CorpusSpecError: a variable is not set, or the expression is wrong.
    """
    if isinstance(value, dict):
        return {name: fill_variables(item, environment, file) for name, item in value.items()}
    if isinstance(value, list):
        return [fill_variables(item, environment, file) for item in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    try:
        return NativeEnvironment(undefined=StrictUndefined).from_string(value).render(env=environment.variables)
    except UndefinedError as error:
        raise CorpusSpecError(f"corpus file {file}: {value}: {error.message}; set the variable") from error
    except TemplateError as error:
        raise CorpusSpecError(
            f"corpus file {file}: {value}: {error.message}; write a variable as {{{{ env.NAME }}}}"
        ) from error
