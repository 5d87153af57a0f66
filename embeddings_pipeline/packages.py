"""Files inside installed packages: what `package:module/path` stands for, in sources and models alike.

What belongs here: finding them. What does not: reading them (`storage`, `models`).
"""

from importlib import resources, util
from pathlib import Path

from embeddings_pipeline.errors import LocationNotFoundError

PREFIX = "package:"


def path_in_package(text: str, field: str, distribution: str | None = None) -> Path:
    """Return the path that `package:module/path` names, whether anything is there or not.

    Args:
        text: the location as a YAML gives it.
        field: where it stands, for the message.
        distribution: what pip installs to bring the module, where that is known.

    Raises:
        LocationNotFoundError: the module is not installed.
    """
    module, _, inside = text.removeprefix(PREFIX).partition("/")
    if not _installed(module):
        brings = f"it: pip install {distribution}" if distribution else f"the module '{module}'"
        raise LocationNotFoundError(field, text, f"install the package that brings {brings}")
    return Path(str(resources.files(module))) / inside


def _installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        # A parent that is not installed, or no name at all.
        return False
