"""The parts of a strategy and model that wait to be published: finished ones, and those that stay as they are.

What belongs here: reading what is staged at once, and the one file that names all parts that stay. What does not:
deciding which parts those are (`pipeline`), and moving files (`publish`).

With ten million texts there are a thousand parts. A look at each would be a request for each in an object store, so
the folder is listed once, and its manifests are read side by side.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from embeddings_pipeline.storage.location import FileEntry, Place
from embeddings_pipeline.storage.manifests import DatasetFile, KeptParts, PartManifest, dump, load
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.scratch import Scratch

_KEPT = "kept.json"
_READERS = 16
"""Requests at once: a quarter of a second for a thousand manifests of an object store at 4 ms each."""


class StagedParts:
    """What is staged of one strategy and model, as it was when this was made."""

    def __init__(self, output: Output, strategy: str, fingerprint: str) -> None:
        self._folder = output.staged(strategy, fingerprint)
        self._entries = {entry.name: entry for entry in self._folder.files()}
        wanted = [entry for name, entry in self._entries.items() if name.startswith("part-") and name.endswith(".json")]
        self._manifests = {found.part: found for found in _read(wanted, remote=output.root.remote)}
        self._kept: KeptParts | None = load(self._folder / _KEPT, KeptParts) if _KEPT in self._entries else None

    def manifest(self, part: str) -> PartManifest | None:
        """Return the manifest of a finished part."""
        return self._manifests.get(part)

    def holds(self, file: DatasetFile) -> bool:
        """Tell whether a part's file is there with its size."""
        entry = self._entries.get(file.path.rpartition("/")[2])
        return entry is not None and entry.size == file.bytes

    def kept(self, part: str) -> str | None:
        """Return the path of the published file that serves for a part as it is."""
        return None if self._kept is None else self._kept.parts.get(part)

    def keep(self, scratch: Scratch, run_id: str, parts: Mapping[str, str]) -> None:
        """Name the parts that stay as they are, with the paths of their published files; all of them at once.

        Their manifests of an attempt that computed them go: of two answers one would be published and the other shown.
        """
        for part in parts.keys() & self._manifests.keys():
            (self._folder / f"part-{part}.json").delete()
            del self._manifests[part]
        if parts:
            self._kept = KeptParts(run_id, dict(parts))
            scratch.put_text(self._folder / _KEPT, dump(self._kept))
        elif _KEPT in self._entries:
            self._kept = None
            (self._folder / _KEPT).delete()


def _read(entries: list[FileEntry], *, remote: bool) -> list[PartManifest]:
    """Return the manifests that are still there."""
    if not remote:
        found = [load(entry.location, PartManifest) for entry in entries]
    else:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="staged-manifests") as threads:
            found = list(threads.map(_load, (entry.location for entry in entries)))
    return [manifest for manifest in found if manifest is not None]


def _load(place: Place) -> PartManifest | None:
    return load(place, PartManifest)
