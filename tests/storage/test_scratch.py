"""What a dead attempt leaves goes away, and what a live one writes does not."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.scratch import Scratch


def test_scratch_is_gone_after_success_and_after_failure(tmp_path: Path) -> None:
    parent = Location(tmp_path / "scratch")

    def attempt() -> None:
        with Scratch(parent) as scratch:
            scratch.file("half").write_text("x", encoding="utf-8")
            raise KeyError

    with pytest.raises(KeyError):
        attempt()
    assert not parent.exists()


def test_a_dead_attempts_files_are_swept_and_a_live_ones_are_not(tmp_path: Path) -> None:
    parent = Location(tmp_path / "scratch")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from embeddings_pipeline.storage.location import Location\n"
        "from embeddings_pipeline.storage.scratch import Scratch\n"
        "with Scratch(Location(Path(sys.argv[1]))) as scratch:\n"
        "    scratch.file('half').write_text('x'); print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(parent)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with Scratch(parent):
            assert Scratch.sweep(parent) == 0
        assert len(list(parent.path.glob("*/half"))) == 1
        process.kill()
        process.wait()
    with Scratch(parent):
        assert list(parent.path.glob("*/half")) == []
    assert not parent.exists()


def test_attempts_that_come_and_go_at_once_do_not_disturb_one_another(tmp_path: Path) -> None:
    """Each sweeps, makes and removes the common parent: the steps between have to stand being interleaved."""
    parent = Location(tmp_path / "scratch")
    failures: list[BaseException] = []

    def attempts() -> None:
        try:
            for _ in range(60):
                with Scratch(parent) as scratch:
                    scratch.file("a").write_text("x", encoding="utf-8")
                    time.sleep(0)
                    assert scratch.file("a").read_text(encoding="utf-8") == "x"
        except (OSError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=attempts) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not parent.exists()
