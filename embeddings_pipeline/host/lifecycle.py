"""Starting, finding, replacing and stopping model hosts.

What belongs here: the handshake, and the environment in which a host starts. What does not: its files
and locks (`files`), what a host does once it runs (`process`, `server`), nor requests that compute
(`client`).
"""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import embeddings_pipeline
from embeddings_pipeline.errors import ConfigurationError, HostUnavailableError
from embeddings_pipeline.host.files import FOLDER, HostFiles, held, is_locked, private_folder, read_info
from embeddings_pipeline.host.wire import PROTOCOL, this_build
from embeddings_pipeline.inference.device import canonical_device
from embeddings_pipeline.settings import CacheSettings, Environment, HostLimits

LOG_LINES = 20

_POLL_SECONDS = 0.02
_ASK_SECONDS = 15.0
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LANG", "TZ", "VIRTUAL_ENV", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = (
    *("LC_", "PYTHON", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH_", "OMP_", "MKL_", "KMP_", "OPENBLAS_"),
    *("CUDA_", "NVIDIA_", "SSL_", "MALLOC_"),
)


def physical_device(device: str, environment: Environment) -> tuple[str, str]:
    """Return how the machine calls a device that this process sees, and what makes only it visible.

    `cuda:0` of a run with CUDA_VISIBLE_DEVICES=2 is the machine's `cuda:2`: two runs that both call
    their card `cuda:0` then talk to two hosts.
    """
    canonical = canonical_device(device)
    if canonical == "cpu":
        return canonical, ""
    number = int(canonical.partition(":")[2])
    visible = [token.strip() for token in environment.variables.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    token = visible[number] if number < len(visible) and visible[number] else str(number)
    # A UUID has no number of ours: such a host is called by the number that the process sees.
    return f"cuda:{int(token) if token.isdecimal() else number}", token


def home_of(environment: Environment) -> Path:
    """Return the Dagster home.

    Raises:
        ConfigurationError: DAGSTER_HOME is not set.
    """
    if environment.dagster_home is None:
        raise ConfigurationError(
            "DAGSTER_HOME is not set, and model hosts live below it; set it to a folder of yours, such as "
            "$PWD/.dagster, or use mode: in_process"
        )
    return Path(environment.dagster_home).expanduser().absolute()


class Hosts:
    """The model hosts of one Dagster home."""

    def __init__(
        self,
        home: Path,
        environment: Environment,
        limits: HostLimits | None = None,
        module: str = "embeddings_pipeline.host",
    ) -> None:
        """Start nothing.

        Args:
            home: the Dagster home.
            environment: of this process; a host gets a clean part of it.
            limits: how long starting and draining may last.
            module: what a host runs.
        """
        self.folder = home.expanduser().absolute() / FOLDER
        self._module = module
        self.environment = environment
        self.limits = limits or HostLimits()

    def files(self, device: str) -> HostFiles:
        """Return where the files of a device's host are."""
        return HostFiles(self.folder, device)

    def devices(self) -> list[str]:
        """Return the devices whose hosts are alive."""
        found = [file.stem for file in self.folder.glob("*.lock")] if self.folder.is_dir() else []
        return sorted(stem.replace("-", ":") for stem in found if is_locked(self.folder / f"{stem}.lock"))

    def ask(self, device: str) -> dict[str, Any] | None:
        """Return what the host of a device says of itself; None where there is none."""
        files = self.files(device)
        return _request(files.socket, "GET", "/host") if is_locked(files.lock) else None

    def ensure(self, device: str, settings: CacheSettings | None) -> dict[str, Any]:
        """Return what the host of a device says of itself, after starting or replacing it where need be.

        Of all processes that come here at once, one starts it. A host of older code or other settings
        finishes what it computes and is replaced; a newer one is used as it is.

        Args:
            device: a device of the machine.
            settings: what the host has to have; None takes a running host as it is.

        Raises:
            HostUnavailableError: it does not start; with the last lines of its log.
        """
        info = self.ask(device)
        if info is not None and suits(info, settings):
            return info
        try:
            with held(self.files(device).start, self.limits.start_s + self.limits.drain_s):
                return self._start(device, settings)
        except TimeoutError as error:
            raise self._unavailable(
                device, f"is being started by another process, without success ({error})"
            ) from error

    def _start(self, device: str, settings: CacheSettings | None) -> dict[str, Any]:
        info = self.ask(device)
        if info is not None:
            if suits(info, settings):
                return info
            settings = settings or CacheSettings(**info["settings"])
            self.stop(device)
        problem = self._spawn(device, settings or CacheSettings())
        info = self.ask(device)
        if info is None:
            raise self._unavailable(device, problem or "has started and left at once")
        return info

    def stop(self, device: str, *, force: bool = False) -> bool:
        """Let a host finish what it computes and leave; with `force`, or when it does not answer, end it.

        Return whether there was one.
        """
        files = self.files(device)
        if not is_locked(files.lock):
            self._clear(files)
            return False
        pid = read_info(files).get("pid")
        if not force:
            _request(files.socket, "DELETE", "/host")
            if self._gone(files, self.limits.drain_s):
                return True
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if isinstance(pid, int) and is_locked(files.lock):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            if self._gone(files, 5.0):
                break
        self._clear(files)
        return True

    def log_lines(self, device: str, most: int = LOG_LINES) -> list[str]:
        """Return the last lines of a host's log."""
        try:
            return self.files(device).log.read_text(encoding="utf-8", errors="replace").splitlines()[-most:]
        except OSError:
            return []

    def _gone(self, files: HostFiles, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while is_locked(files.lock):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _clear(self, files: HostFiles) -> None:
        """Remove what a killed host has left."""
        if not self.folder.is_dir():
            return
        with contextlib.suppress(TimeoutError), held(files.lock, 0.0):
            files.remove()

    def _spawn(self, device: str, settings: CacheSettings) -> str:
        """Start a host and wait until it listens; return what went wrong, or nothing."""
        files = self.files(device)
        private_folder(files.folder)
        ready, tell = os.pipe()
        command = [sys.executable, "-m", self._module, "--home", str(self.folder.parent)]
        command += ["--device", device, "--settings", json.dumps(asdict(settings))]
        command += ["--limits", json.dumps(asdict(self.limits)), "--ready", str(tell)]
        try:
            with files.log.open("ab") as log:
                # The process forks and leaves, so that no host is ever anybody's child, let alone a zombie.
                first = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(tell,),
                    start_new_session=True,
                    cwd="/",
                    env=self._clean_environment(device),
                )
            os.close(tell)
            tell = -1
            code = first.wait()
            if code:
                return f"ended with exit code {code} before it listened"
            patience = self.limits.start_s + self.limits.drain_s
            if not select.select([ready], [], [], patience)[0]:
                return f"does not listen after {patience:g} s"
            return "" if os.read(ready, 16) else "ended before it listened"
        finally:
            os.close(ready)
            if tell >= 0:
                os.close(tell)

    def _clean_environment(self, device: str) -> dict[str, str]:
        """Return what a host may inherit: nothing of the run that happens to start it."""
        variables = {
            name: value
            for name, value in self.environment.variables.items()
            if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
        }
        # A package that was found in the working directory has to be found from / too.
        package = str(Path(embeddings_pipeline.__file__).parents[1])
        path = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
        variables["PYTHONPATH"] = os.pathsep.join([package, *(entry for entry in path if entry != package)])
        variables["CUDA_VISIBLE_DEVICES"] = self._visible(device)
        return variables | {"TOKENIZERS_PARALLELISM": "false"}

    def _visible(self, device: str) -> str:
        """Return the word that makes only this device visible."""
        if device == "cpu":
            return ""
        tokens = self.environment.variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
        for number in range(len(tokens)):
            name, token = physical_device(f"cuda:{number}", self.environment)
            if name == device:
                return token
        return device.partition(":")[2]

    def _unavailable(self, device: str, problem: str) -> HostUnavailableError:
        by_hand = f"DAGSTER_HOME={self.folder.parent} embeddings host start --device {device}"
        return HostUnavailableError(device, problem, self.log_lines(device, 5), by_hand)


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket, for the short requests that a thread may wait for."""

    def __init__(self, path: Path) -> None:
        super().__init__("model-host", timeout=_ASK_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path instead of a host and a port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _request(path: Path, method: str, url: str) -> dict[str, Any] | None:
    """Return what a host answers; None where it does not, or not with success."""
    with contextlib.closing(_Connection(path)) as connection:
        try:
            connection.request(method, url)
            # Closed on every path: what a host that dies half-way has sent keeps the socket open otherwise.
            with contextlib.closing(connection.getresponse()) as response:
                return json.loads(response.read()) if response.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None


def suits(info: Mapping[str, Any], settings: CacheSettings | None) -> bool:
    """Tell whether a running host serves this process: its code, its protocol and its settings."""
    build = this_build()
    newer = info["build"] != build.digest and info["written_at"] > build.written_at
    if info["protocol"] != PROTOCOL or not (info["build"] == build.digest or newer):
        return False
    return settings is None or info["settings"] == asdict(settings)
