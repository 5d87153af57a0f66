"""`python -m embeddings_pipeline.host`: how `lifecycle` starts a host; people use `embeddings host start`.

What belongs here: becoming a process that is nobody's child. What does not: anything else.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(load: Callable[[Any, str], Any] | None = None) -> None:
    """Fork, let the first process end, and serve in the second; `load` builds encoders another way."""
    parser = argparse.ArgumentParser(prog="embeddings_pipeline.host")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--limits", type=json.loads, required=True)
    parser.add_argument("--ready", type=int, required=True)
    arguments = parser.parse_args()
    os.set_inheritable(arguments.ready, False)
    # Before any thread exists and any large library is imported.
    if os.fork():
        os._exit(0)
    from embeddings_pipeline.host.process import serve
    from embeddings_pipeline.inference.encoder import load_encoder
    from embeddings_pipeline.settings import CacheSettings, HostLimits

    serve(
        arguments.home,
        arguments.device,
        CacheSettings(**arguments.settings),
        HostLimits(**arguments.limits),
        load=load or load_encoder,
        ready=arguments.ready,
    )


if __name__ == "__main__":
    main()
