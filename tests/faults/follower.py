"""A reader that follows the manifests in a loop while others publish and die."""

import threading

from embeddings_pipeline import read
from embeddings_pipeline.errors import LocationNotFoundError
from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage.manifests import DeliveryManifest, load
from tests.faults.backend import Backend
from tests.faults.plan import rows_of


class Follower(threading.Thread):
    """Reads the whole current set again and again; `problems` says where it was neither the one nor the other.

    A file that is gone is no problem where the manifest is a new one by then: the reader looks again. `looks` counts
    sets that were read whole, `seen` which versions they were, `again` how often it had to look again.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(daemon=True)
        self.backend = backend
        self.location = str(backend.bench.output.root)
        self.s3 = S3Spec(endpoint=backend.endpoint) if backend.endpoint else None
        self.looks = self.again = 0
        self.seen: set[int] = set()
        self.problems: list[str] = []
        self._over = threading.Event()

    def __enter__(self) -> "Follower":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        # Some thirty requests a look: without a pause the reader would have the store to itself.
        pause = 0.2 if self.backend.endpoint else 0.02
        while not self._over.wait(pause) and len(self.problems) < 10:
            self.look()

    def commit(self) -> str | None:
        manifest = load(self.backend.bench.output.manifest, DeliveryManifest)
        return manifest.commit if manifest else None

    def look(self) -> None:
        """Read the set once."""
        before = self.commit()
        try:
            rows = rows_of(read(self.location, s3=self.s3).collect().to_dicts())
        except LocationNotFoundError:
            if before is not None:
                self.problems.append("nothing was published any more")
            return
        except Exception as error:  # noqa: BLE001 (polars has an exception for every way in which a file is gone)
            if self.commit() == before:
                self.problems.append(f"a file of the current set is missing: {error}")
            self.again += 1
            return
        which = [version for version, expected in self.backend.expected.items() if rows == expected]
        self.looks += 1
        self.seen.update(which)
        if not which:
            self.problems.append(f"a mixture of {len(rows)} rows")
