"""What a source with a signed URL is called, and where its secret may be."""

from __future__ import annotations

import os

import pytest

from pipeline import signing
from pipeline.signing import learn, redact, seal, to_public, unseal, url_of, urls_of

S3 = "https://b.s3.amazonaws.com/v/a.mp4"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        (f"{S3}?X-Amz-Algorithm=x&X-Amz-Signature=secret&X-Amz-Expires=9", S3),
        ("https://s/a.mp4?X-Goog-Signature=secret", "https://s/a.mp4"),
        ("https://s/a.mp4?sv=1&sr=b&sig=secret&se=2", "https://s/a.mp4"),
        ("https://c/a.mp4?Expires=1&Signature=secret&Key-Pair-Id=k", "https://c/a.mp4"),
        ("https://me:secret@h:8080/a.mp4", "https://h:8080/a.mp4"),
        ("http://secret@h/a.mp4#t=3", "http://h/a.mp4"),
        ("https://h?token=secret", "https://h"),
        ("ftp://me:secret@h/a?b.mp4", "ftp://h/a?b.mp4"),
        ("s3://bucket/what?.mp4", "s3://bucket/what?.mp4"),
        ("gs://bucket/a@b:c.mp4", "gs://bucket/a@b:c.mp4"),
        ("abfs://container@account.dfs.core.windows.net/a", None),
        ("/a/b?c", None),
        ("file:///a@b?c", None),
        ("c:d.mp4", None),
    ],
)
def test_the_public_form_has_no_secret(url: str, public: str | None) -> None:
    assert to_public(url) == (url if public is None else public)
    assert to_public(to_public(url)) == to_public(url)


def test_of_other_queries_each_is_a_source_of_its_own_that_is_not_shown() -> None:
    one, other = (to_public(f"https://h/v?id={number}") for number in (1, 2))
    assert one != other
    assert one.startswith("https://h/v?~")
    assert "id" not in one
    assert to_public(one) == one
    assert to_public("https://h/v?id=1&X-Amz-Signature=s") == one
    assert to_public("https://h/v?b=&a=1") == to_public("https://h/v?a=1&b=")


def test_a_url_is_remembered_by_its_public_form_and_the_newest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signing, "_urls", {})
    assert learn(f"{S3}?X-Amz-Signature=1") == S3
    assert learn(f"{S3}?X-Amz-Signature=2") == S3
    assert url_of(S3) == f"{S3}?X-Amz-Signature=2"
    assert learn("s3://b/a") == url_of("s3://b/a") == "s3://b/a"
    assert urls_of([S3, "s3://b/a"]) == {S3: f"{S3}?X-Amz-Signature=2"}


@pytest.mark.parametrize(
    "text",
    [
        f"403, message='Forbidden', url='{S3}?X-Amz-Signature=secret'",
        "Cannot connect to https://me:secret@h/a.mp4",
        "see http://h/a?x=secret, and ftp://secret@h/b",
    ],
)
def test_somebody_elses_text_is_freed_of_secrets(text: str) -> None:
    assert "secret" in text
    assert "secret" not in redact(text)
    assert redact(text)[:4] == text[:4]


def test_a_text_without_a_url_stays_as_it_is() -> None:
    assert redact("what? user@host: 3 // 4") == "what? user@host: 3 // 4"


def test_what_is_sealed_is_read_with_its_key_only() -> None:
    key = os.urandom(32)
    urls = {S3: f"{S3}?X-Amz-Signature=secret", "https://é": "https://é?token=x"}
    sealed = seal(urls, key=key)
    assert unseal(sealed, key=key) == urls
    assert b"secret" not in sealed
    assert b"https" not in sealed
    with pytest.raises(ValueError):
        unseal(sealed, key=os.urandom(32))
    assert unseal(seal({}, key=key), key=key) == {}
