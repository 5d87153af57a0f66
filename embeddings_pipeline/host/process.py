"""The life of a host's process: lock, socket, log, signals, idle time, and an end without leftovers.

What belongs here: everything around the server. What does not: its routes (`server`), and who starts
it (`lifecycle`).
"""

import asyncio
import contextlib
import faulthandler
import json
import logging
import logging.handlers
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from embeddings_pipeline.host.desk import Desk
from embeddings_pipeline.host.files import FOLDER, HostFiles, held, private_folder
from embeddings_pipeline.host.server import create_app
from embeddings_pipeline.host.wire import this_build
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.encoder import Encoder, load_encoder
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.settings import CacheSettings, HostLimits

_LOG_BYTES = 1_000_000
_WATCH_SECONDS = 0.5
_KEEP_ALIVE_SECONDS = 300

_log = logging.getLogger(__name__)


class _Log(logging.handlers.RotatingFileHandler):
    """Rotates at a megabyte, and takes stdout and stderr along: what native code prints is in it too."""

    def _open(self):  # noqa: ANN202 (the base says what it is)
        stream = super()._open()
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        return stream


class _Server(uvicorn.Server):
    """A server whose signals are ours: SIGINT is for the terminal's programs, not for a host."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def serve(
    home: Path,
    device: str,
    settings: CacheSettings,
    limits: HostLimits,
    *,
    load: Callable[[ResolvedModel, str], Encoder] = load_encoder,
    ready: int | None = None,
) -> None:
    """Serve one device until nobody needs it; ends the process.

    Args:
        home: the Dagster home.
        device: the machine's name of the device; CUDA_VISIBLE_DEVICES shows only this one.
        settings: of the cache.
        limits: of requests and waiting.
        load: builds an encoder.
        ready: a descriptor that is told when the host listens, and closed.
    """
    files = HostFiles(home / FOLDER, device)
    code = 0
    try:
        with held(files.lock, limits.drain_s):
            _set_up_log(files)
            try:
                asyncio.run(_serve(files, settings, limits, load, ready))
            except Exception:
                _log.exception("the host of %s ends with an error", device)
                raise
            _log.info("the host of %s leaves", device)
            logging.shutdown()
            files.remove()
    except TimeoutError as error:
        print(f"no host of {device} is started: {error}", file=sys.stderr)  # noqa: T201 (stderr is the log)
        code = 3
    except Exception:  # noqa: BLE001 (logged above; the process ends here)
        code = 1
    # Threads of a native library that hangs would keep an ordinary exit waiting.
    os._exit(code)


async def _serve(
    files: HostFiles,
    settings: CacheSettings,
    limits: HostLimits,
    load: Callable[[ResolvedModel, str], Encoder],
    ready: int | None,
) -> None:
    build = this_build()
    facts = {
        "device": files.device,
        "pid": os.getpid(),
        "instance": secrets.token_hex(8),
        "version": build.version,
        "build": build.digest,
        "written_at": build.written_at,
        "settings": asdict(settings),
        "socket": str(files.socket),
        "log": str(files.log),
        "started_at": datetime.now(UTC).isoformat(),
    }
    target = "cpu" if files.device == "cpu" else "cuda:0"
    cache = ModelCache(target, load, settings, name=files.device, patience_s=limits.eject_s)
    desk = Desk(cache, target, limits, facts)
    with _listening(files) as listener:
        config = uvicorn.Config(
            create_app(desk),
            loop="asyncio",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(limits.drain_s) + 1,
        )
        server = _Server(config)
        loop = asyncio.get_running_loop()
        desk.leave = lambda: _leave(files, server)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGTERM, desk.leave)
        files.info.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        _log.info(
            "the host of %s listens on %s (pid %d, build %s)", files.device, files.socket, os.getpid(), build.digest
        )
        if ready is not None:
            # Whoever started this host may have been killed meanwhile; others may need it all the same.
            with contextlib.suppress(BrokenPipeError):
                os.write(ready, b"ready")
            os.close(ready)
        watch = asyncio.create_task(_watch(files, desk, settings))
        await server.serve(sockets=[listener])
        watch.cancel()
    await asyncio.to_thread(cache.close)
    desk.close()


def _leave(files: HostFiles, server: _Server) -> None:
    """Take no new client, finish what is under way, and end."""
    files.socket.unlink(missing_ok=True)
    server.should_exit = True


async def _watch(files: HostFiles, desk: Desk, settings: CacheSettings) -> None:
    """Eject unused models; leave when nobody has used the host for long, or its folder is gone."""
    lock = files.lock.stat().st_ino
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            await asyncio.to_thread(desk.cache.sweep)
            gone = not files.lock.exists() or files.lock.stat().st_ino != lock
        except FileNotFoundError:
            gone = True
        except Exception:  # noqa: BLE001 (the host goes on)
            _log.exception("ejecting unused models failed")
            continue
        unused = time.monotonic() - desk.last_used
        idle = settings.idle_timeout_s > 0 and desk.in_flight == 0 and unused >= settings.idle_timeout_s
        if gone or idle:
            _log.info(
                "the host of %s is %s", files.device, "without its folder" if gone else f"unused for {unused:.0f} s"
            )
            desk.leave()
            return


@contextlib.contextmanager
def _listening(files: HostFiles) -> Generator[socket.socket]:
    """Listen on the host's socket, which only this user can use from its first moment on.

    The lock is held, so whatever lies there is the socket of a host that was killed.
    """
    private_folder(files.socket.parent)
    files.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(files.socket))
    finally:
        os.umask(mask)
    listener.listen(128)
    with listener:
        yield listener


def _set_up_log(files: HostFiles) -> None:
    handler = _Log(files.log, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("httpx2", "httpcore2", "uvicorn.access", "sentence_transformers", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    faulthandler.enable(open(2, "w", closefd=False))  # noqa: SIM115 (a descriptor, not a path; stays open)
