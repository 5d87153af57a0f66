"""Devices have one spelling, an unusable one has a reason, and cores are counted as the container grants them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embeddings_pipeline.errors import ConfigurationError, DeviceUnavailableError
from embeddings_pipeline.inference.device import canonical_device, cuda_devices, require_device, usable_cores


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda", "cuda:0"),
        ("CUDA:0", "cuda:0"),
        (" cuda:1 ", "cuda:1"),
        ("cuda:01", "cuda:1"),
    ],
)
def test_a_device_has_one_spelling(given: str, canonical: str) -> None:
    assert canonical_device(given) == canonical


@pytest.mark.parametrize("name", ["tpu", "", "cuda:", "cuda:-1", "cpu:1", "gpu", "mps"])
def test_an_unknown_device_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is unknown; this machine has cpu"):
        canonical_device(name)


def test_cuda_is_never_replaced_by_the_cpu(tmp_path: Path) -> None:
    """Case 45: the reason is the driver's, at once and without torch."""
    cuda = cuda_devices()
    if cuda.count:
        with pytest.raises(DeviceUnavailableError, match="numbered from 0"):
            require_device("cuda:99")
        return
    with pytest.raises(DeviceUnavailableError) as caught:
        require_device("cuda")
    assert caught.value.reason == cuda.reason != ""
    assert (
        cuda_devices("libno-such-driver.so").reason == "the CUDA driver library libno-such-driver.so is not installed"
    )
    require_device("cpu")


def test_asking_for_devices_and_encoders_imports_nothing_heavy() -> None:
    """The code server loads these modules in a second, and a fork after CUDA breaks (case 55)."""
    code = (
        "import sys; import embeddings_pipeline.inference.cache, embeddings_pipeline.inference.device as d; "
        "d.cuda_devices(); d.usable_cores(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sentence_transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def cgroup(root: Path, lines: str, files: dict[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": lines, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="ascii")
    return root


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "190000 100000"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000"}, CORES),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "100000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 1),
        ("0::/not/mounted\n", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        (
            "4:cpu,cpuacct:/x\n",
            {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        (
            "4:cpu,cpuacct:/x\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            CORES,
        ),
        ("3:memory:/x\n", {}, CORES),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "99900000 100000"}, CORES),
    ],
)
def test_the_quota_of_the_container_counts(tmp_path: Path, lines: str, files: dict[str, str], cores: int) -> None:
    """Case 57: a container of one core on a host of 64 must not get 64 threads."""
    assert usable_cores(cgroup(tmp_path, lines, files)) == cores


def test_a_machine_without_cgroups_has_its_affinity(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == CORES
