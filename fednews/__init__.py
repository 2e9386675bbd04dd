"""fednews: experiments in privacy-preserving federated news recommendation."""

__version__ = "0.1.0"
