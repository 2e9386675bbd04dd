"""News and user encoders that models are composed of."""
