"""The exceptions that the command line says in one line: a user's mistake, a fault of ours."""


class UserError(Exception):
    """A mistake in what the user asked for; the command line prints it as one line and exits 2.

    The message names the offending value and the remedy, and holds no newline.
    """


class Fault(Exception):
    """A fault of kvbench's own; the command line says so in one line and exits 1.

    Raised from the exception that it was noticed by, whose traceback KVBENCH_DEBUG=1 prints.
    """
