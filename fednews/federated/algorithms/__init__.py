"""Federated methods, one file each."""
