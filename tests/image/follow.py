"""Follow the Dockerfile without an engine: its very commands, in a fresh root that is thrown away afterwards.

What belongs here: playing the builder with an overlay on this machine's Debian, then starting what the image starts.
What it cannot show: the base image, layers, BuildKit, CUDA. Needs root, Linux 5.11 and the package registries;
`make image-steps` runs it.

The overlay's lower layer is this machine, so its /usr/local is covered by the Python that runs this, and its /work,
/root, /tmp and /home are empty. The builder's own settings for the registries (PIP_*, certificates) are passed on.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.image.dockerfile import DOCKERFILE, Instruction, Stage, fill, stages

ROOT = DOCKERFILE.parent
PASSED_ON = ("PIP_CERT", "PIP_FIND_LINKS", "PIP_DEFAULT_TIMEOUT", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY")
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_COVERED = ("work", "root", "tmp", "home", "mnt", "media", "srv")


class Builder:
    """The state of one stage: its root, its variables, its folder and its user.

    A stage that starts from another goes on in that one's root.
    """

    def __init__(self, folder: Path, base: "Builder | None", arguments: dict[str, str]) -> None:
        self.arguments = arguments
        self.environment = dict(base.environment) if base else dict(CLEAN)
        self.folder, self.user = (base.folder, base.user) if base else ("/", "0")
        self.command: list[str] = []
        self.entrypoint: list[str] = []
        self.healthcheck: list[str] = []
        if base:
            # Two layers of one file system, one below the other, are more than overlayfs takes.
            self.root = base.root
            return
        upper, work, self.root = folder / "upper", folder / "work", folder / "root"
        for path in (upper, work, self.root):
            path.mkdir(parents=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", self.root)
        for name in ("proc", "dev", "sys"):
            _mount("--rbind", f"/{name}", self.root / name)
        for name in _COVERED:
            if (self.root / name).is_dir():
                _mount("-t", "tmpfs", "tmpfs", self.root / name)
        (self.root / "tmp").chmod(0o1777)
        # Where an interpreter looks for its own library may be below /root.
        for place in ("/usr/local", sys.base_prefix):
            inside = self.root / place.lstrip("/")
            inside.mkdir(parents=True, exist_ok=True)
            _mount("--bind", sys.base_prefix, inside)

    @property
    def variables(self) -> dict[str, str]:
        """What `$X` means in an instruction."""
        return self.arguments | self.environment

    def follow(self, stage: Stage, others: dict[str, "Builder"]) -> None:  # noqa: C901 (one case a word)
        """Carry out the stage's instructions."""
        for one in stage.instructions:
            print(f"--- {one.word} {one.arguments[:150]}", flush=True)
            match one.word:
                case "ARG":
                    name, _, default = one.arguments.partition("=")
                    self.arguments.setdefault(name, default.strip('"'))
                case "ENV":
                    self.environment |= dict(word.split("=", 1) for word in one.words(self.variables))
                case "WORKDIR":
                    self.folder = fill(one.arguments, self.variables)
                    (self.root / self.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "USER":
                    self.user = fill(one.arguments, self.variables)
                case "COPY":
                    self._copy(one, others)
                case "RUN":
                    done = self.run(["sh", "-c", one.arguments], self.arguments)
                    if done.returncode:
                        raise SystemExit(f"this command ended with {done.returncode}: {one.arguments}")
                case "CMD":
                    self.command = json.loads(one.arguments)
                case "ENTRYPOINT":
                    self.entrypoint = json.loads(one.arguments)
                case "HEALTHCHECK":
                    self.healthcheck = json.loads(one.arguments.partition("CMD")[2])
                case "EXPOSE":
                    pass
                case _:
                    raise SystemExit(f"{one.word} is not known to this script; teach it")

    def run(self, command: list[str], more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the root, as the stage's user."""
        return subprocess.run(self.inside(command), env=self._environment(more or {}), text=True, check=False)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command as process 1 of a namespace of its own."""
        words = ["unshare", "--pid", "--fork", "--kill-child", *self.inside(command)]
        return subprocess.Popen(words, env=self._environment({}), start_new_session=True)

    def inside(self, command: list[str]) -> list[str]:
        """Return the command that runs another one in the root."""
        # What a shell starts in the background ignores SIGINT, and Dagster then ignores SIGTERM as well.
        place = ["env", "--default-signal=INT", f"--chdir={self.folder}", *command]
        return ["chroot", f"--userspec={self.user}:{self.user}", str(self.root), *place]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        passed = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
        home = "/root" if self.user == "0" else "/home/embeddings"
        return passed | more | {"HOME": home} | self.environment

    def _copy(self, one: Instruction, others: dict[str, "Builder"]) -> None:
        flags, (*sources, target) = one.flags(self.variables)
        place = (
            self.root / target.lstrip("/") if target.startswith("/") else self.root / self.folder.lstrip("/") / target
        )
        for source in sources:
            origin = others[flags["from"]].root / source.lstrip("/") if "from" in flags else ROOT / source
            if origin.is_dir():
                hidden = shutil.ignore_patterns("__pycache__", "*.pyc") if "from" not in flags else None
                shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True, ignore=hidden)
            else:
                into = place / origin.name if target.endswith("/") else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, into)
                if "chown" in flags:
                    os.chown(into, int(flags["chown"]), int(flags["chown"]))


def _mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def check_server(image: Builder) -> None:
    """Start what the image starts, wait until it is healthy, and end it as an orchestrator does."""
    server = image.start([*image.entrypoint, *image.command])
    # unshare passes no signal on: process 1 of the namespace is its only child.
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    first = 0
    try:
        deadline = time.monotonic() + 120
        while image.run(image.healthcheck).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server is not healthy (exit code {server.poll()})")
            time.sleep(2)
        print("+++ the server is healthy", flush=True)
        first = int(children.read_text(encoding="utf-8").split()[0])
        os.kill(first, signal.SIGTERM)
        since = time.monotonic()
        code = server.wait(timeout=60)
        print(f"+++ it ended {time.monotonic() - since:.1f} s after SIGTERM, exit code {code}", flush=True)
    finally:
        if server.poll() is None:
            os.kill(first or server.pid, signal.SIGKILL)


def check_commands(image: Builder) -> None:
    """Embed the demo in one-shot containers, with and without Dagster."""
    for command in (
        ["id"],
        ["embeddings", "--version"],
        ["embeddings", "create-embeddings", "--corpus", "demo", "--json"],
        ["dagster", "job", "execute", "-m", "embeddings_pipeline.definitions", "-j", "demo_job"],
        ["embeddings", "verify", ".embeddings/demo"],
        ["dagster-webserver", "--version"],
    ):
        print(f"+++ {' '.join(command)}", flush=True)
        if code := image.run([*image.entrypoint, *command]).returncode:
            raise SystemExit(f"{command[0]} ended with {code}")


def build(folder: Path, arguments: dict[str, str]) -> None:
    """Follow all stages and try what came out; the mounts go with this process's own namespace."""
    built: dict[str, Builder] = {}
    image: Builder | None = None
    for number, stage in enumerate(stages(DOCKERFILE.read_text(encoding="utf-8"), arguments)):
        base = built.get(stage.base)
        print(f"=== FROM {stage.base}{'' if base else ' (this machine stands for it)'}", flush=True)
        image = built[stage.name or str(number)] = Builder(folder / str(number), base, dict(arguments))
        image.follow(stage, built)
    if image is None:
        raise SystemExit("the Dockerfile has no stage")
    check_commands(image)
    check_server(image)
    print("+++ done; not shown here: the base image, layers, BuildKit and CUDA", flush=True)


def main() -> None:
    """Follow the Dockerfile with the build arguments that were given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-arg", action="append", default=[], help="NAME=value; repeatable")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        build(given.inside, dict(word.split("=", 1) for word in given.build_arg))
        return
    # Removed out here, where nothing is mounted in it: inside, /dev and this Python are.
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        again = [sys.executable, "-m", "tests.image.follow", "--inside", folder, *sys.argv[1:]]
        code = subprocess.call(["unshare", "--mount", "--propagation", "private", "--kill-child", *again], cwd=ROOT)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
