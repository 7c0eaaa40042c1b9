"""A model's weights, packed: from the cache folder, or from the model's files and kept there.

Owns the name of the packed file, which changes with all that its content depends on; that one of
several replicas makes it while the others wait; and how long files stay. Where nothing can be kept
the replica packs for itself at each start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels import interface, quantised
from chairlift.kernels.cpu import panels
from chairlift.kernels.interface import Kernels
from chairlift.workers import decoder_weights, packed_file, shards, weights
from chairlift.workers.decoder_weights import DecoderWeights, pack_weights
from chairlift.workers.packed_file import PackedFileDamaged, read_packed, write_packed
from chairlift.workers.shards import Share
from chairlift.workers.weights import load_weights

__all__ = ["PackedCache"]

_LOGGER = logging.getLogger(__name__)

_SUFFIX = ".weights"
_UNUSED_S = 30 * 24 * 3600.0
_SMALL = 8 * 1024**2
"""Bytes of a model's files below which packing takes no longer than looking."""

_SOURCES = (
    *sorted(Path(panels.__file__).parent.glob("panels*")),
    *(
        Path(str(module.__file__))
        for module in (interface, quantised, decoder_weights, packed_file, shards, weights)
    ),
    *sorted(Path(weights.__file__).parent.glob("weights_*.py")),
)
"""The code that a packed file is made by, and read by: another one has files of its own."""


class PackedCache:
    """The packed files of one folder."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made before something is kept.

        Args:
            folder: for these files alone.
        """
        self._folder = folder

    def load(
        self,
        spec: ModelSpec,
        kernels: Kernels,
        keep: Set[str],
        progress: Callable[[float], None],
        share: Share,
        *,
        shared: bool,
    ) -> DecoderWeights:
        """The model's weights, as these kernels read them.

        Args:
            spec: the model.
            kernels: that are to compute.
            keep: encodings of matrices that are not decoded.
            progress: told the done share, up to 1.
            share: the rank's part of the model.
            shared: hold them in memory that replicas on this machine have together.

        Raises:
            ModelError: the model's files are not as they must be.
        """
        if sum(part.stat().st_size for part in _files(spec)) < _SMALL:
            return _pack(spec, kernels, keep, progress, share)
        file = self._folder / _name(spec, kernels, keep, share)
        found = _find(file, shared=shared)
        if found is not None:
            return found
        with self._alone():
            found = _find(file, shared=shared)  # somebody may have made it meanwhile
            if found is None:
                packed = _pack(spec, kernels, keep, progress, share)
                found = self._make(file, packed, shared=shared)
        return found

    def _make(self, file: Path, packed: DecoderWeights, *, shared: bool) -> DecoderWeights:
        """Keep what was packed, if possible, and tidy up."""
        try:
            write_packed(file, packed)
        except OSError as error:
            _LOGGER.warning("cannot keep packed weights in %s: %s", self._folder, error.strerror)
            return packed
        self._sweep(file)
        return (_find(file, shared=True) or packed) if shared else packed

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process packs; where there is no such lock, do not."""
        lock = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)  # which also unlocks; the end of the process would, too

    def _sweep(self, newest: Path) -> None:
        """Remove what ``newest`` replaces, what nobody has used for long, and what was left."""
        same, _, _ = newest.name.rpartition("-")
        with contextlib.suppress(OSError):
            for file in self._folder.iterdir():
                replaced = file.name.startswith(f"{same}-") and file != newest
                if replaced or time.time() - file.stat().st_mtime > _UNUSED_S:
                    file.unlink(missing_ok=True)


def _find(file: Path, *, shared: bool) -> DecoderWeights | None:
    """What the file holds; None if there is none, or none that is whole."""
    try:
        found = read_packed(file, shared=shared)
    except OSError:
        return None
    except PackedFileDamaged as error:
        _LOGGER.warning("packing weights again: %s", error)
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # it is in use
    return found


def _pack(
    spec: ModelSpec,
    kernels: Kernels,
    keep: Set[str],
    progress: Callable[[float], None],
    share: Share,
) -> DecoderWeights:
    weights = load_weights(spec, progress, keep=keep, share=share)
    return pack_weights(spec, weights, kernels, rank=share.rank)


def _files(spec: ModelSpec) -> list[Path]:
    """Those that the weights depend on."""
    if spec.path.is_dir():
        return sorted([*spec.path.glob("*.safetensors"), spec.path / "config.json"])
    return [spec.path]


def _name(spec: ModelSpec, kernels: Kernels, keep: Set[str], share: Share) -> str:
    """``MODEL-MATH-RANK-DIGEST.weights``; what differs in the digest alone is replaced."""
    digest = hashlib.sha256()
    for part in _files(spec):
        state = part.stat()
        digest.update(f"{part.name} {state.st_size} {state.st_mtime_ns}\0".encode())
    digest.update(
        f"{spec} {type(kernels).__name__} {sorted(keep)} {share} {sys.byteorder}\0".encode()
    )
    for source in _SOURCES:
        digest.update(source.read_bytes())
    model = hashlib.sha256(str(spec.path).encode()).hexdigest()[:12]
    kind = f"{'int8' if keep else 'float32'}-{share.rank}of{share.size}"
    return f"{model}-{kind}-{digest.hexdigest()[:16]}{_SUFFIX}"
