"""One Dagster instance and one browser window for all scenes, the pictures of them, and the look for leftovers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import screen as ui
from tests.e2e.graphql import GraphQL
from tests.e2e.screen import Screen
from tests.e2e.stage import ROOT, Stage, describe

HERE = Path(__file__).parent
ARTEFACTS = ROOT / ".embeddings" / "e2e"
REPORTS = pytest.StashKey[dict[str, pytest.TestReport]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    # The person comes first, to an empty home: their pictures then show no runs of other scenes.
    items.sort(key=lambda item: HERE in item.path.parents and item.path.stem != "test_ui")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say what is missing before `dagster dev` is started for nothing."""
    here = (item for item in session.items if HERE in item.path.parents)
    chosen = [item for item in here if "window" in getattr(item, "fixturenames", ())]
    if chosen and not session.config.option.collectonly and ui.browser() is None:
        pytest.exit(ui.MISSING, returncode=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Keep how a scene ended, for the picture of what was seen when it failed."""
    report = yield
    item.stash.setdefault(REPORTS, {})[report.when] = report
    return report


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Return the folder of pictures, figures and the log, empty at the start of the session."""
    shutil.rmtree(ARTEFACTS, ignore_errors=True)
    ARTEFACTS.mkdir(parents=True)
    return ARTEFACTS


@pytest.fixture(scope="session")
def figures(artefacts: Path) -> Iterator[dict[str, Any]]:
    """Take what the scenes measure; it is written to figures.json and printed."""
    found: dict[str, Any] = {}
    yield found
    words = json.dumps(found, indent=2)
    (artefacts / "figures.json").write_text(words + "\n", encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    file = ARTEFACTS / "figures.json"
    if file.exists() and any("tests/e2e" in key.nodeid for key in terminalreporter.stats.get("passed", [])):
        terminalreporter.section("figures")
        terminalreporter.write_line(file.read_text(encoding="utf-8").strip())
        terminalreporter.write_line(f"pictures of all scenes: {ARTEFACTS}")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, artefacts: Path) -> Iterator[Stage]:
    """A running `dagster dev` with an empty home; at the end nothing of it is left."""
    made = Stage(tmp_path_factory.mktemp("e2e") / "s")
    try:
        made.start()
        yield made
        made.stop()
        stopped = made.command("embeddings", "host", "stop", "--json")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        left = describe(made.processes())
        sockets = [str(path) for path in made.folder.rglob("*") if path.is_socket()]
        assert (left, sockets) == ([], [])
        assert not (made.home / "model_host").exists()
    finally:
        made.clear()
        shutil.copy(made.log, artefacts / "dagster-dev.log")


@pytest.fixture
def graphql(stage: Stage) -> GraphQL:
    """Return the webserver's GraphQL interface."""
    return stage.graphql


@pytest.fixture(scope="session")
def window(stage: Stage, artefacts: Path) -> Iterator[Screen]:
    """One browser window on the webserver."""
    with ui.opened(stage.graphql.base, artefacts, stage.folder / "browser") as made:
        yield made


@pytest.fixture
def screen(window: Screen, request: pytest.FixtureRequest) -> Iterator[Screen]:
    """Return the window; after a failed scene there is a picture of what was seen last."""
    yield window
    reports = request.node.stash.get(REPORTS, {})
    if any(report.failed for report in reports.values()):
        window.shot(f"failed-{request.node.name}")
    # A page of Dagster's asks for news all the time, at a third of a core.
    window.page.goto("about:blank")
