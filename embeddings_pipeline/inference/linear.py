"""Linear layers on a CPU, by whichever of torch's two matrix libraries is faster on this processor.

What belongs here: the choice between MKL, which torch calls by default, and oneDNN, which it ships as
well, and switching a loaded model's layers over, with the GELU that follows one. What does not: any
other layer, and CUDA.
"""

import functools
import platform
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LEAST_PRODUCTS = 1 << 24
"""Multiplications below which oneDNN's preparation costs more than it saves (`python -m benchmarks.linear`)."""

ROWS = 32
"""oneDNN compiles a kernel for each number of rows and keeps a thousand, 0.2 MB each: multiples of this only."""

_CPU_INFO = Path("/proc/cpuinfo")

_TRIAL = ((128, 64), (96, 64), (96,))
"""Shapes of the rows, weight and bias that show whether the operation is there and right."""

_Product = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor | None", bool], "torch.Tensor"]
"""Of rows, weight, bias, and whether GELU (the exact one, by the error function) is applied to what comes out."""


def product_for(rows: "torch.Tensor", weight: "torch.Tensor") -> _Product | None:
    """Return oneDNN's `rows @ weight.T + bias` where it is the faster one for these, else None.

    *Shape:* rows float[..., inputs]; weight float[outputs, inputs].
    """
    if rows.numel() * weight.shape[0] < _LEAST_PRODUCTS or not _plain(rows, weight):
        return None
    return None if rows.numel() // weight.shape[1] % ROWS else onednn_product()


def rounded_up(rows: int) -> int:
    """Return the least multiple of `ROWS` that is not less."""
    return -(-rows // ROWS) * ROWS


def switch_layers(library: Any) -> Callable[[], None] | None:
    """Let every plain linear layer of a loaded model ask `product_for`.

    Where a feed-forward block applies GELU to what a layer gives, the layer does so itself: oneDNN computes
    it while the numbers are still in the cache (`python -m benchmarks.linear`, gelu_ratio), 1 to 2 % of a model's time.

    Returns:
        A function that undoes it; None where nothing was changed.
    """
    import torch

    if library.device.type != "cpu" or onednn_product() is None:
        return None
    blocks = [(module, module.intermediate_act_fn) for module in library.modules() if _applies_gelu(module)]
    followed = {id(block.dense) for block, _ in blocks}
    switched = [module for module in library.modules() if type(module) is torch.nn.Linear]
    for module in switched:
        module.__class__ = _layer_type(id(module) in followed)
    for block, _ in blocks:
        block.intermediate_act_fn = torch.nn.Identity()

    def undo() -> None:
        for module in switched:
            module.__class__ = torch.nn.Linear
        for block, activation in blocks:
            block.intermediate_act_fn = activation

    return undo


def _applies_gelu(module: Any) -> bool:
    """Whether a module is the half of a feed-forward block that BERT and its kin share: a linear layer, then GELU."""
    import torch

    children = dict(module.named_children())
    return (
        children.keys() == {"dense", "intermediate_act_fn"}
        and type(module.dense) is torch.nn.Linear
        and getattr(module.intermediate_act_fn, "act", None) is torch.nn.functional.gelu
    )


@functools.cache
def onednn_product() -> _Product | None:
    """Return oneDNN's product where it beats MKL's, else None.

    MKL keeps its best kernels for Intel's own processors. On an AMD EPYC with AVX-512, oneDNN took 5 to
    14 % less time at the shapes of BERT small to base, 512 rows and more; on one with AVX2 only, up to 20 % more,
    and 20 to 30 % more with GELU in it (`python -m benchmarks.linear`). Maker and instructions decide and not a
    measurement at load, so that the same machine gives the same bits.
    """
    import torch

    if (_maker(), _instructions()) != ("AuthenticAMD", "AVX512") or not torch.backends.mkldnn.is_available():
        return None
    try:
        operation = torch.ops.mkldnn._linear_pointwise.default

        def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool) -> torch.Tensor:
            return operation(rows, weight, bias, "gelu" if gelu else "none", [], "none" if gelu else "")

        rows, weight, bias = (torch.linspace(-1, 1, prod(shape)).view(shape) for shape in _TRIAL)
        with torch.inference_mode():
            right = torch.nn.functional.linear(rows, weight, bias)
            wanted = ((False, right), (True, torch.nn.functional.gelu(right)))
            works = all(torch.allclose(product(rows, weight, bias, gelu), out, atol=1e-4) for gelu, out in wanted)
    except (AttributeError, RuntimeError):
        # An operation that torch keeps for its compiler: another version may have another one, or none.
        return None
    return product if works else None


def _plain(*tensors: "torch.Tensor") -> bool:
    """Whether these are float32 tensors in the CPU's memory, which oneDNN's operation wants."""
    import torch

    return all(tensor.device.type == "cpu" and tensor.dtype is torch.float32 for tensor in tensors)


@functools.cache
def _layer_type(gelu: bool) -> Any:
    import torch

    class OneDnnLinear(torch.nn.Linear):
        """A linear layer that asks `product_for` first, and applies GELU where nothing after it does."""

        def forward(self, input: "torch.Tensor") -> "torch.Tensor":
            """Apply the layer."""
            if (product := product_for(input, self.weight)) is not None:
                return product(input, self.weight, self.bias, gelu)
            rows = torch.nn.functional.linear(input, self.weight, self.bias)
            return torch.nn.functional.gelu(rows) if gelu else rows

    return OneDnnLinear


def _instructions() -> str:
    """Return the widest vector instructions that torch found: AVX512, AVX2 or others."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _maker() -> str:
    """Return the processor's vendor as Linux names it, or an empty string."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    try:
        lines = _CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
