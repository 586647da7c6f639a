"""Stores: the file systems behind URLs, by fsspec, with time limits of our own."""

from __future__ import annotations

import re
import urllib.parse
import warnings
from typing import Any

from schemas.errors import UsageError

CONNECT_SECONDS = 20.0
READ_SECONDS = 60.0
"""Without a byte, a connection is given up."""
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcp", "gcs": "gcp", "http": "http", "https": "http"}
ATOMIC = frozenset(
    ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "cos", "obs", "hf", "memory")
)
"""Where an upload appears when it has ended, and not before."""


def scheme_of(url: str) -> str:
    """What stands before "://"."""
    return url.partition("://")[0].lower()


def store_options(scheme: str) -> dict[str, Any]:
    """Keyword arguments for the file system of a scheme."""
    # A listing that is remembered would hide what other machines have written.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        options["config_kwargs"] = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"max_attempts": 2},
        }
    elif scheme in ("http", "https"):
        import aiohttp

        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        options["client_kwargs"] = {"timeout": limits, "trust_env": True}
        options["encoded"] = True  # a signature holds for the very characters
    return options


def open_store(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    UsageError: there is none for its scheme, or it cannot be used.
    """
    import fsspec

    scheme = scheme_of(url)
    try:
        cls = fsspec.get_filesystem_class(scheme)
        if cls.protocol == "file" or "file" in cls.protocol:
            raise ValueError("a path of this machine is named without a scheme, or by file://")
        found = cls._get_kwargs_from_urls(url)
        store = cls(**store_options(scheme), **found)
        return store, _path_in(store, scheme, url)
    except (ImportError, ValueError, TypeError) as error:
        raise no_store(scheme, error) from None


def no_store(scheme: str, error: Exception) -> UsageError:
    """No file system can be had for a scheme, and what to do."""
    extra = _EXTRAS.get(scheme)
    return UsageError(
        f"{scheme}://: no file system for it: {error}",
        hint=f"pip install 'reelcache[{extra}]'" if extra else "see the packages of fsspec",
    )


def _path_in(store: Any, scheme: str, url: str) -> str:
    if scheme in ("http", "https"):
        # What may not stand in a request; what is quoted already stays as it is.
        return urllib.parse.quote(url, safe="%/:=&?~#+!$,;'@()*[]-._")
    path: str = store._strip_protocol(url)
    return path


def appears_whole(store: Any) -> bool:
    """Whether an upload is seen under its name only when it has ended."""
    protocols = (store.protocol,) if isinstance(store.protocol, str) else store.protocol
    return not ATOMIC.isdisjoint(protocols)


def quiet_path(url: str) -> Any:
    """A UPath. ImportError, ValueError: no file system for it."""
    from upath import UPath

    with warnings.catch_warnings():
        # Of a scheme that it has no class of its own for; the general one does.
        warnings.filterwarnings("ignore", message=re.escape("UPath"), category=UserWarning)
        place = UPath(url, **store_options(scheme_of(url)))
        place.fs  # noqa: B018 - opens it
    return place
