"""A proxy before an HTTP server that makes it slow, and makes it fail in the ways that stores do.

``python fault_proxy.py UPSTREAM_PORT`` prints the port it listens on and runs until it is killed; `FaultProxy`
starts it and tells it what to do. All requests take `latency` seconds longer, each connection passes at most
`bandwidth` bytes a second, and the first `rule` that fits a request makes it fail:

    FaultProxy.rule("503", method="GET", path="x.tar", after=1, times=2)

leaves the first GET of x.tar alone and answers the next two by 503. Kinds of failure:

    429 500 503 403 404 …   that status, with S3's XML for it
    expired                 400, and the code ExpiredToken
    reset                   the connection is reset before any answer
    reset_upload            … in the middle of the request's body
    lost_reply              … after the server has done what was asked
    cut, cut_reset          half of the body (or `bytes` of it), then the connection ends, or is reset
    short                   half of the body, and a Content-Length and Content-Range that say so
    flip                    one byte of the body is another one
    stall, stall_body       nothing for `seconds`: before the answer, or in the middle of the body
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

_CONTROL = "/__control"
_CODES = {
    "403": "AccessDenied",
    "404": "NoSuchKey",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "SlowDown",
}
_KEPT = 50_000  # requests that are remembered
_CHUNK = 256 << 10


# -- for tests


class FaultProxy:
    """A proxy before the server at `port` of this machine, in a process of its own."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def reset(
        self, latency: float = 0.0, bandwidth: float = 0.0, rules: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        """Forget what was counted, and do this from now on."""
        self._ask({"latency": latency, "bandwidth": bandwidth, "rules": list(rules)})

    @staticmethod
    def rule(kind: str, **more: Any) -> dict[str, Any]:
        """One failure. `method` (as ``GET|HEAD``) and `path` (a part of it) say of what; the first `after`
        requests and those after `times` more are spared, as are all but each `every`-th.
        """
        return {"kind": kind, **more}

    def stats(self) -> dict[str, Any]:
        """What passed since the last `reset`: `requests`, `methods`, bytes `up` and `down` (of bodies), `connections`,
        `most_at_once`, `log` ((method, path, range) of each), `failed` (how many requests a rule hit).
        """
        return self._ask(None)

    def _ask(self, change: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if change is None else json.dumps(change).encode()
        with urllib.request.urlopen(self.url + _CONTROL, data, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- the program


class _Cut(Exception):
    """This connection is done with."""


class _Proxy:
    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.change({})

    def change(self, told: Mapping[str, Any]) -> None:
        self.latency: float = told.get("latency", 0.0)
        self.bandwidth: float = told.get("bandwidth", 0.0)
        self.rules: list[dict[str, Any]] = told.get("rules", [])
        self.now = 0
        self.stats: dict[str, Any] = {
            "requests": 0, "connections": 0, "up": 0, "down": 0, "methods": {}, "most_at_once": 0, "log": [], "failed": 0,
        }  # fmt: skip

    def rule_for(self, method: str, path: str) -> Mapping[str, Any]:
        for rule in self.rules:
            if method not in rule.get("method", method).split("|") or rule.get("path", "") not in path:
                continue
            seen = rule["seen"] = rule.get("seen", 0) + 1
            beyond = seen - rule.get("after", 0)
            if beyond <= 0 or beyond > rule.get("times", beyond) or beyond % rule.get("every", 1):
                continue
            self.stats["failed"] += 1
            return rule
        return {"kind": ""}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stats["connections"] += 1
        connection = _Connection(self, reader, writer)
        try:
            while await connection.exchange():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, _Cut):
            pass
        finally:
            connection.close()


class _Connection:
    """One connection of a client, and the one to the server that serves it."""

    def __init__(self, proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy, self.reader, self.writer = proxy, reader, writer
        self.server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self) -> bool:
        """One request and its answer; False if there is no further one."""
        head = await _head(self.reader)
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if path == _CONTROL:
            return await self._control(method, head)
        proxy = self.proxy
        stats = proxy.stats
        stats["requests"] += 1
        stats["methods"][method] = stats["methods"].get(method, 0) + 1
        if len(stats["log"]) < _KEPT:
            stats["log"].append((method, path, _header(head, b"range")))
        rule = proxy.rule_for(method, path)
        proxy.now += 1
        stats["most_at_once"] = max(stats["most_at_once"], proxy.now)
        try:
            return await self._pass(method, head, rule)
        finally:
            proxy.now -= 1

    async def _control(self, method: str, head: bytes) -> bool:
        if method == "POST":
            self.proxy.change(
                json.loads(await self.reader.readexactly(int(_header(head, b"content-length") or 0)))
            )
        body = json.dumps(self.proxy.stats).encode()
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await self.writer.drain()
        return False

    async def _pass(self, method: str, head: bytes, rule: Mapping[str, Any]) -> bool:
        kind = rule["kind"]
        if kind == "reset":
            self._reset()
        if _header(head, b"expect"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(
                line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")
            )
        if self.proxy.latency:
            await asyncio.sleep(self.proxy.latency)
        if kind.isdigit() or kind == "expired":
            return await self._refuse(method, head, kind)
        length = int(_header(head, b"content-length") or 0)
        if kind == "reset_upload":
            await self.reader.readexactly(length // 2)
            self._reset()
        from_server, to_server = await self._connect()
        to_server.write(head)
        if (_header(head, b"transfer-encoding") or "").lower() == "chunked":
            await self._chunks(self.reader, to_server, "up")
        else:
            await self._copy(self.reader, to_server, length, "up")
        answer = await _head(from_server)
        while answer.startswith(b"HTTP/1.1 100"):
            answer = await _head(from_server)
        if kind == "lost_reply":
            await self._drop(from_server, answer)
            self._reset()
        if kind == "stall":
            await asyncio.sleep(rule["seconds"])
        await self._answer(method, from_server, answer, rule)
        return (_header(answer, b"connection") or "").lower() != "close"

    async def _refuse(self, method: str, head: bytes, kind: str) -> bool:
        await self.reader.readexactly(int(_header(head, b"content-length") or 0))
        status, code = ("400", "ExpiredToken") if kind == "expired" else (kind, _CODES.get(kind, "Injected"))
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'
        length = len(body)
        self.writer.write(
            f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\r\n"
            f"{'' if method == 'HEAD' else body}".encode()
        )
        await self.writer.drain()
        return True

    async def _answer(
        self, method: str, source: asyncio.StreamReader, answer: bytes, rule: Mapping[str, Any]
    ) -> None:
        kind, status = rule["kind"], int(answer.split(b" ", 2)[1])
        if method == "HEAD" or status in (204, 304):
            self.writer.write(answer)
            await self.writer.drain()
            return
        if (_header(answer, b"transfer-encoding") or "").lower() == "chunked":
            self.writer.write(answer)
            await self._chunks(source, self.writer, "down")
            return
        length = int(_header(answer, b"content-length") or 0)
        if kind == "short":
            half = length // 2
            answer = answer.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % half)
            self.writer.write(answer)
            await self._copy(source, self.writer, half, "down")
            raise _Cut
        self.writer.write(answer)
        if kind in ("cut", "cut_reset", "stall_body"):
            await self._copy(source, self.writer, min(length, rule.get("bytes", length // 2)), "down")
            if kind == "stall_body":
                await asyncio.sleep(rule["seconds"])
            if kind != "cut":
                self._reset()
            raise _Cut
        if kind == "flip" and length:
            body = bytearray(await source.readexactly(length))
            body[length // 2] ^= 0xFF
            self.writer.write(bytes(body))
            self.proxy.stats["down"] += length
            await self.writer.drain()
            return
        await self._copy(source, self.writer, length, "down")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.server is None or self.server[0].at_eof() or self.server[1].is_closing():
            self.server = await asyncio.open_connection("127.0.0.1", self.proxy.upstream, limit=1 << 20)
        return self.server

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, count: int, way: str
    ) -> None:
        began, done, bandwidth = time.perf_counter(), 0, self.proxy.bandwidth
        while done < count:
            data = await source.read(min(_CHUNK if not bandwidth else 64 << 10, count - done))
            if not data:
                raise _Cut
            done += len(data)
            target.write(data)
            self.proxy.stats[way] += len(data)
            await target.drain()
            if bandwidth and (ahead := done / bandwidth - (time.perf_counter() - began)) > 0.002:
                await asyncio.sleep(ahead)

    async def _chunks(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str) -> None:
        size = -1
        while size:
            line = await source.readline()
            size = int(line.split(b";")[0], 16)
            target.write(line + await source.readexactly(size + 2))
            await target.drain()
            self.proxy.stats[way] += size

    async def _drop(self, source: asyncio.StreamReader, answer: bytes) -> None:
        """Wait until the server has done with the request."""
        if (_header(answer, b"transfer-encoding") or "").lower() == "chunked":
            size = -1
            while size:
                size = int((await source.readline()).split(b";")[0], 16)
                await source.readexactly(size + 2)

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.writer.transport.abort()
        raise _Cut

    def close(self) -> None:
        self.writer.close()
        if self.server is not None:
            self.server[1].close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def _header(head: bytes, name: bytes) -> str | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().decode("latin-1")
    return None


async def _main(upstream: int) -> None:
    proxy = _Proxy(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    # The pipe ends when whoever started this is gone, killed or not.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
