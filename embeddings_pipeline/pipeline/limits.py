"""Where a run has to stop: a disk that takes no more, and more rejects than a corpus allows.

What belongs here: these checks, shared by the use cases. What does not: rejecting a text (`extraction`,
`batches`).
"""

import errno
import functools
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from embeddings_pipeline.errors import OutputUnwritableError, TooManyRejectsError
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.parts import Output

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO}

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_a_sentence(
    use_case: Callable[Concatenate[CorpusSpec, _Arguments], _Result],
) -> Callable[Concatenate[CorpusSpec, _Arguments], _Result]:
    """Make a use case raise `OutputUnwritableError` where the disk takes no more."""

    @functools.wraps(use_case)
    def guarded(spec: CorpusSpec, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return use_case(spec, *args, **kwargs)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            where = error.filename2 or error.filename or spec.output.location
            raise OutputUnwritableError(str(where), (error.strerror or str(error)).splitlines()[0]) from error

    return guarded


def check_rejects(spec: CorpusSpec, rejected: int, read: int, reasons: Mapping[str, int], output: Output) -> None:
    """Raise `TooManyRejectsError` if a delivery has more rejects than the corpus allows."""
    limit = spec.max_rejects.broken(rejected, read) if spec.max_rejects is not None else None
    if limit is not None:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()) if count)
        raise TooManyRejectsError(rejected, read, limit, shown, str(output.rejects))
