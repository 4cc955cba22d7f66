"""The one exception that stands for a user's mistake."""


class UserError(Exception):
    """A mistake in what the user asked for; the command line prints it as one line and exits 2.

    The message names the offending value and the remedy, and holds no newline.
    """
