"""Pickled weights rewritten as safetensors, only when somebody asks for it.

What belongs here: starting the process that reads the pickle (`unpickle`), and replacing files. What
does not: reading one in this process, ever.
"""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from embeddings_pipeline.errors import UnsafeModelError
from embeddings_pipeline.models.folder import only_pickled

CHILD_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
"""All that a child process sees: no token, no credentials."""


def convert(folder: Path, model: str) -> list[str]:
    """Rewrite the pickled weights of a folder in place and return what was rewritten.

    Raises:
        UnsafeModelError: a pickle holds more than tensors, or is damaged.
    """
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for name in only_pickled(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()):
        by_folder[(folder / name).parent].append(folder / name)
    for place, pickles in by_folder.items():
        target = place / "model.safetensors"
        part = target.with_suffix(".part")
        command = [sys.executable, "-I", "-m", "embeddings_pipeline.models.unpickle", str(part), *map(str, pickles)]
        done = subprocess.run(command, env=CHILD_ENVIRONMENT, capture_output=True, text=True, check=False)
        if done.returncode:
            part.unlink(missing_ok=True)
            said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise UnsafeModelError(
                model,
                f"has in {pickles[0].name} a pickle that holds more than tensors, or is damaged ({said[:200]})",
                "do not use it: ask its makers for safetensors",
            )
        part.replace(target)
        for pickle in pickles:
            pickle.unlink()
        (place / "pytorch_model.bin.index.json").unlink(missing_ok=True)
    return sorted(file.relative_to(folder).as_posix() for files in by_folder.values() for file in files)
