"""Atomic writes of files and folders, checked reads, errors of full disks, damage found by file sizes, and SHA-256.

What is written atomically appears complete or not at all, even after a power loss.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from rerank.errors import ConfigError

log = logging.getLogger(__name__)

#: Errors of the operating system when a path cannot be written: the disk or quota is full, or the file is too large;
#: the disk is read-only or broken; permission is missing; a file or folder of this name is impossible.
_CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
#: Errors of `fsync` on a file system that has none, and on a folder that may be written but not read.
_CANNOT_SYNC = {errno.EINVAL, errno.EACCES, errno.ENOTSUP}
#: A larger file of settings is a mistake, and would take long: PyYAML reads some 300 KB per second.
_MAX_TEXT_BYTES = 1024 * 1024

#: The beginning of a pointer of Git LFS.
_LFS = b"version https://git-lfs.github.com/spec/"
#: Follows the path of such a file in a message.
LFS_WAY_OUT = "is a pointer of Git LFS, not the file itself; run `git lfs pull` in its repository, or download it again"
#: The largest pointer that Git LFS allows.
LFS_POINTER_BYTES = 1024


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder next to `out`, which is renamed to `out` when the block ends.

    When the block raises, the temporary folder is removed. A process that is killed leaves it; the next call for
    the same `out` removes it and logs a warning with its name. The umask decides who can read the folder and its files.

    Raises:
        ConfigError: `out` exists already, its parent cannot be written, or another process created `out` meanwhile.
    """
    out = absolute_new_path(out)
    with report_uncreatable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        temporary = out.parent / f"{_prefix(out)}{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir()
    try:
        yield temporary
        open_to_readers(temporary)
        sync(temporary)
        rename_to_new(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_to_readers(folder: Path) -> None:
    """Lets the same users read the files as the folder, because safetensors writes files of mode 600.

    A new folder has the mode 777 less the umask. The umask itself cannot be read without changing it for other threads.
    """
    allowed = folder.stat().st_mode & (stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) | allowed)


