"""How much memory there is on a device, who uses it, and giving it back.

What belongs here: reading the counters of the kernel, the CUDA driver and torch, and the size of
weights in files. What does not: deciding what fits (`cache`). Importing this module imports no torch.
"""

import ctypes
import functools
import gc
import json
import struct
import sys
import threading
import time
from math import prod
from pathlib import Path
from typing import Any

import psutil

from embeddings_pipeline.inference.engine import is_out_of_memory
from embeddings_pipeline.models.store import ResolvedModel

__all__ = [
    "PeriodicTrim",
    "device_memory",
    "expected_bytes",
    "is_out_of_memory",
    "return_memory",
    "trim_heap",
    "used_by_process",
]

_TRIM_SECONDS = 0.25
"""A trim takes half a millisecond, and the pages that are wanted again some more: under 1 % of the time."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def device_memory(device: str, name: str) -> dict[str, Any]:
    """Describe a device's memory: in use and in total, for people and in bytes.

    On a CPU "in use" is what this process holds, and the total is the machine's or the container's.
    On a CUDA device both are the driver's word about the whole card, whoever uses it.

    Args:
        device: as this process sees it.
        name: as people know it.
    """
    if device == "cpu":
        used, total = used_by_process(device), _machine_total()
    else:
        used, total = _card(int(device.partition(":")[2]))
    return {
        "device": name,
        "memory_usage": _gib(used),
        "total_device_memory": _gib(total),
        "memory_usage_bytes": used,
        "total_device_memory_bytes": total,
        **_torch_accounting(device),
    }


def used_by_process(device: str) -> int:
    """Return the bytes that this process holds: resident on a CPU, reserved by torch on a CUDA device."""
    if device == "cpu":
        return psutil.Process().memory_info().rss
    torch = sys.modules.get("torch")
    return int(torch.cuda.memory_reserved(device)) if torch is not None and torch.cuda.is_initialized() else 0


def return_memory(device: str) -> None:
    """Collect what is unreachable and hand free pages back: glibc and torch would both keep them."""
    gc.collect()
    torch = sys.modules.get("torch")
    if device != "cpu" and torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Hand the free pages of the C heap back to the kernel, where the C library is glibc."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


class PeriodicTrim:
    """Calls `trim_heap` at most every `_TRIM_SECONDS`, whichever thread calls.

    Each thread has a heap of its own in glibc, and keeps there what tensors of all sizes have left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def __call__(self) -> None:
        """Trim if it is time to, and no other thread does."""
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            trim_heap()
            self._next = time.monotonic() + _TRIM_SECONDS
        finally:
            self._lock.release()


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        # Another C library, which has no such call and no such habit.
        return None


def expected_bytes(model: ResolvedModel) -> int:
    """Return the bytes that a model's weights take in its dtype, read from its files' headers; 0 if unknown.

    Weights in several formats count once. What is really loaded is measured afterwards.
    """
    each, total = _BYTES[model.spec.dtype], 0
    for folder in {file.parent for pattern in ("*.safetensors", "*.bin") for file in model.path.rglob(pattern)}:
        safe = sorted(folder.glob("*.safetensors"))
        total += sum(_safetensors_bytes(file, each) for file in safe) if safe else _pickled_bytes(folder)
    return total


def _pickled_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))


def _safetensors_bytes(file: Path, each: int) -> int:
    """Return so many bytes for each number of each tensor that the header lists."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, file.stat().st_size)))
        return sum(each * prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        # Loading it will say what is wrong with it.
        return 0


def _machine_total() -> int:
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def _card(number: int) -> tuple[int, int]:
    """Return used and total bytes of the whole card, without a CUDA context where none exists."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info(number)
        return int(total - free), int(total)
    try:
        return _card_by_nvml(number)
    except (OSError, AttributeError):
        return 0, 0


class _NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _card_by_nvml(number: int) -> tuple[int, int]:
    """Ask the management library, by the bus address that the driver gives the visible device."""
    driver, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    device, bus = ctypes.c_int(0), ctypes.create_string_buffer(32)
    handle, memory = ctypes.c_void_p(), _NvmlMemory()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), number)
        or driver.cuDeviceGetPCIBusId(bus, len(bus), device)
        or nvml.nvmlInit_v2()
        or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    )
    return (0, 0) if failed else (int(memory.used), int(memory.total))


def _torch_accounting(device: str) -> dict[str, int]:
    torch = sys.modules.get("torch")
    if device == "cpu" or torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "allocated_bytes": int(torch.cuda.memory_allocated(device)),
        "reserved_bytes": int(torch.cuda.memory_reserved(device)),
    }


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
