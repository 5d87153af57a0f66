"""Models as a `.zip`: taking one apart safely, and making one.

What belongs here: names that cannot escape, links that are refused, sizes that are bounded. What does
not: which files are needed (`folder`).
"""

import shutil
import stat
import zipfile
from pathlib import Path

from embeddings_pipeline.errors import ModelFetchError, UnsafeModelError
from embeddings_pipeline.models.folder import needed, safe_name

_MOST_FILES = 10_000
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in an archive of ours, so that the same model is the same archive."""


def extract(archive: Path, into: Path, model: str, *, pickles: bool = False) -> None:
    """Write the files of a model from an archive below a folder; one top folder around them is left out.

    Raises:
        ModelFetchError: it is no archive, is damaged, or does not fit on the disk.
        UnsafeModelError: a name would leave the folder, or an entry is a link.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = {
                safe_name(info.filename, model): info for info in opened.infolist() if not info.filename.endswith("/")
            }
            _check(entries, model, into)
            top = _top(list(entries))
            inside = {name.removeprefix(top): info for name, info in entries.items()}
            for name in needed(inside, model, pickles=pickles):
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(inside[name]) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise ModelFetchError(
            model, f"'{archive}' is no zip archive that can be read ({error})", "make it again"
        ) from error
    except OSError as error:
        raise ModelFetchError(
            model, f"'{archive}' cannot be taken apart in {into} ({error})", "run it again"
        ) from error


def make(folder: Path, archive: Path) -> None:
    """Write the files of a folder into an archive, which has its name when it is finished.

    Weights are stored as they are, since they do not compress; equal folders give equal archives.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(archive.name + ".part")
    with zipfile.ZipFile(part, "w") as opened:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _EPOCH)
            info.external_attr = 0o644 << 16
            info.file_size = file.stat().st_size
            with file.open("rb") as source, opened.open(info, "w") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    part.replace(archive)


def _check(entries: dict[str, zipfile.ZipInfo], model: str, into: Path) -> None:
    if len(entries) > _MOST_FILES:
        raise UnsafeModelError(
            model, f"is an archive of {len(entries)} files", "use one that holds a model and nothing else"
        )
    for name, info in entries.items():
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UnsafeModelError(
                model, f"is an archive in which {name!r} is a link", "make it with the files themselves"
            )
    size, free = sum(info.file_size for info in entries.values()), shutil.disk_usage(into).free
    if size > free:
        reason = f"it unpacks to {size:,} bytes, and {into} has {free:,} bytes free"
        raise ModelFetchError(model, reason, "free space, then run it again")


def _top(names: list[str]) -> str:
    """Return the folder that is around all files, if the model begins inside of it, else nothing."""
    tops = {name.partition("/")[0] for name in names}
    if len(tops) != 1 or "/" not in names[0]:
        return ""
    top = f"{tops.pop()}/"
    return top if {f"{top}config.json", f"{top}modules.json"} & set(names) else ""