def check_plain_name(path: Path, flag: str) -> None:
    """Raises: ConfigError if the name of a file that is written as plain text ends with .gz."""
    if path.suffix == ".gz":
        raise ConfigError(f"{flag} {path}: the file is plain text; give {path.with_suffix('')}, and compress it later")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`; the file that the block writes there replaces `path` when the block ends.

    When the block raises, the temporary file is removed and `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        _sync_one(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the folder of a file while the block reads the file and writes it again.

    Waits for other processes and threads that hold the lock; the end of a process frees it. A lock on the file itself
    would not hold, because the writer renames a new file to `path`.

    Raises: OSError if the folder cannot be read.
    """
    descriptor = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Waits until a file, or a folder with all its files, is on disk: a power loss may empty a file that is not."""
    for part in path.iterdir() if path.is_dir() else ():
        if part.is_file() or part.is_dir():
            sync(part)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def synced_sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files in a folder, by their paths in it, after their contents are on disk.

    Raises: OSError if the disk is full or broken.
    """
    sync(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def damage_of(folder: Path, sizes: Mapping[str, Any]) -> str:
    """The first file of a folder that is missing or smaller than it was, in words; empty if there is none.

    Args:
        sizes: path of a file in the folder → its size in bytes, from `synced_sizes`.
    """
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := path.stat().st_size) < size:
            return f"{path} has {found:,} of {size:,} bytes"
    return ""


@contextmanager
def report_disk_errors(out: Path, way_out: str) -> Iterator[None]:
    """Turns an OSError of the block that says that a path cannot be written into a ConfigError.

    Args:
        out: the path in the message if the OSError names no file.
        way_out: what the user can do, the end of the message.

    Raises:
        ConfigError: a path cannot be written, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise ConfigError(f"{error.filename or out} cannot be written: {error.strerror}; {way_out}") from error


def absolute_new_path(out: Path) -> Path:
    """The absolute path of a folder that is to be created. Raises: ConfigError if it exists."""
    if out.exists():
        raise ConfigError(f"{out.absolute()} exists already; remove it first or choose another folder")
    return out.absolute()


@contextmanager
def report_uncreatable(out: Path) -> Iterator[None]:
    """Turns an OSError of the block, which prepares the folder `out`, into a ConfigError with its path."""
    try:
        yield
    except OSError as error:
        reason = _reason(error)
        raise ConfigError(f"{out} cannot be created: {reason}; choose a folder that you may write") from error


def rename_to_new(folder: Path, out: Path) -> None:
    """Renames a folder to a new name. Raises: ConfigError if `out` exists, even as an empty folder."""
    try:
        if out.exists():
            raise FileExistsError
        folder.rename(out)
        _sync_one(out.parent)
    except OSError as error:
        if not out.exists():
            raise
        raise ConfigError(f"{out} exists already; another process created it in the meantime") from error


def check_file(path: Path) -> None:
    """Raises: ConfigError if the path is not a regular file that this user may read; a pipe could wait for ever."""
    if problem := denied(path):
        raise ConfigError(problem)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        shown = path if str(path).isprintable() else repr(str(path))  # a path from a file may end with a line end
        raise ConfigError(f"{shown} cannot be read: {_reason(error)}{missing_path_hint(path)}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise ConfigError(f"{path} cannot be read: it is {kind}, not a file")


def denied(path: Path) -> str:
    """The message that this user may not read a file or folder, or enter a folder above it, and what the owner can do.

    Empty if the user may read it, or if the path does not exist.
    """
    for part in (*reversed(path.absolute().parents), path):
        is_folder = os.path.isdir(part)
        needed = os.X_OK if part is not path else os.R_OK | (os.X_OK if is_folder else 0)
        if os.path.lexists(part) and not os.access(part, needed, effective_ids=True) and os.path.exists(part):
            mode = stat.S_IMODE(part.stat().st_mode)
            rights = "a+rx" if is_folder else "a+r"
            return f"{part} may not be read by this user (mode {mode:03o}): chmod {rights} {shlex.quote(str(part))}"
    return ""


def check_inputs(settings: object, names: Iterable[str]) -> None:
    """Checks that the files and folders of some settings exist, before a library takes seconds to be imported.

    Args:
        names: attributes of `settings` that are paths, and the names of their flags. An attribute that is missing or
            empty is not checked, nor is the path -, which is standard input.

    Raises: ConfigError if a path does not exist, or this user may not read it.
    """
    for name in names:
        path = getattr(settings, name, None)
        flag = f"--{name.replace('_', '-')}"
        if path and (problem := denied(Path(path))):
            raise ConfigError(f"{flag}: {problem}")
        if path and str(path) != "-" and not os.path.exists(path):
            raise ConfigError(f"{flag}: there is no file or folder {path}{missing_path_hint(Path(path))}")


def is_lfs_pointer(content: bytes) -> bool:
    """True if the content of a file is a pointer of Git LFS."""
    return content.startswith(_LFS)


def read_text(path: Path, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """The text of a file of settings.

    Raises:
        ConfigError: the file cannot be read, is not a regular file, is larger than `max_bytes`, or is not in UTF-8.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error
    if is_lfs_pointer(content):
        raise ConfigError(f"{path} {LFS_WAY_OUT}")
    if len(content) > max_bytes:
        raise ConfigError(f"{path} has {path.stat().st_size:,} bytes; a file of settings has at most {max_bytes:,}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: line {line}: the byte 0x{content[error.start]:02X} is not UTF-8; save the file as UTF-8"
        ) from error


def missing_path_hint(path: Path) -> str:
    """The end of the error for a path that does not exist: the folder in which a relative path begins."""
    return "" if path.is_absolute() else f" (relative paths begin at the working directory, {Path.cwd()})"


def missing_model_hint(path: Path) -> str:
    """The end of the error for a missing folder of a model."""
    return f"{missing_path_hint(path)}; give the folder of a checkpoint, or its name on the hub, ORGANISATION/MODEL"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def cached_folder(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` in the user's cache. If it is missing, `build` writes it, with `atomic_folder`.

    A user without a writable home gets a temporary folder instead, which is removed when the process ends.

    Raises:
        ConfigError: `build` failed, and no other process has written the folder meanwhile.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rerank" / name
        if folder.exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(folder.parent, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder.parent))
    except (OSError, RuntimeError) as error:  # `Path.home` raises RuntimeError for a user without a home
        folder = Path(_folder_of_process()) / name
        log.warning(
            "%s cannot be kept, and is made again by the next process: %s; %s",
            *(name, error, "XDG_CACHE_HOME can name another folder for what is made once and kept"),
        )
    if not folder.exists():
        try:
            build(folder)
        except ConfigError:
            if not folder.exists():  # another process may have written it first
                raise
    return folder


@cache
def _folder_of_process() -> str:
    """A temporary folder, which is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="rerank-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_missing_folder(name: str) -> bool:
    """True if `name` must be a path, and not the name of a model on a hub, and no folder has this path.

    ORGANISATION/MODEL counts as a path if the working directory has a folder ORGANISATION.
    """
    if os.path.isdir(name):
        return False
    slashes = name.count("/")
    looks_like_path = name.startswith((".", "~", "/")) or "\\" in name or slashes > 1 or not name.isascii()
    return looks_like_path or (slashes == 1 and os.path.isdir(Path(name).parent))


def hub_name_of(folder: Path) -> str:
    """ORGANISATION/MODEL of a folder in the cache of the Hugging Face Hub; empty for any other folder."""
    found = re.fullmatch(r"models--(.+)", folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    return found[1].replace("--", "/", 1) if found else ""


def file_version(path: Path) -> tuple[int, ...]:
    """Modification time in ns, inode and size in bytes of a file, which change when it is written; empty if missing."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_ino, state.st_size


def sha256_of_files(paths: Iterable[Path]) -> str:
    """SHA-256 of one file in hexadecimal digits; for several files, the SHA-256 of their joined digests, in order."""
    with ThreadPoolExecutor() as pool:  # the shards of a 7B model take 8 s one after the other
        digests = list(pool.map(_sha256, paths))
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def start_hashing(paths: Sequence[Path]) -> Future[str]:
    """Starts `sha256_of_files` in a thread, because the weights of a 7B model take 7 s."""
    thread = ThreadPoolExecutor(1)
    try:
        return thread.submit(sha256_of_files, paths)
    finally:
        thread.shutdown(wait=False)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prefix(out: Path) -> str:
    return f".{out.name}.building-"


def _remove_abandoned(out: Path) -> None:
    for folder in out.parent.iterdir():
        match = re.fullmatch(rf"{re.escape(_prefix(out))}(\d+)-.*", folder.name)
        if match and not _is_running(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)
            log.warning("removed %s, the unfinished folder that a killed process left", folder)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
