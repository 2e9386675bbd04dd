"""Tables beside published numbers, and figures."""
