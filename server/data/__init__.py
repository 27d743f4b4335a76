"""Package data: the default artefact and its facts."""
