"""Tracking: runs, their records and their reruns, over MLflow."""

import os

# MLflow reports usage to its makers unless told not to, and decides it once, at import. A platform for
# privacy research sends nothing that nobody asked for; who wants it can set the variable to "false".
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# A bar for each small file would break into the progress of rounds.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
