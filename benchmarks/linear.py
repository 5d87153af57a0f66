"""Which of torch's two CPU matrix libraries is faster here: `python -m benchmarks.linear`.

What belongs here: MKL's linear layer against oneDNN's, in turn, one thread, at the shapes of BERT's small,
base and large layers, and GELU after oneDNN's layer against within it. What does not: the choice that
follows from it (`inference.linear`).
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import report
from benchmarks.spread import spread

_SHAPES = ((128, 512), (384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768))
_ROWS = (16, 64, 256, 512, 1024, 2048)


def _cpu_seconds(call: Callable[[], Any], times: int) -> float:
    started = time.thread_time()
    for _ in range(times):
        call()
    return time.thread_time() - started


def measure(rows: int, inputs: int, outputs: int, rounds: int) -> dict[str, Any]:
    """Return MKL's seconds over oneDNN's, by thread time, and the largest relative difference of their results.

    `gelu_ratio` is oneDNN's layer with GELU after it over the one that applies it itself.
    """
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    operation = torch.ops.mkldnn._linear_pointwise.default

    def mkl() -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def onednn() -> torch.Tensor:
        return operation(x, weight, bias, "none", [], "")

    def onednn_then_gelu() -> torch.Tensor:
        return torch.nn.functional.gelu(onednn())

    def onednn_with_gelu() -> torch.Tensor:
        return operation(x, weight, bias, "gelu", [], "none")

    times = max(1, round(2e8 / (rows * inputs * outputs)))
    reference = mkl()
    difference = float((onednn() - reference).abs().max() / reference.abs().max())
    ratios = [_cpu_seconds(mkl, times) / _cpu_seconds(onednn, times) for _ in range(rounds)]
    gelus = [_cpu_seconds(onednn_then_gelu, times) / _cpu_seconds(onednn_with_gelu, times) for _ in range(rounds)]
    name = f"{rows}x{inputs}x{outputs}"
    return (
        spread(ratios).keys(f"ratio.{name}")
        | spread(gelus).keys(f"gelu_ratio.{name}")
        | {f"max_relative_difference.{name}": difference}
    )


def main(argv: list[str] | None = None) -> None:
    """Measure all shapes and print a table."""
    arguments = report.parser(
        "MKL's linear layer against oneDNN's on one thread; over 1, oneDNN is faster."
    ).parse_args(argv)
    torch.set_num_threads(1)
    rounds = 2 if arguments.quick else 15
    figures: dict[str, Any] = {}
    with torch.inference_mode():
        for rows in _ROWS[:2] if arguments.quick else _ROWS:
            for inputs, outputs in _SHAPES:
                figures |= measure(rows, inputs, outputs, rounds)
    report.finish("linear", figures, arguments)


if __name__ == "__main__":
    main()
