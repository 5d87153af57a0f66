"""The package as people install it: versions, names in the configuration files, the wheel, house rules."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "embeddings_pipeline"
MODULES = sorted(PACKAGE.rglob("*.py"))
DAGSTER = "1.13.27"
DAGSTER_LIBRARY = "0.29.27"


def module_id(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("distribution", "version", "optional"),
    [
        ("dagster", DAGSTER, False),
        ("dagster-aws", DAGSTER_LIBRARY, False),
        ("dagster-webserver", DAGSTER, True),
        ("dagster-postgres", DAGSTER_LIBRARY, True),
    ],
)
def test_dagster_and_its_libraries_are_installed_in_versions_that_belong_together(distribution, version, optional):
    """In an unlucky order pip pairs dagster 1.13.28 with dagster-aws 0.11.14 of 2021, and says nothing."""
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if not optional:
            raise
        pytest.skip(f"{distribution} is an extra that is not installed here")
    assert installed == version


def test_every_requirement_is_pinned_in_the_constraints(project):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = project["project"]["optional-dependencies"].values()
    requirements = [*project["project"]["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.split(r"[<>=!\[; ]", requirement)[0] for requirement in requirements}
    assert names <= pins.keys()
    assert pins["torch"] == "2.13.0"


def test_the_constraints_hold_versions_and_nothing_of_the_machine_that_wrote_them():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"#.*|[a-z0-9-]+==[a-zA-Z0-9.]+", line)] == []


def test_pyproject_and_workspace_name_the_same_module_and_location(project):
    """Dagster reads [tool.dg] and silently ignores workspace.yaml beside it, so a difference would go unnoticed."""
    declared = project["tool"]["dg"]["project"]
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))
    (entry,) = workspace["load_from"]
    assert entry["python_module"]["module_name"] == declared["code_location_target_module"]
    assert entry["python_module"]["location_name"] == declared["code_location_name"]
    assert declared["code_location_target_module"].split(".")[0] == declared["root_module"] == PACKAGE.name


def test_every_library_that_the_package_imports_is_declared(project):
    """What merely comes along with another library may stay away in its next release."""
    declared = {re.split(r"[<>=!\[; ]", requirement)[0] for requirement in project["project"]["dependencies"]}
    brought_by = importlib.metadata.packages_distributions()
    imported: set[str] = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    third_party = imported - sys.stdlib_module_names - {PACKAGE.name}
    undeclared = {name for name in third_party if not declared & {other.lower() for other in brought_by.get(name, [])}}
    assert undeclared == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    ignored = {"__pycache__"}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not ignored & set(path.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == there
    for name in ("models/registry.yaml", "samples/works.jsonl", "defs/demo/defs.yaml", "dg.toml", "py.typed"):
        assert f"embeddings_pipeline/{name}" in packed


def test_a_wheel_installed_elsewhere_loads_its_definitions(wheel, tmp_path):
    """Without the package's dg.toml Dagster looks for a pyproject.toml above defs/, and there is none."""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run([sys.executable, "-m", *install], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "DAGSTER_HOME": str(elsewhere)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert Path(run("-c", "import embeddings_pipeline as p; print(p.__file__)").strip()).is_relative_to(site)
    listed = run("-m", "dagster", "asset", "list", "-m", "embeddings_pipeline.definitions")
    assert {"demo/records", "demo/embeddings", "demo/dataset"} <= set(listed.split())


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_no_module_postpones_its_annotations(path):
    """Dagster and pydantic read annotations at run time; strings instead of types break both."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in nodes)
