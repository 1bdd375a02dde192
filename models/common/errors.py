"""The one kind of error that a user is meant to read."""


class UserError(Exception):
    """Something that whoever runs the program can mend.

    The message is one line that names the file, tensor or value, what was expected and what to do.
    The demo prints it without a traceback and exits with status 2; any other exception is a defect
    of ours and keeps its traceback.
    """

    def __init__(self, message: str):
        # A file name or a foreign library's message may bring line breaks; a user gets one line.
        super().__init__(" ".join(message.splitlines()))
