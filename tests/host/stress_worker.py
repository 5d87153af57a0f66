"""One process of the stress test: `python -m tests.host.stress_worker HOME SECONDS FOLDER...`; prints its counts."""

import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from embeddings_pipeline.errors import ModelEjectedError, ModelInUseError, ModelNotInCacheError
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.settings import CacheSettings, Environment, ModelSpec
from tests.fakes import vector_of
from tests.host.fake_host import MODULE

SETTINGS = CacheSettings(memory_budget=150, on_full="evict", idle_timeout_s=60)
"""Fits one of the stress test's models of 100 bytes."""


def work(home: Path, seconds: float, folders: list[Path], threads: int) -> Counter[str]:
    """Load, embed, list and eject with so many threads; raise if anything is wrong."""
    hosts = Hosts(home, Environment.read(), module=MODULE)
    models = [resolve(ModelSpec(name=f"tests/{folder.name}", source=str(folder), kind="dense")) for folder in folders]
    cache = RemoteCache("cpu", hosts, SETTINGS)
    done: Counter[str] = Counter()
    wrong: list[BaseException] = []
    until = time.monotonic() + seconds

    def one(number: int) -> None:
        chance = random.Random(number)
        try:
            while time.monotonic() < until and not wrong:
                done[act(cache, chance.choice(models), chance, f"{home.name} {number}")] += 1
        except BaseException as error:  # noqa: BLE001 (raised again by `work`)
            wrong.append(error)

    running = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(seconds + 120)
        if thread.is_alive():
            raise TimeoutError("a thread did not end")
    cache.close()
    if wrong:
        raise wrong[0]
    return done


def act(cache: RemoteCache, model: ResolvedModel, chance: random.Random, who: str) -> str:
    """Do one thing and check what comes of it."""
    verb = chance.choices(["embed", "list", "eject", "load", "force"], [60, 20, 8, 8, 4])[0]
    try:
        if verb == "embed":
            texts = [f"{who} {chance.random()}" for _ in range(chance.randrange(1, 30))]
            with cache.lease(model) as encoder:
                batch = encoder.embed(texts)
            assert batch.dense is not None
            assert batch.dense.tolist() == [vector_of(text).tolist() for text in texts]
        elif verb == "list":
            rows = cache.rows()
            assert sum(row["bytes"] for row in rows) <= SETTINGS.memory_budget
        elif verb == "load":
            assert cache.load(model)["fingerprint"] == model.fingerprint
        else:
            cache.eject(model.name, force=verb == "force")
    except (ModelNotInCacheError, ModelEjectedError, ModelInUseError) as error:
        return f"{verb}: {error.code}"
    return verb


if __name__ == "__main__":
    counts = work(Path(sys.argv[1]), float(sys.argv[2]), [Path(name) for name in sys.argv[3:]], 2)
    print(json.dumps(counts))  # noqa: T201
