"""Raw files to arrays on disk to cohorts."""
