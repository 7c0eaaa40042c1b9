"""The compiled kernels as Python functions.

Owns the signatures, which must be those of ``api.h``, and the checks at the border: behind it an
address is an address. While a kernel runs, other Python threads do.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.cpu.build import BuildError

__all__ = ["Library", "address"]

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
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
    "silu_mul": (_POINTER, _LONG, _LONG, _POINTER),
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
        self._pool = _declare(library, "pool_new", _INT, result=_POINTER)(threads)
        delete = _declare(library, "pool_delete", _POINTER)
        # Not at exit: a thread may still be inside a kernel then, and the process ends anyway.
        weakref.finalize(self, delete, self._pool).atexit = False

    def call(self, name: str, *arguments: Any) -> None:
        """Run a kernel; arguments as in ``api.h``, without the pool and the prefix of the name."""
        self._functions[name](self._pool, *arguments)


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
