"""Errors of this package."""


class CellError(Exception):
    """A cell could not be started, or broke: one line that says what, and where possible what to do."""
