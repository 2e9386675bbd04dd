"""Every notebook runs from its first cell to its last, as a user runs it but on tables made small."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from fednews.report.matrix import Table
from fednews.report.tracked import TrackedTable

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = {"max_steps": 2, "val_check_interval": 2, "recluster_every": 2, "warmup": 1, "eval_impressions": 50}
FEW_CLIENTS = 5

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:jupyter_client.*")


def smaller(value):
    """The same configuration with few rounds, clients and seeds."""
    if isinstance(value, list):
        return [smaller(item) for item in value]
    if not isinstance(value, dict):
        return value
    small = {key: SMALL.get(key, smaller(item)) for key, item in value.items()}
    if small.get("clients_per_round", 0) > FEW_CLIENTS:
        small["clients_per_round"] = FEW_CLIENTS
    return small | ({"seeds": small["seeds"][:1]} if "seeds" in small else {})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, synthetic_store) -> Path:
    """A folder with the repository's experiments, the notebooks' own made small, and data where `make demo` puts it."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    for path in [
        folder / "experiments" / "notebook.yaml",
        *(folder / "experiments" / "tables").glob("notebook_*.yaml"),
    ]:
        path.write_text(yaml.safe_dump(smaller(yaml.safe_load(path.read_text())), sort_keys=False, allow_unicode=True))
    (folder / ".data").mkdir()
    (folder / ".data" / "synthetic").symlink_to(synthetic_store.path.absolute())
    (folder / "notebooks").mkdir()
    return folder


def execute(path: Path, checkout: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = re.sub(r"^ROUNDS = \d+", f"ROUNDS = {SMALL['max_steps']}", cell.source, flags=re.MULTILINE)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(checkout / "notebooks")}})
    return client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_and_shows_figures(path, checkout, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = execute(path, checkout)
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if {"image/png", "image/svg+xml"} & output.get("data", {}).keys()]
    assert pictures
    assert not [output for output in outputs if output.get("name") == "stderr" and "Warning" in output.text]
    assert (checkout / "mlruns" / "mlflow.db").is_file(), "runs go to the checkout that the notebook lies in"
    source = "\n".join(cell.source for cell in done.cells if cell.cell_type == "code")
    monkeypatch.chdir(checkout)
    for name in re.findall(r'^\w*TABLE = "(.+)"', source, flags=re.MULTILINE):
        cells = list(Table.read(name).cells())
        assert len(TrackedTable.read(name).runs) == len(cells) > 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
    assert "parameters" in code[0].metadata.get("tags", ())
