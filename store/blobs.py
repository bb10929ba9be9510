"""Blobs: large payloads by key, over any fsspec file system."""

import asyncio
import contextlib
import errno
import os
import re
import secrets
from typing import Any

from fsspec.core import url_to_fs

from core.errors import ConfigurationError, NotFound, StoreError, StoreFull

_KEY = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Blobs:
    """Bytes by key under one root. A key's blob is whole or absent, never half written."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        protocol = filesystem.protocol
        # Object stores show an object only when it is complete; a local file shows every byte as it comes.
        self._renames = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    @classmethod
    def open(cls, url: str) -> "Blobs":
        """Blobs under an fsspec URL (``s3://bucket/prefix``, ``memory://name``) or a local folder.

        Raises ConfigurationError when the URL's file system is unknown or not installed.
        """
        try:
            filesystem, root = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(f"store.blobs_url '{url}' cannot be opened: {error}") from error
        return cls(filesystem, root)

    async def put(self, key: str, data: bytes) -> None:
        """Store ``data`` under ``key``, replacing what was there only when all of it is written.

        Raises StoreFull when no room is left, StoreError for any other failure.
        """
        path = self._path(key)
        await asyncio.to_thread(self._put, path, data)

    async def get(self, key: str) -> bytes:
        """The bytes under ``key``; raises NotFound, StoreError."""
        path = self._path(key)
        try:
            data: bytes = await asyncio.to_thread(self._filesystem.cat_file, path)
        except FileNotFoundError as error:
            raise NotFound(f"there is no blob {key}") from error
        except OSError as error:
            raise StoreError(f"blob {key} cannot be read: {error}") from error
        return data

    async def exists(self, key: str) -> bool:
        """Whether there is a blob under ``key``; raises StoreError."""
        path = self._path(key)
        try:
            return bool(await asyncio.to_thread(self._filesystem.exists, path))
        except OSError as error:
            raise StoreError(f"blob {key} cannot be looked up: {error}") from error

    async def delete(self, key: str) -> None:
        """Remove the blob, if there is one; raises StoreError."""
        path = self._path(key)
        try:
            await asyncio.to_thread(self._filesystem.rm_file, path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"blob {key} cannot be removed: {error}") from error

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key) or ".." in key.split("/"):
            raise StoreError(f"'{key}' is not a blob key")
        return f"{self._root}/{key}"

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self._renames:
                self._write_and_rename(path, data)
            else:
                self._filesystem.pipe_file(path, data)
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFull(f"no room for blob {path} ({len(data)} bytes)", hint="free disk space") from error
            raise StoreError(f"blob {path} cannot be written: {error}") from error

    def _write_and_rename(self, path: str, data: bytes) -> None:
        temporary = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            with self._filesystem.open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._filesystem.mv(temporary, path)
            _sync_folder(path.rpartition("/")[0])
        except OSError:
            # The rest of the temporary file may be unreachable too; the first error is the one to report.
            with contextlib.suppress(OSError):
                self._filesystem.rm_file(temporary)
            raise


def _sync_folder(path: str) -> None:
    # A new name is only as durable as the folder that it is in.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
