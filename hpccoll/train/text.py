"""Text as bytes, for language models: sources of the standard library of this Python, or a file of the user.

Every tenth file of the standard library, or the last tenth of the user's file, is held out for testing. A sample is a
window of `context` bytes, and the target of each byte is the byte that follows. Windows do not overlap.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.train.samples import SampleArray, Samples

HELD_OUT_STRIDE = 10  # every tenth file or image is held out
# Files that Python 3.11 and later versions have.
STANDARD_LIBRARY_FILES = (
    "_pydecimal", "argparse", "ast", "base64", "bdb", "calendar", "cmd", "codecs", "configparser", "contextlib",
    "copy", "csv", "dataclasses", "difflib", "dis", "doctest", "enum", "fileinput", "fractions", "ftplib",
    "functools", "gettext", "glob", "gzip", "heapq", "imaplib", "inspect", "ipaddress", "locale", "mailbox",
    "mimetypes", "netrc", "optparse", "os", "pdb", "pickle", "pickletools", "plistlib", "poplib", "pprint",
    "profile", "pstats", "pydoc", "queue", "quopri", "random", "sched", "selectors", "shelve", "shlex", "shutil",
    "smtplib", "socket", "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap",
    "threading", "timeit", "tokenize", "trace", "traceback", "types", "typing", "uuid", "warnings", "wave",
    "weakref", "webbrowser",
)  # fmt: skip


def load_text(context: int, path: str | None = None) -> tuple[Samples, Samples]:
    """Return the training and the held-out windows, of `context` bytes each, of a text.

    The text is the file `path`, or, if it is None, the sources of Python's standard library.

    Raises:
        UsageError: the file cannot be read, or the text is too short for one training and one held-out window.
        UnavailableError: this Python does not have the sources of the standard library.
    """
    if path is None:
        train, held_out = _read_standard_library()
    else:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"--data {path} cannot be read: {error.strerror}; name a readable file") from error
        split = len(text) - len(text) // HELD_OUT_STRIDE
        train, held_out = text[:split], text[split:]
    if len(held_out) <= context:
        name = "the text" if path is None else f"--data {path}"
        raise UsageError(
            f"{name} has {len(train) + len(held_out)} bytes, of which {len(held_out)} are held out; "
            f"--context {context} needs at least {context + 1}; give a longer file as --data, or a smaller --context"
        )
    return _cut_windows(train, context), _cut_windows(held_out, context)


def _read_standard_library() -> tuple[bytes, bytes]:
    """Return the training and the held-out bytes of the standard library; UnavailableError if a file is missing."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [folder / f"{name}.py" for name in STANDARD_LIBRARY_FILES]
    if missing := [text for text in texts if not text.is_file()]:
        raise UnavailableError(
            f"the default text of a GPT needs {missing[0]}, which this Python does not have; give a file as --data"
        )
    sources = [text.read_bytes() for text in texts]
    held_out = b"".join(sources[HELD_OUT_STRIDE - 1 :: HELD_OUT_STRIDE])
    del sources[HELD_OUT_STRIDE - 1 :: HELD_OUT_STRIDE]
    return b"".join(sources), held_out


def _cut_windows(text: bytes, context: int) -> Samples:
    """Return the windows of a text as samples: inputs and targets, shape (windows, context) each."""
    tokens: SampleArray = np.frombuffer(text, np.uint8).astype(np.int64)
    count = (len(tokens) - 1) // context
    inputs, targets = (tokens[first : first + count * context].reshape(count, context) for first in (0, 1))
    return Samples(inputs, targets)
