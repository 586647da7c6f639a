"""Patience: which errors are met with another try, and what libraries' own errors become."""

from __future__ import annotations

import errno
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from yarl import URL

from pipeline import patience
from pipeline.patience import as_os_error, patiently

SIGNED = "https://h/a.mp4?X-Amz-Signature=secret"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that would have been made."""
    made: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", made.append)
    return made


def answered(status: int) -> aiohttp.ClientResponseError:
    request: Any = aiohttp.RequestInfo(URL(SIGNED), "GET", None, URL(SIGNED))  # type: ignore
    return aiohttp.ClientResponseError(request, (), status=status, message="no")


def refused(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore
        "ListObjectsV2",
    )


def failing(*errors: BaseException) -> Any:
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


def test_an_error_that_may_pass_is_met_with_longer_and_longer_pauses(pauses: list[float]) -> None:
    work = failing(TimeoutError(), ConnectionResetError(), OSError(errno.EIO, "bad"))
    assert patiently(work) == "done"
    assert len(pauses) == 3
    for number, pause in enumerate(pauses):
        base = patience.FIRST_PAUSE_SECONDS * 2**number
        assert base <= pause <= 2 * base
    assert pauses[0] / pauses[1] != 0.5, "two runs must not come back at the same moments"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        ValueError(),
        OSError(errno.ENOSPC, "full"),
        answered(403),
        answered(404),
        answered(400),
    ],
)
def test_an_error_that_lasts_is_raised_at_once(error: Exception, pauses: list[float]) -> None:
    with pytest.raises((OSError, ValueError)):
        patiently(failing(error))
    assert pauses == []


def test_patience_ends(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    with pytest.raises(TimeoutError):
        patiently(failing(*[TimeoutError()] * patience.NUM_TRIES))
    assert len(pauses) == patience.NUM_TRIES - 1
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(TimeoutError):
        patiently(failing(TimeoutError()))
    assert len(pauses) == patience.NUM_TRIES - 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (answered(401), PermissionError),
        (refused("NoSuchBucket", 404), FileNotFoundError),
        (refused("AccessDenied", 403), PermissionError),
        (refused("InternalError", 500), OSError),
        (answered(403), PermissionError),
        (answered(404), FileNotFoundError),
        (answered(412), FileExistsError),
        (answered(429), OSError),
        (answered(503), OSError),
        (NoCredentialsError(), PermissionError),
        (EndpointConnectionError(endpoint_url=SIGNED), OSError),
        (aiohttp.InvalidURL(SIGNED), OSError),
        (aiohttp.ClientPayloadError("half"), OSError),
    ],
)
def test_errors_of_libraries_become_those_of_the_system_without_secrets(
    error: Exception, expected: type[OSError]
) -> None:
    found = as_os_error(error)
    assert type(found) is expected
    assert "secret" not in str(found)
    with pytest.raises(expected) as caught:
        patiently(failing(*[error] * patience.NUM_TRIES))
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("status", [401, 404, 503])
def test_what_the_web_file_system_calls_not_found_is_what_it_was(status: int) -> None:
    try:
        raise FileNotFoundError(SIGNED) from answered(status)
    except FileNotFoundError as error:
        found = as_os_error(error)
    assert isinstance(found, FileNotFoundError) is (status == 404)
    assert f"HTTP {status}" in str(found)


def test_a_bug_stays_a_bug() -> None:
    assert as_os_error(TypeError("x")) is None
    assert as_os_error(KeyboardInterrupt()) is None
