"""Run as a process of its own: read pickled weights, write them as safetensors.

What belongs here: nothing but that. torch reads with `weights_only`, which builds tensors and refuses
any other object; whatever gets past it gets into a process without our environment and its tokens.
"""

import sys
from pathlib import Path


def main(target: str, *sources: str) -> None:
    """Join the tensors of some pickles in one safetensors file."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for source in sources:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
        for name, value in loaded.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{Path(source).name} holds {name!r}, which is no tensor but {type(value).__name__}")
            # A copy: safetensors refuses tensors that share their memory.
            tensors[str(name)] = value.detach().clone().contiguous()
    save_file(tensors, target, metadata={"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
