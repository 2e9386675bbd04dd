"""The trained model in MLflow's own format."""

import contextlib
import copy
import functools
import importlib
import importlib.metadata
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fednews
from fednews.errors import FednewsError
from fednews.tracking.store import clear_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import nn

NAME = "model"
REQUIREMENTS = ("torch", "lightning", "numpy")


def log_model(
    client: "MlflowClient",
    run_id: str,
    module: "nn.Module",
    *,
    name: str = NAME,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Save ``module`` (a CPU copy in evaluation mode) as the run's model; returns MLflow's model id.

    The flavour is ``mlflow.pytorch``: the module is pickled by reference to its classes, so whoever
    loads it needs this version of fednews, named in the model's metadata. Requirements are given, not inferred:
    MLflow would load the model in a fresh process to find them. fednews is not among them because it is
    not on a package index, where somebody else may own the name.

    Args:
        client: of the store that holds the run.
        run_id: the run that the model belongs to.
        module: any module whose classes can be imported by name; it is left as it is.
        name: of the model within the run.
        step: the round that the weights are from.
        metadata: further entries of the model's metadata (plain JSON values).

    Raises:
        FednewsError: a part of the module cannot be found again by name, or the store fails.
    """
    import mlflow.pytorch
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    _check_importable(module)
    saved = copy.deepcopy(module).cpu().eval()
    uri = client.tracking_uri
    with clear_errors(uri), tempfile.TemporaryDirectory() as folder, _quiet():
        experiment = client.get_run(run_id).info.experiment_id
        # The fluent mlflow.pytorch.log_model works on a process-wide store and experiment.
        logged = client.create_logged_model(experiment, name=name, source_run_id=run_id)
        path = Path(folder, NAME)
        mlflow.pytorch.save_model(
            saved,
            path,
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                run_id=run_id,
                model_id=logged.model_id,
                model_uuid=logged.model_id,
            ),
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in requirements(module)],
            signature=False,
            serialization_format="pickle",
            metadata={"fednews": fednews.__version__, **(metadata or {})},
        )
        client.log_model_artifacts(logged.model_id, str(path))
        client.finalize_logged_model(logged.model_id, "READY")
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step)])
    return logged.model_id


def requirements(module: "nn.Module") -> list[str]:
    """Distributions that the module's pickle needs: the common ones and those that its parts come from."""
    packages = {type(part).__module__.partition(".")[0] for part in module.modules()}
    owners = _owners()
    named = {owner for package in packages for owner in owners.get(package, ())}
    return sorted({*REQUIREMENTS, *named} - {__package__.partition(".")[0]})


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    """Distributions of every top-level package; finding them takes a second, once a process."""
    return importlib.metadata.packages_distributions()


def load_model(client: "MlflowClient", run_id: str, name: str = NAME) -> "nn.Module":
    """Load the run's latest model called ``name``, on the CPU in evaluation mode.

    Loading unpickles, which can run code: load from stores that you trust.

    Raises:
        FednewsError: the run has no such model, or the store fails.
    """
    import mlflow.artifacts
    import mlflow.pytorch

    uri = client.tracking_uri
    with clear_errors(uri), tempfile.TemporaryDirectory() as folder:
        outputs = client.get_run(run_id).outputs
        models = [client.get_logged_model(output.model_id) for output in (outputs.model_outputs if outputs else [])]
        models = [model for model in models if model.name == name and str(model.status) == "READY"]
        if not models:
            raise FednewsError(f"run {run_id[:12]} has no model '{name}': it ended before saving one")
        newest = max(models, key=lambda model: model.creation_timestamp)
        path = mlflow.artifacts.download_artifacts(
            artifact_uri=newest.artifact_location, dst_path=folder, tracking_uri=uri
        )
        return mlflow.pytorch.load_model(path, map_location="cpu", weights_only=False)


def _check_importable(module: "nn.Module") -> None:
    """Pickle would save a class of a script or a function by value, or fail: both bad surprises later."""
    for part in module.modules():
        kind = type(part)
        found: Any = sys.modules.get(kind.__module__)
        for attribute in kind.__qualname__.split("."):
            found = getattr(found, attribute, None)
        if found is not kind or kind.__module__ == "__main__":
            raise FednewsError(
                f"the model's part {kind.__module__}.{kind.__qualname__} cannot be imported by name: "
                "define it at the top of a module"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Each save would warn that pickles can run code; the docstring of ``load_model`` says so once."""
    logger = logging.getLogger("mlflow.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
