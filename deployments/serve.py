"""``chairlift serve``: start everything on this machine, say how to use it, stop it all again.

Owns the order of a start, its progress on the screen, and the signals: SIGINT and SIGTERM stop it,
SIGHUP makes it read its configuration again. What the Guard asks of it is ``follow_guard``'s.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import StartupError
from chairlift.cluster.guard_state import Mode
from chairlift.cluster.protocol import Batching
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.follow_guard import Follower, LastGood, Wish
from chairlift.deployments.local_cluster import LocalCluster, replica_progress
from chairlift.deployments.preflight import Checked, preflight, preflight_reload
from chairlift.deployments.reload import changes
from chairlift.deployments.self_look import OwnRouters, own_url, reachable

if TYPE_CHECKING:
    from ray.serve.schema import ApplicationStatusOverview

__all__ = ["FLAG_PATHS", "add_arguments", "run"]

Deploy: TypeAlias = Callable[[Checked, Callable[[str, float], None]], None]
"""Told what to run, and where to report how far it has come."""

FLAG_PATHS = {
    "model": "model.path",
    "model_name": "model.name",
    "host": "http.host",
    "port": "http.port",
    "grpc_port": "grpc.port",
    "replicas": "workers.replicas",
    "min_replicas": "workers.autoscaling.min_replicas",
    "max_replicas": "workers.autoscaling.max_replicas",
    "tensor_parallel": "workers.tensor_parallel",
    "routers": "router.replicas",
    "max_sequences": "engine.max_sequences",
    "token_budget": "engine.token_budget",
    "kv_memory": "engine.kv_memory",
    "batching": "engine.batching",
    "cpu_math": "engine.cpu_math",
    "shadow": "guard.mode",
}
"""Each flag is a path in the configuration tree."""

POLL_S = 0.25
START_POLL_S = 0.1
LOOK_S = 1.0
"""Between two looks at the Guard."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``serve``; each overrides the same path of the configuration file."""
    parser.add_argument("--config", metavar="FILE", help="YAML configuration")
    parser.add_argument("--model", help="smollm2, a GGUF file or a Hugging Face folder")
    parser.add_argument("--model-name", help="the name that clients use")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    parser.add_argument("--grpc-port", help="port of gRPC (1000 above the other)")
    parser.add_argument("--replicas", type=int, help="copies of the model (1)")
    parser.add_argument("--min-replicas", type=int, help="copies at the least, by load (1)")
    parser.add_argument("--max-replicas", type=int, help="copies at the most, by load (4)")
    parser.add_argument("--tensor-parallel", type=int, help="workers that share one copy (1)")
    parser.add_argument("--routers", type=int, help="routers that share the port (1)")
    parser.add_argument("--max-sequences", type=int, help="seats of one replica (32)")
    parser.add_argument("--token-budget", type=int, help="tokens of one step at most (512)")
    parser.add_argument("--kv-memory", metavar="SIZE", help="KV cache of one replica (auto)")
    parser.add_argument("--batching", help=", ".join(mode.value for mode in Batching))
    parser.add_argument("--cpu-math", help="float32, int8, auto (float32)")
    parser.add_argument(
        "--shadow",
        action="store_const",
        const="shadow",
        help="the Guard says what it would do, and does nothing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a clean stop. Raises StartupError."""
    overrides = {path: getattr(arguments, flag) for flag, path in FLAG_PATHS.items()}
    load = functools.partial(load_config, arguments.config, overrides)
    console = Console()
    checked = preflight(load())
    own = OwnRouters()
    signals = _Signals(reloads=arguments.config is not None)
    with contextlib.ExitStack() as stack:
        with _Progress(console) as progress:
            progress("starting Ray", 0.0)
            cluster = stack.enter_context(LocalCluster(checked.config))
            signals.listen()
            deploy = functools.partial(_deploy, cluster.plane, own, signals)
            try:
                deploy(checked, progress)
            except StartupError as error:
                raise StartupError(f"{error} (logs: {cluster.folder})") from None
        if not signals.stopped:
            _print_ready(console, checked)
            console.print(progress.report(), markup=False, highlight=False, soft_wrap=True)
        _until_stopped(console, load, checked, own, signals, deploy)
        console.print("stopping …")
    console.print("stopped")
    return 0


def _until_stopped(
    console: Console,
    load: Callable[[], ServiceConfig],
    running: Checked,
    own: OwnRouters,
    signals: _Signals,
    deploy: Deploy,
) -> None:
    """Apply changes until a signal or the Guard stops the service."""
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    follower, last_good, look_at = Follower(), LastGood(running), 0.0
    while not signals.wait(POLL_S):
        before = running
        if signals.take_reload():
            running = _reload(say, load, running, deploy)
        if (now := time.monotonic()) >= look_at and running.config.guard_mode is not Mode.OFF:
            look_at = now + LOOK_S
            wish = follower.look(own.guard_view(running.config), now)
            last_good.seen(follower.rung, now)
            if wish is Wish.STOP:
                say("the Guard stops the service")
                return
            if wish is Wish.ROLL_BACK:
                running = _roll_back(say, last_good, running, deploy)
        if running != before:
            last_good.applied(running)


def _reload(
    say: Callable[[str], None],
    load: Callable[[], ServiceConfig],
    running: Checked,
    deploy: Deploy,
) -> Checked:
    """Apply the configuration as it now is; returns what then runs."""
    try:
        checked = preflight_reload(load(), running)
    except StartupError as error:
        say(f"configuration refused, the old one stays: {error}")
        return running
    return _apply(say, checked, running, deploy)


def _roll_back(
    say: Callable[[str], None], last_good: LastGood[Checked], running: Checked, deploy: Deploy
) -> Checked:
    """Apply the last configuration that did well; returns what then runs."""
    good = last_good.take()
    if good is None:
        say("the Guard rolls back, but no earlier configuration did well; this one stays")
        return running
    say("the Guard rolls back to the last configuration that did well")
    return _apply(say, good, running, deploy)


def _apply(
    say: Callable[[str], None], checked: Checked, running: Checked, deploy: Deploy
) -> Checked:
    """Replace what runs, or stay with it if that fails; returns what then runs."""
    lines = changes(running.config, checked.config)
    if checked.policy != running.policy:
        lines.append("guard.file: other content")
    for line in lines:
        say(f"configuration: {line}")
    try:
        if lines:
            deploy(checked, lambda stage, fraction: None)
    except StartupError as error:
        say(f"configuration not applied, back to the old one: {error}")
        with contextlib.suppress(StartupError):  # what runs of the old one goes on in any case
            deploy(running, lambda stage, fraction: None)
        return running
    say("configuration applied" if lines else "configuration applied: nothing has changed")
    return checked


def _deploy(
    plane: DataPlane,
    own: OwnRouters,
    signals: _Signals,
    checked: Checked,
    report: Callable[[str, float], None],
) -> None:
    """Deploy the application and wait until all of it serves, or until a signal."""
    from ray import serve

    from chairlift.deployments.application import APPLICATION, build_application

    report("starting the router and the workers", 0.0)
    config = checked.config
    # One that has never run is started once, whatever the least is, so that its faults show.
    needed = config.workers.least
    if APPLICATION not in serve.status().applications:
        needed = max(1, needed)
    application = build_application(config, checked.policy, plane)
    serve.run_many(
        [serve.RunTarget(application, name=APPLICATION, route_prefix=None)],
        wait_for_applications_running=False,
    )
    deadline = time.monotonic() + config.workers.start_timeout_s
    while not signals.wait(START_POLL_S):
        status = serve.status().applications[APPLICATION]
        if status.status == "DEPLOY_FAILED":
            raise StartupError(_failure(status))
        if status.status == "RUNNING" and own.ready_replicas(config) >= needed:
            return
        if time.monotonic() > deadline:
            raise StartupError(
                f"not ready after {config.workers.start_timeout_s:.0f} s; if it is only slow, "
                "raise workers.start_timeout_s"
            )
        stages = replica_progress()
        if stages:
            report(*min(stages, key=lambda stage: stage[1]))


def _failure(status: ApplicationStatusOverview) -> str:
    """The most telling line of what Serve says of a failed start."""
    messages = [status.message, *(each.message for each in status.deployments.values())]
    for message in messages:
        for line in reversed(message.splitlines()):
            match = re.match(r"(?:chairlift\.[\w.]+|\w*Error): (.+)", line.strip())
            if match is not None:
                return f"a part did not start: {match[1]}"
    return "a part did not start: " + " ".join(" ".join(messages).split())[:500]


def _print_ready(console: Console, checked: Checked) -> None:
    url, model = own_url(checked.config), checked.config.model.name or checked.spec.name
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    python = (
        f"import openai; print(openai.OpenAI(base_url='{url}/v1', api_key='-')"
        f".chat.completions.create(model='{model}', messages=[{{'role': 'user', "
        "'content': 'Hello!'}]).choices[0].message.content)"
    )
    console.print(f"\n[bold]Chairlift serves {model} at {url}[/bold]\n")
    for line in (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f'python -c "{python}"',
        f"chairlift chat --url {url}",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if checked.config.grpc.enabled:
        address = reachable(*checked.config.grpc.address(checked.config.http))
        plain = "" if checked.config.http.tls is not None else "-plaintext "
        console.print(f"grpcurl {plain}{address} list", markup=False, highlight=False)
    console.print(f"\nLinear layers are computed in {checked.weights.math}. Ctrl-C stops it.\n")
    if about := _about_guard(checked.config):
        console.print(f"{about}\n", soft_wrap=True, markup=False, highlight=False)


def _about_guard(config: ServiceConfig) -> str:
    """What is worth knowing of the Guard; "" where it acts."""
    if config.guard_mode is Mode.SHADOW:
        return "The Guard only says what it would do."
    if config.guard_mode is Mode.OFF and config.guard.mode is not Mode.OFF:
        return "The Guard is off, for without telemetry.enabled there is nothing to judge from."
    return ""


class _Signals:
    """What SIGINT, SIGTERM and SIGHUP have asked for; a second SIGINT interrupts at once.

    Without ``reloads`` there is no file to read again, and SIGHUP stops, as it does where the
    terminal has gone.
    """

    def __init__(self, *, reloads: bool) -> None:
        self._stop = threading.Event()
        self._reloads = reloads
        self._reload = False
        self._on_terminal = sys.stdout.isatty()
        self.wait = self._stop.wait
        self.listen()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def take_reload(self) -> bool:
        """Whether SIGHUP has come since the last call."""
        asked, self._reload = self._reload, False
        return asked

    def listen(self) -> None:
        """Take the signals; again after Ray, which takes SIGTERM for itself when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        hung_up = self._on_terminal and not sys.stdout.isatty()
        if number == signal.SIGHUP and self._reloads and not hung_up:
            self._reload = True
            return
        if self._stop.is_set():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._stop.set()


class _Progress:
    """The present stage of the start: a bar on a terminal, a line a stage elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began: dict[str, float] = {}
        self._stage = ""
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._began["ready"] = time.monotonic()
        self._bar.stop()

    def __call__(self, stage: str, fraction: float) -> None:
        """Show that ``fraction`` of ``stage`` is done."""
        if stage != self._stage and not self._console.is_terminal:
            self._console.print(f"{stage} …")
        self._began.setdefault(stage, time.monotonic())
        self._stage = stage
        self._bar.update(self._task, description=stage, completed=fraction)

    def report(self) -> str:
        """How long each stage took, once all are over."""
        begins = list(self._began.items())
        seconds = [
            f"{stage} {end - begin:.1f}" for (stage, begin), (_, end) in itertools.pairwise(begins)
        ]
        return f"Ready after {begins[-1][1] - begins[0][1]:.1f} s: {', '.join(seconds)}."
