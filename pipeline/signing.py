"""Signed URLs: what a source is called, and what opens it.

A source's uri is its URL without user, password and signature. The URL itself stays in the memory
of a run's processes; the run folder has it sealed by a key that is in memory only.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterable, Mapping

_QUERY_SCHEMES = ("http", "https")
"""Where "?" begins a query; in an object store it is a character of a name."""
_CONTAINER_SCHEMES = ("abfs", "abfss", "az", "adl", "wasb", "wasbs")
"""Where what stands before "@" is no user."""
_SIGNATURE_PREFIXES = ("x-amz-", "x-goog-", "x-oss-", "x-ms-", "x-cos-", "x-obs-", "q-sign-")
_SIGNATURE_NAMES = frozenset(
    (
        *("signature", "expires", "key-pair-id", "policy", "hmac", "hdnea", "hdnts", "hdntl"),
        *("awsaccesskeyid", "googleaccessid", "ossaccesskeyid", "auth", "authorization"),
        *("token", "access_token", "security-token", "apikey", "api_key"),
        *("sig", "se", "sp", "sv", "sr", "st", "spr", "ss", "srt", "sip"),
        *("skoid", "sktid", "skt", "ske", "sks", "skv"),
    )
)
"""Of S3, Google, Azure, Alibaba and Akamai, and what others commonly say."""
_SECRET_TEXT = re.compile(r"(?i)\b(\w[\w+.-]*://)(?:[^\s/'\"@]*@)?([^\s?'\"]*)(\?[^\s'\"<>]*)?")
_lock = threading.Lock()
_urls: dict[str, str] = {}
"""uri -> the URL that opens it, of those that differ; of this process."""


def to_public(url: str) -> str:
    """The URL without what opens it: the identity of a source.

    Of a query the signature is left out, and the rest (a number of a video, say) is told by 16
    digits of its sha256: what is not known to be harmless is not shown. So a new signature is not
    a new source.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isalnum() or scheme == "file":
        return url  # a path
    place, slash, path = rest.partition("/")
    if "@" in place and not (scheme in _CONTAINER_SCHEMES and ":" not in place.partition("@")[0]):
        place = place.rpartition("@")[2]
    if scheme not in _QUERY_SCHEMES:
        return f"{scheme}://{place}{slash}{path}"
    path, _, query = (slash + path).partition("#")[0].partition("?")
    place, _, query_of_place = place.partition("#")[0].partition("?")
    query = query or query_of_place
    return f"{scheme}://{place}{path}{_told(query)}"


def _told(query: str) -> str:
    if re.fullmatch(r"~[0-9a-f]{16}|", query):  # is public already
        return query and "?" + query
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    kept = sorted((name, value) for name, value in pairs if not _is_signature(name.lower()))
    if not kept:
        return ""
    return "?~" + hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def _is_signature(name: str) -> bool:
    return name in _SIGNATURE_NAMES or name.startswith(_SIGNATURE_PREFIXES)


def learn(url: str) -> str:
    """The public form of a URL; the URL itself is remembered in this process."""
    uri = to_public(url).rstrip("/") or url
    if uri != url:
        know({uri: url})
    return uri


def know(urls: Mapping[str, str]) -> None:
    """Remember what opens each uri; the newest counts."""
    with _lock:
        _urls.update(urls)


def url_of(uri: str) -> str:
    """What opens a uri: a URL that was learned, or the uri itself."""
    return _urls.get(uri, uri)


def urls_of(uris: Iterable[str]) -> dict[str, str]:
    """Uri -> URL, of those that a signature or a password opens."""
    return {uri: _urls[uri] for uri in uris if uri in _urls}


def redact(text: str) -> str:
    """A text of somebody else's, in which URLs have neither user nor query."""
    return _SECRET_TEXT.sub(r"\1\2", text)


def seal(urls: Mapping[str, str], *, key: bytes) -> bytes:
    """Bytes that only `unseal` with the same key reads; a key seals one file only."""
    return _stream(json.dumps(dict(urls)).encode(), key=key)


def unseal(data: bytes, *, key: bytes) -> dict[str, str]:
    """The inverse of `seal`. ValueError: another key."""
    urls: dict[str, str] = json.loads(_stream(data, key=key))
    return urls


def _stream(data: bytes, *, key: bytes) -> bytes:
    # SHAKE256 of a random key that is used once is a key stream (FIPS 202 makes it a random oracle
    # of any length); what is added to the data is never added again.
    stream = hashlib.shake_256(key).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
