"""Files that a command writes: replaced as a whole, or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nvproxy_model.errors import NvproxyError

__all__ = ["OutputError", "replacing"]


class OutputError(NvproxyError):
    """A file that cannot be written because it is also read."""


@contextmanager
def replacing(path: Path | str, inputs: Iterable[Path | str] = ()) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of ``path`` when the block ends, and leaves it as it was when it raises.

    A new regular file has mode 0666 less the umask. A link is followed; a FIFO, a terminal or another device is written to as it
    is. Raises OutputError if ``path`` is one of the ``inputs``, and OSError as open(2), write(2) and rename(2) give it.
    """
    target = Path(os.path.realpath(path))
    for name in inputs:
        with suppress(OSError):
            if str(name) != "-" and os.path.samefile(name, target) and stat.S_ISREG(os.stat(target).st_mode):
                raise OutputError(f"{path}: this file is read: write to another one")
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            # Not the resolved name: a descriptor under /dev/fd may have none.
            with open(path, "wb") as out:
                yield out
            return
    fresh = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as out:
            yield out
        os.replace(fresh, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(fresh)
        if isinstance(error, OSError) and error.filename == str(fresh):
            # The user knows the file by the name that was given.
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise
