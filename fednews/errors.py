"""Errors whose message is meant for the person at the terminal."""


class FednewsError(Exception):
    """A failure that one line explains; the command line prints it and exits with ``exit_code``."""

    exit_code = 1


class StorageError(FednewsError):
    """Something could not be kept or read; once it can, a run goes on from its last checkpoint."""


class Stopped(FednewsError):
    """A run was ended on purpose before its last round: it counts as KILLED, not as FAILED."""


class UsageError(FednewsError):
    """What the user typed or configured cannot work: exit code 2."""

    exit_code = 2


class DataError(FednewsError):
    """A data file is malformed; the message names file and line."""
