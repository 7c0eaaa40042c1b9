"""The Ray cluster that ``chairlift serve`` starts on this machine, and stops again.

Owns Ray's folder and its end. Ray is imported late: its flags must stand in the environment
before, and every process of the cluster inherits them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import ServiceConfig, set_environment
from chairlift.cluster.ray_flags import FLAGS
from chairlift.deployments.data_plane import DataPlane

__all__ = ["LocalCluster", "replica_progress"]

PLENTY = 1e6
"""Of what only says on which node of a cluster something is to be."""


class LocalCluster:
    """A context manager: inside it Ray runs, outside nothing of it is left.

    Attributes:
        plane: for the services that are started in it.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        # All is on this machine, so no worker has to be reached from another one.
        token = ClusterToken.new() if config.workers.token_file is None else None
        self.plane = DataPlane(token, "127.0.0.1")
        self._own_folder = config.ray.temp_dir is None
        self._folder = Path(config.ray.temp_dir or tempfile.mkdtemp(prefix="chairlift-"))

    @property
    def folder(self) -> Path:
        """Where Ray keeps its sockets and logs."""
        return self._folder

    def _named_resources(self) -> set[str]:
        return {*self._config.router.resources, *self._config.workers.resources}

    def __enter__(self) -> Self:
        set_environment(FLAGS)
        import ray

        ray.init(
            address="local",
            namespace="chairlift",
            num_cpus=1,  # of which each worker takes next to nothing
            resources=dict.fromkeys(self._named_resources(), PLENTY),
            include_dashboard=False,
            object_store_memory=self._config.ray.object_store,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # Ray opens its folder to everybody, and so it stands in one that is closed.
            _temp_dir=str(self._folder / "ray" if self._own_folder else self._folder),
        )
        # Only now: it takes a second, and the first of Ray's processes starts meanwhile.
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import ray
        from ray import serve

        # While its controller goes, Ray prints errors that mean nothing to anybody.
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                serve.shutdown()
            finally:
                ray.shutdown()
        if self._own_folder and error is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def replica_progress() -> list[tuple[str, float]]:
    """Stage and fraction of every Worker that is starting or has started."""
    import ray

    names: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    calls = []
    for entry in names:
        if entry["name"].startswith("chairlift-worker-"):
            try:
                worker = ray.get_actor(entry["name"], namespace=entry["namespace"])
            except ValueError:  # it ended in between
                continue
            calls.append(worker.progress.remote())
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=1.0) if calls else ([], [])
    progress = []
    for call in done:
        try:
            progress.append(ray.get(call))
        except ray.exceptions.RayActorError:
            continue
    return progress
