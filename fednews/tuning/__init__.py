"""Sweeps: search spaces, studies and their workers, over Optuna."""
