"""The compiled kernels as Python functions.

Owns the signatures, which must be those of ``api.h``, and the checks at the border: behind it an
address is an address. While a kernel runs, other Python threads do.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.cpu.build import BuildError

__all__ = ["GroupLibrary", "Library", "address"]

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_BYTES = ctypes.c_char_p
# Behind the pool, which is everyone's first argument.
_SIGNATURES = {
    "linear": (_POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _INT, _POINTER, _LONG),
    "linear_int8": (
        *(_POINTER, _LONG, _LONG, _INT, _POINTER),
        *(_POINTER, _LONG, _INT, _POINTER, _LONG),
    ),
    "embed": (_POINTER, _LONG, _POINTER, _LONG, _POINTER),
    "embed_int8": (_POINTER, _LONG, _INT, _POINTER, _LONG, _POINTER),
    "rms_norm": (_POINTER, _LONG, _LONG, _POINTER, _FLOAT, _POINTER),
    "norm_heads": (_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _FLOAT),
    "gated": (_POINTER, _LONG, _LONG, _INT, _POINTER),
    "soft_cap": (_POINTER, _LONG, _FLOAT),
    "route": (_POINTER, _LONG, _LONG, _LONG, _INT, _POINTER, _POINTER),
    "rotate_and_store": (
        *(_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG),
        *(_POINTER, _POINTER, _POINTER),
    ),
    "attention": (
        *(_POINTER, _POINTER, _POINTER),
        *(_POINTER, _LONG, _POINTER, _LONG, _POINTER),
    ),
    "layers": (
        *(_POINTER, _POINTER, _FLOAT, _POINTER, _POINTER, _LONG),
        *(_POINTER, _POINTER, _POINTER),
    ),
    "sample": (_POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "log_probabilities": (_POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _POINTER),
}

# Behind the group; each returns what went wrong.
_GROUP_SIGNATURES = {
    "join": (ctypes.c_double,),
    "sum": (_POINTER, _LONG),
    "gather": (_POINTER, _LONG, _LONG, _POINTER, _LONG),
    "share": (_BYTES, ctypes.POINTER(_LONG)),
    "agree": (ctypes.c_uint64,),
}


class Library:
    """One loaded library and one pool of threads."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the library and start the threads.

        Args:
            path: what ``build`` returned.
            threads: that compute, the calling one included.

        Raises:
            BuildError: the library cannot be loaded.
        """
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"cannot load the compiled kernels: {error}") from None
        library.chairlift_pool_new.argtypes = (_INT,)
        library.chairlift_pool_new.restype = _POINTER
        library.chairlift_pool_delete.argtypes = (_POINTER,)
        library.chairlift_pool_delete.restype = None
        self._functions = {
            name: _declare(library, name, _POINTER, *types) for name, types in _SIGNATURES.items()
        }
        self._functions["layers"].restype = _INT
        self._pool = _declare(library, "pool_new", _INT, result=_POINTER)(threads)
        delete = _declare(library, "pool_delete", _POINTER)
        # Not at exit: a thread may still be inside a kernel then, and the process ends anyway.
        weakref.finalize(self, delete, self._pool).atexit = False

    def call(self, name: str, *arguments: Any) -> int:
        """Run a kernel; arguments as in ``api.h``, without the pool and the prefix of the name.

        Returns:
            What the kernel does; 0 where that is nothing.
        """
        return self._functions[name](self._pool, *arguments) or 0


class GroupLibrary:
    """One seat in a group of ranks that share memory."""

    handle: int
    """For kernels that add up across ranks by themselves; good for as long as this object."""

    def __init__(self, path: Path, file: str, rank: int, size: int, room: int) -> None:
        """Open the group's file, or make it; nobody is waited for.

        Args:
            path: what ``build`` returned.
            file: that the ranks share, the same for all.
            rank: whose seat it is.
            size: how many ranks there are, two or more.
            room: how many floats go in one piece, the same for all.

        Raises:
            BuildError: the library cannot be loaded.
            OSError: the file cannot be made.
        """
        try:
            library = ctypes.CDLL(str(path), use_errno=True)
        except OSError as error:
            raise BuildError(f"cannot load the compiled kernels: {error}") from None
        self._functions = {
            name: _declare(library, f"group_{name}", _POINTER, *types, result=_INT)
            for name, types in _GROUP_SIGNATURES.items()
        }
        self._message = _declare(library, "group_message", _POINTER, result=_POINTER)
        self._leave = _declare(library, "group_leave", _POINTER)
        new = _declare(library, "group_new", _BYTES, _INT, _INT, _LONG, result=_POINTER)
        handle = new(file.encode(), rank, size, room)
        if handle is None:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), file)
        self.handle = handle
        delete = _declare(library, "group_delete", _POINTER)
        weakref.finalize(self, delete, handle).atexit = False  # as above

    def call(self, name: str, *arguments: Any) -> int:
        """As in ``api.h``, without the group: 0, -1, or 1 + the rank that is lost."""
        return int(self._functions[name](self.handle, *arguments))

    def message(self, length: int) -> bytes:
        """What rank 0 has shared."""
        return ctypes.string_at(self._message(self.handle), length)

    def leave(self) -> None:
        """From any thread: whoever is in a call, or makes one, learns that this rank is lost."""
        self._leave(self.handle)


def address(tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Where the tensor's elements start.

    Raises:
        ValueError: it is not of this shape and kind, not contiguous, or not on the CPU.
    """
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(
            f"expected {dtype} {list(shape)}, found {tensor.dtype} {list(tensor.shape)}"
        )
    if not (tensor.is_contiguous() and tensor.is_cpu):
        raise ValueError(f"expected a contiguous tensor on the CPU, found one on {tensor.device}")
    return tensor.data_ptr()


def _declare(library: ctypes.CDLL, name: str, *types: Any, result: Any = None) -> Any:
    function = getattr(library, f"chairlift_{name}")
    function.argtypes, function.restype = types, result
    return function
