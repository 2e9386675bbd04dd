"""How client updates are summed."""
