"""The federated loop and client work."""
