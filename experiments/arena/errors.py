"""What can be wrong with a study."""


class StudyError(ValueError):
    """A study cannot be read, run or shown; the message names file and key, and what was expected."""
