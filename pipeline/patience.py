"""Patience: what may pass is tried again with pauses. Errors of store libraries become OSErrors."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.signing import redact

T = TypeVar("T")
NUM_TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
"""Before the second try; doubled each time, and up to as much again by chance."""
PATIENCE_SECONDS = 300.0
"""No further try is made later than this after the first."""
LOCAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""What only this machine's own disk says."""
_ENDURING = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError)
"""Errors that another try does not mend."""
_LIBRARIES = frozenset(
    ("adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "fsspec", "gcsfs", "google")
)
_MAY_PASS = (408, 425, 429)


def patiently(work: Callable[[], T]) -> T:
    """What `work` returns; errors that may pass are met with pauses and further tries.

    OSError: the last one, also where a store's library raised one of its own.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    for number in range(NUM_TRIES):
        try:
            return work()
        except Exception as error:
            known = as_os_error(error)
            if known is None:
                raise
            is_last = number + 1 == NUM_TRIES or time.monotonic() > deadline
            if is_last or not may_pass(known):
                if known is error:
                    raise
                raise known from None  # the library's own words may hold a signature
        pause = FIRST_PAUSE_SECONDS * 2**number
        time.sleep(pause * (1 + random.random()))
    raise AssertionError


def may_pass(error: OSError) -> bool:
    """Whether another try may mend it."""
    return not isinstance(error, _ENDURING) and error.errno not in (*LOCAL_ERRNOS, errno.EINVAL)


def as_os_error(error: BaseException) -> OSError | None:
    """An OSError that says the same; None: it is none of a file or a store."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        # Of the http file system, which says so whatever happened.
        return as_os_error(cause) or error
    if isinstance(error, OSError):
        return error
    name = type(error).__name__
    if type(error).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    status = _status(error)
    what = f"HTTP {status}" if status else f"{name}: {redact(str(error))}"
    if status in (401, 403) or "Credential" in name or "Refresh" in name:
        return PermissionError(errno.EACCES, f"access is denied ({what})")
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, f"there is no such file or bucket ({what})")
    if status == 412:
        return FileExistsError(errno.EEXIST, what)
    if (400 <= status < 500 and status not in _MAY_PASS) or name == "InvalidURL":
        return OSError(errno.EINVAL, f"the request is refused ({what})")
    return OSError(errno.EIO, what)


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None)  # of botocore
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for name in ("status", "status_code", "code"):  # the last one of aiohttp warns
        value = str(getattr(error, name, None))
        if value.isdecimal():
            return int(value)
    return 0
