"""Stores for tests: a local S3 server, a web server that asks for signatures, one with faults."""

from __future__ import annotations

import errno
import os
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A server; the environment in which s3:// leads to it."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.stop()


@dataclass
class WebServer:
    """Files by http; those whose name begins with "signed" ask for `secret`."""

    files: dict[str, bytes] = field(default_factory=dict)
    secret: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    """How often a GET was answered whole, a path."""
    answer: Callable[[str, str], int] = lambda *_: 0
    """(method, path) -> a status to answer instead; 0: none."""
    half: set[str] = field(default_factory=set)
    """Paths of which a GET ends in the middle, once."""
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        """Serve in threads."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.reply("HEAD")

            def do_GET(self) -> None:
                self.reply("GET")

            def reply(self, method: str) -> None:
                path, _, query = self.path.partition("?")
                path = urllib.parse.unquote(path)
                status = web.answer(method, path)
                signed = path.rpartition("/")[2].startswith("signed")
                if not status and signed and f"X-Amz-Signature={web.secret}" not in query:
                    status = 403
                if not status and path not in web.files:
                    status = 404
                data = b"" if status else web.files[path]
                self.send_response(status or 200)
                self.send_header("Content-Length", str(len(data)))
                if data:
                    self.send_header("ETag", f'"{hash(data)}"')
                self.end_headers()
                if method != "GET":
                    return
                if path in web.half:
                    web.half.discard(path)
                    self.wfile.write(data[: len(data) // 2])
                    return
                if not status:
                    web.asked[path] += 1
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        return server


@contextmanager
def web_server(files: Mapping[str, bytes] | None = None, **options: Any) -> Iterator[WebServer]:
    """A server of files by path."""
    web = WebServer(files=dict(files or {}), **options)
    server = web.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Fault:
    """What goes wrong in some of the calls of one method of `FaultyStore`."""

    method: str
    kind: str
    """timeout, unavailable, denied, slow; half: in the middle; lost: done, but not answered;
    full: this machine's disk."""
    name: str = ""
    """Only of files whose name has this."""
    first: int = 1
    """The first call that fails, counted from 1, and how many do."""
    count: int = 1
    every: int = 0
    """Else every n-th call."""
    calls: int = 0
    num_injected: int = 0

    def is_due(self, method: str, path: str) -> bool:
        """Count a call: whether it fails."""
        if method != self.method or self.name not in path.rpartition("/")[2]:
            return False
        self.calls += 1
        due = (
            self.calls % self.every == 0
            if self.every
            else self.first <= self.calls < self.first + self.count
        )
        self.num_injected += due
        return due


_ERRORS: dict[str, Callable[[], OSError]] = {
    "timeout": lambda: TimeoutError("no answer"),
    "unavailable": lambda: OSError(errno.EIO, "HTTP 503"),
    "denied": lambda: PermissionError(errno.EACCES, "HTTP 403"),
    "half": lambda: ConnectionResetError(errno.ECONNRESET, "reset in the middle"),
    "lost": lambda: TimeoutError("done, but not answered"),
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
}


class FaultyStore(MemoryFileSystem):  # type: ignore[misc]
    """faulty://: as memory://, with faults; an upload is seen when it has ended."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Fault]] = []
    lock = threading.RLock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace(f"{cls.protocol}://", "/")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        return self._call("pipe_file", path, super().pipe_file, path, value, mode=mode, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        def half() -> None:
            self._write_half(lpath, rpath)

        return self._call("put_file", rpath, super().put_file, lpath, rpath, half=half, **options)

    def cat_file(self, path: str, **options: Any) -> Any:
        return self._call("cat_file", path, super().cat_file, path, **options)

    def get_file(self, rpath: str, lpath: str, **options: Any) -> Any:
        def half() -> None:
            data = self.store[rpath].getvalue()
            Path(lpath).write_bytes(data[: len(data) // 2])

        return self._call("get_file", rpath, super().get_file, rpath, lpath, half=half, **options)

    find = AbstractFileSystem.find  # by `ls`, as most file systems do

    def info(self, path: str, **options: Any) -> Any:
        return self._call("info", path, super().info, path, **options)

    def ls(self, path: str, **options: Any) -> Any:
        return self._call("ls", path, super().ls, path, **options)

    def _write_half(self, lpath: str, rpath: str) -> None:
        pass  # it is not seen

    def _call(
        self,
        method: str,
        path: str,
        work: Callable[..., Any],
        *args: Any,
        half: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Any:
        with self.lock:
            due = [fault for fault in self.faults if fault.is_due(method, path)]
        if due and due[0].kind == "slow":
            time.sleep(0.05)
        elif due and due[0].kind == "half":
            half()
            raise _ERRORS["half"]()
        elif due and due[0].kind != "lost":
            raise _ERRORS[due[0].kind]()
        result = work(*args, **options)
        if due and due[0].kind == "lost":
            raise _ERRORS["lost"]()
        return result


class PlainFaultyStore(FaultyStore):
    """faultyplain://: a half upload is seen, as on a file server."""

    protocol = "faultyplain"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Fault]] = []

    def _write_half(self, lpath: str, rpath: str) -> None:
        data = Path(lpath).read_bytes()
        MemoryFileSystem.pipe_file(self, rpath, data[: len(data) // 2])


def register() -> None:
    """Let fsspec know faulty:// and faultyplain://."""
    for cls in (FaultyStore, PlainFaultyStore):
        fsspec.register_implementation(cls.protocol, cls, clobber=True)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Of a child process."""
    return {**os.environ, **extra}
