"""Atomic writes of files and folders, which appear complete or not at all, also after a power loss; checked reads; full
disks; sizes that tell what a kill cut; SHA-256."""

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

#: Errors of the operating system for a place that cannot be written: the disk, the quota or the largest allowed file is
#: full; the disk is read-only or broken; there is no permission; no folder or file of that name can be there.
_CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
#: The same for a file system that cannot wait until a file is on disk, and a folder that may be written and not read.
_CANNOT_SYNC = {errno.EINVAL, errno.EACCES, errno.ENOTSUP}
#: Files of settings are larger by mistake only, and PyYAML reads some 300 KB per second.
_MAX_TEXT_BYTES = 1024 * 1024

_LFS = b"version https://git-lfs.github.com/spec/"
#: Ends the message about such a file.
LFS_WAY_OUT = "is a pointer of Git LFS, not the file itself; run `git lfs pull` in its repository, or download it again"
#: Git LFS's own limit of a pointer.
LFS_POINTER_BYTES = 1024


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder next to `out`, which is renamed to `out` when the block ends.

    When the block raises, the temporary folder is removed. A process that is killed leaves it; the next call for
    the same `out` removes it and logs a warning with its name. Folder and files can be read by whom the umask says.

    Raises:
        ConfigError: `out` exists already, its parent cannot be written, or another process created it in the meantime.
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
    """Sets the modes of files to those of new files by the umask, because safetensors writes files of mode 600.

    The mode of the folder is 777 without the umask; asking for the umask itself would change it for other threads.
    """
    allowed = folder.stat().st_mode & (stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) | allowed)


def check_plain_name(path: Path, flag: str) -> None:
    """Refuses a name that promises gzip, for a file that is written as plain text. Raises: ConfigError."""
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
    """Holds a lock on the folder of a file, for a block that reads the file and writes it again.

    Waits for other processes and threads that hold it; the end of a process frees it. The folder is locked, because a
    file that is renamed to `path` is another one.

    Raises: OSError if the folder cannot be read.
    """
    descriptor = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Waits until a file, or a folder with all its files, is on disk: otherwise a power loss may leave a name alone."""
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
    """Which file of a folder is missing or smaller than it was, for a message; empty if none is."""
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := path.stat().st_size) < size:
            return f"{path} has {found:,} of {size:,} bytes"
    return ""


@contextmanager
def report_disk_errors(out: Path, way_out: str) -> Iterator[None]:
    """Turns the OSError of an unwritable place into a ConfigError.

    Args:
        out: named in the message if the OSError names no file.
        way_out: the end of the message.

    Raises:
        ConfigError: nothing can be written there, as on a full disk.
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
    """Turns an OSError of the block, which prepares the folder `out`, into a ConfigError."""
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
    """Raises: ConfigError if there is no regular file of this path that may be read; a pipe could wait for ever."""
    if problem := denied(path):
        raise ConfigError(problem)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        shown = path if str(path).isprintable() else repr(str(path))  # a line end of the file with the path
        raise ConfigError(f"{shown} cannot be read: {_reason(error)}{missing_path_hint(path)}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise ConfigError(f"{path} cannot be read: it is {kind}, not a file")


def denied(path: Path) -> str:
    """The message that this user may not read a file or enter a folder on its path, and what the owner can do.

    Empty if the user may, or if there is nothing of that name.
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
    """Looks for the files and folders that settings name, before a library takes seconds to be imported.

    Args:
        names: attributes, each with a path, or without one if it is empty or not there; flags have the same names. The
            path - is standard input.

    Raises: ConfigError if there is nothing of that name, or this user may not read it.
    """
    for name in names:
        path = getattr(settings, name, None)
        flag = f"--{name.replace('_', '-')}"
        if path and (problem := denied(Path(path))):
            raise ConfigError(f"{flag}: {problem}")
        if path and str(path) != "-" and not os.path.exists(path):
            raise ConfigError(f"{flag}: there is no file or folder {path}{missing_path_hint(Path(path))}")


def is_lfs_pointer(content: bytes) -> bool:
    """True if a file is a pointer of Git LFS instead of the content."""
    return content.startswith(_LFS)


def read_text(path: Path, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """The text of a file of settings.

    Raises:
        ConfigError: it cannot be read, is not a regular file, is larger than `max_bytes`, or is not in UTF-8.
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
    """The end of a message about a path that leads nowhere: where a relative path was looked for."""
    return "" if path.is_absolute() else f" (relative paths begin at the working directory, {Path.cwd()})"


def missing_model_hint(path: Path) -> str:
    """The end of the error for a missing folder of a model."""
    return f"{missing_path_hint(path)}; give the folder of a checkpoint, or its name on the hub, ORGANISATION/MODEL"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def cached_folder(name: str, build: Callable[[Path], None]) -> Path:
    """The folder of this name in the user's cache; `build` writes it, by `atomic_folder`, on first use.

    A user without a home that can be written gets a temporary folder, which the end of the process removes.

    Raises:
        ConfigError: `build` raised it, and no other process wrote the folder at the same time.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rerank" / name
        if folder.exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(folder.parent, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder.parent))
    except (OSError, RuntimeError) as error:  # the latter of a user without a home
        folder = Path(_folder_of_process()) / name
        log.warning(
            "%s cannot be kept, and is made again by the next process: %s; %s",
            *(name, error, "XDG_CACHE_HOME can name another folder for what is made once and kept"),
        )
    if not folder.exists():
        try:
            build(folder)
        except ConfigError:
            if not folder.exists():  # another process that started at the same time may have written it first
                raise
    return folder


@cache
def _folder_of_process() -> str:
    """A temporary folder that the end of the process removes."""
    folder = tempfile.mkdtemp(prefix="rerank-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_missing_folder(name: str) -> bool:
    """True if `name` is the path of a folder that does not exist, which no model hub can know.

    A name ORGANISATION/MODEL counts as a path if a folder ORGANISATION is in the working directory.
    """
    if os.path.isdir(name):
        return False
    slashes = name.count("/")
    looks_like_path = name.startswith((".", "~", "/")) or "\\" in name or slashes > 1 or not name.isascii()
    return looks_like_path or (slashes == 1 and os.path.isdir(Path(name).parent))


def hub_name_of(folder: Path) -> str:
    """ORGANISATION/MODEL, if a folder is a model in the cache of the hub; empty for any other folder."""
    found = re.fullmatch(r"models--(.+)", folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    return found[1].replace("--", "/", 1) if found else ""


def file_version(path: Path) -> tuple[int, ...]:
    """Modification time, inode and size of a file, which change when it is written; empty if there is no such file."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_ino, state.st_size


def sha256_of_files(paths: Iterable[Path]) -> str:
    """SHA-256 in hexadecimal digits: of the file's content for one file, of the joined digests for several in order."""
    with ThreadPoolExecutor() as pool:  # the shards of a 7B model take 8 s one after the other
        digests = list(pool.map(_sha256, paths))
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def start_hashing(paths: Sequence[Path]) -> Future[str]:
    """Computes `sha256_of_files` in a thread, because it takes 7 s of the weights of a 7B model."""
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
