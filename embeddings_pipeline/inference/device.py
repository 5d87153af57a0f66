"""Which devices there are, under which one name, and how many cores may be used.

What belongs here: spelling of device names, asking the CUDA driver (not torch: that would take
seconds and a context), and the limits of cgroup and affinity. What does not: choosing a device
(`execution.config` does) and anything that computes on one.
"""

import ctypes
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from embeddings_pipeline.errors import DeviceUnavailableError, UnknownDeviceError

_SPELLING = re.compile(r"(cpu|cuda)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class CudaDevices:
    """What the CUDA driver reports; `reason` says why `count` is 0, and is empty otherwise."""

    count: int
    reason: str = ""


def canonical_device(name: str) -> str:
    """Return the one spelling of a device: `cpu`, or `cuda:<number>` (`cuda` and `CUDA` are `cuda:0`).

    Raises:
        UnknownDeviceError: the name is not that of a device; the message says which exist here.
    """
    match = _SPELLING.fullmatch(name.strip().lower())
    if match is None or (match[1] == "cpu" and match[2] not in (None, "0")):
        cuda = cuda_devices()
        here = ["cpu", *(f"cuda:{number}" for number in range(cuda.count))]
        raise UnknownDeviceError(name, here, f" (no CUDA: {cuda.reason})" if cuda.reason else "")
    return "cpu" if match[1] == "cpu" else f"cuda:{int(match[2] or 0)}"


def require_device(device: str) -> None:
    """Check that a device can be used; imports no torch and creates no CUDA context.

    Raises:
        ConfigurationError: the name is not that of a device.
        DeviceUnavailableError: the device does not exist here, with the driver's reason.
    """
    canonical = canonical_device(device)
    if canonical == "cpu":
        return
    cuda = cuda_devices()
    if cuda.count == 0:
        raise DeviceUnavailableError("cuda", cuda.reason)
    if (number := int(canonical.partition(":")[2])) >= cuda.count:
        raise DeviceUnavailableError(
            canonical, f"the driver reports {cuda.count} device(s), numbered from 0, not {number}"
        )
    version = metadata.version("torch")
    if version.endswith("+cpu"):
        raise DeviceUnavailableError("cuda", f"the installed torch {version} is a build without CUDA")


def cuda_devices(library: str = "libcuda.so.1") -> CudaDevices:
    """Ask the driver library for its devices, or learn why there are none; takes milliseconds.

    `CUDA_VISIBLE_DEVICES` is honoured, by the driver itself. No context is created, so that a
    process that is forked later can still use the devices it spawns.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return CudaDevices(0, f"the CUDA driver library {library} is not installed")
    if code := int(driver.cuInit(0)):
        return CudaDevices(0, _driver_error(driver, code))
    count = ctypes.c_int(0)
    if code := int(driver.cuDeviceGetCount(ctypes.byref(count))):
        return CudaDevices(0, _driver_error(driver, code))
    if count.value == 0:
        return CudaDevices(0, "the driver reports no device (CUDA_VISIBLE_DEVICES may hide them)")
    return CudaDevices(count.value)


def _driver_error(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    return f"the CUDA driver reports error {code}, {(text.value or b'unknown').decode()}"


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy: the affinity, cut by the cgroup's quota.

    A quota of 1.5 cores counts as 1: a second thread would be throttled half of its time.

    Args:
        root: where `proc` and `sys` are; only tests have another.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    """Return the core quotas of this process's cgroups and their parents, version 1 and 2."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / ("cpu" if (root / "sys/fs/cgroup/cpu").is_dir() else controllers)
        else:
            continue
        # In a container's own namespace the path may not exist below the mount; the mount's root then holds the limit.
        folder = base / inside.lstrip("/")
        for level in (folder, *folder.parents):
            quotas.extend(_quota_of(level))
            if level == base:
                break
    return quotas


def _quota_of(folder: Path) -> list[float]:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota.lstrip("-").isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return [int(quota) / int(period)]
    return []


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
