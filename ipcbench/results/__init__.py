"""The trial record and its store: the only code that knows the files of a run."""
