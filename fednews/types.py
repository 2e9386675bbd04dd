"""Ranges of settings, checked where a configuration is read."""

from jsonargparse.typing import PositiveInt, restricted_number_type

Size = PositiveInt
Dropout = restricted_number_type("Dropout", float, [(">=", 0), ("<", 1)], docstring="A rate from 0 to below 1.")
