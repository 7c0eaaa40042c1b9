"""``chairlift bench``: loads a running server and reports what its users would have seen.

Owns the flags and how the parts of a run come together; pacing, requests and figures are in
``load``, ``completions`` and ``records``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
from collections.abc import Iterator
from itertools import islice, repeat, takewhile
from pathlib import Path

import aiohttp
import uvloop

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.bench_report import RunProgress, print_summary, write_json
from chairlift.evaluation.completions import CompletionClient, Target, request_body
from chairlift.evaluation.flags import count, positive
from chairlift.evaluation.lengths import fitted_names, parse_lengths
from chairlift.evaluation.load import Ask, Sink, closed_loop, open_loop, started_clock
from chairlift.evaluation.openai_stream import ServerFault, first_model, unusable
from chairlift.evaluation.records import RequestRecord, summarise
from chairlift.evaluation.target_server import Server, add_server_flags, named_server
from chairlift.evaluation.traces import Arrival, read_trace, scale_trace

__all__ = ["add_arguments", "run"]

_PROMPT_LENGTHS = "lognormal:median=96,sigma=0.8,min=16,max=512"
_OUTPUT_LENGTHS = "lognormal:median=64,sigma=0.8,min=8,max=256"
_REQUESTS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift bench``."""
    parser.description = "Load a running server and report the latency that its users would see."
    server = parser.add_argument_group("the server")
    add_server_flags(server)
    server.add_argument("--model", help="default: the first one that the server offers")
    server.add_argument("--chat", action="store_true", help="use chat completions")
    server.add_argument(
        "--vocab-size",
        type=count,
        default=30_000,
        metavar="N",
        help="token ids of prompts are below N (default: %(default)s)",
    )
    server.add_argument(
        "--timeout",
        type=positive,
        default=300.0,
        metavar="S",
        help="seconds after which a request counts as failed (default: %(default)s)",
    )
    _add_load(parser)
    _add_lengths(parser)
    output = parser.add_argument_group("the report")
    output.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is stdout")
    output.add_argument(
        "--records", action="store_true", help="put every request's raw times into the JSON"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("the load", "Exactly one of the first three.")
    mode = load.add_mutually_exclusive_group(required=True)
    mode.add_argument("--rate", type=positive, metavar="R", help="arrivals per second")
    mode.add_argument(
        "--concurrency",
        type=count,
        metavar="N",
        help="keep N requests under way (closed loop: slows down with the server)",
    )
    mode.add_argument("--trace", type=Path, metavar="FILE", help="recorded arrivals and lengths")
    load.add_argument(
        "--arrivals",
        metavar="KIND",
        help="with --rate: poisson (default), constant, or gamma:CV for bursts",
    )
    load.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help=f"stop after N requests (default: {_REQUESTS}, or the whole trace)",
    )
    load.add_argument("--duration", type=positive, metavar="S", help="stop sending after S seconds")
    load.add_argument(
        "--max-in-flight",
        type=count,
        default=1024,
        metavar="N",
        help="requests due beyond N under way fail unsent (default: %(default)s)",
    )
    load.add_argument("--seed", type=int, default=0, help="default: %(default)s")


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    lengths = parser.add_argument_group(
        "lengths in tokens",
        "constant:N, uniform:A,B, lognormal:median=M,sigma=S,min=A,max=B, or"
        f" quantiles:NAME,scale=F,min=A,max=B with NAME one of {', '.join(fitted_names())}.",
    )
    lengths.add_argument("--prompt-lengths", metavar="SPEC", help=f"default: {_PROMPT_LENGTHS}")
    lengths.add_argument("--output-lengths", metavar="SPEC", help=f"default: {_OUTPUT_LENGTHS}")
    lengths.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on past the model's end token, so that output lengths are exact",
    )
    lengths.add_argument(
        "--length-scale", type=positive, metavar="F", help="with --trace: multiply lengths by F"
    )
    lengths.add_argument(
        "--time-scale",
        type=positive,
        metavar="F",
        help="with --trace: multiply times by F; below 1 is a higher rate",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make the load and print the report.

    Returns:
        0 when at least one request completed, however many failed; 1 when none did.

    Raises:
        ConfigError: a flag is wrong, or does not go with the others.
    """
    _check_flags(arguments)
    server = named_server(arguments)
    try:
        arrivals = _arrivals(arguments)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    records: list[RequestRecord] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            target = runner.run(_find_target(arguments, server))
        except (aiohttp.ClientError, OSError, ServerFault) as error:
            print(f"chairlift bench: {unusable(server.base, error)}", file=sys.stderr)
            return 1
        with RunProgress(_expected(arguments), arguments.duration) as progress:

            def sink(record: RequestRecord) -> None:
                records.append(record)
                progress.advance(record.ended)

            # Ctrl-C ends the run, not the report.
            with contextlib.suppress(KeyboardInterrupt):
                runner.run(_drive(arguments, server, target, arrivals, sink))
    summary = summarise(records)
    settings = _settings(arguments, target.model)
    print_summary(summary, settings, to_stderr=arguments.json == "-")
    if arguments.json:
        write_json(arguments.json, summary, settings, records if arguments.records else None)
    return 0 if summary.completed else 1


def _check_flags(arguments: argparse.Namespace) -> None:
    traced = arguments.trace is not None
    for flag, allowed in (
        ("prompt_lengths", not traced),
        ("output_lengths", not traced),
        ("length_scale", traced),
        ("time_scale", traced),
        ("arrivals", arguments.rate is not None),
    ):
        if getattr(arguments, flag) is not None and not allowed:
            mode = "--trace" if traced else "--rate" if arguments.rate else "--concurrency"
            raise ConfigError(f"--{flag.replace('_', '-')} does not go with {mode}")


def _expected(arguments: argparse.Namespace) -> int | None:
    """How many requests there will be, where that is known beforehand."""
    if arguments.requests is not None:
        return int(arguments.requests)
    return None if arguments.duration is not None or arguments.trace else _REQUESTS


def _arrivals(arguments: argparse.Namespace) -> Iterator[Arrival]:
    """Times and lengths of the requests, up to --requests and, where times count, --duration."""
    arrivals: Iterator[Arrival]
    if arguments.trace is not None:
        trace = read_trace(arguments.trace)
        scale, time_scale = arguments.length_scale or 1.0, arguments.time_scale or 1.0
        arrivals = iter(scale_trace(trace, lengths=scale, time=time_scale))
    else:
        rng = random.Random(f"lengths {arguments.seed}")
        lengths = parse_lengths(
            arguments.prompt_lengths or _PROMPT_LENGTHS,
            arguments.output_lengths or _OUTPUT_LENGTHS,
        )
        times: Iterator[float] = repeat(0.0)
        if arguments.rate is not None:
            gap = parse_arrivals(arguments.arrivals or "poisson")
            times = arrival_times(gap, arguments.rate, random.Random(f"times {arguments.seed}"))
        arrivals = (Arrival(at, lengths.draw(rng)) for at in times)
    if arguments.duration is not None:
        arrivals = takewhile(lambda arrival: arrival.at_s < arguments.duration, arrivals)
    return islice(arrivals, _expected(arguments))


async def _find_target(arguments: argparse.Namespace, server: Server) -> Target:
    model = arguments.model
    if model is None:
        async with server.session(arguments.timeout) as session:
            model = await first_model(session, server.base)
    return Target(
        base=server.base,
        model=model,
        chat=arguments.chat,
        ignore_eos=arguments.ignore_eos,
        vocab_size=arguments.vocab_size,
    )


async def _drive(
    arguments: argparse.Namespace,
    server: Server,
    target: Target,
    arrivals: Iterator[Arrival],
    sink: Sink,
) -> None:
    """Send everything and follow it to its end."""
    async with server.session() as session:
        clock = started_clock()
        client = CompletionClient(session, target, clock=clock, timeout_s=arguments.timeout)
        asks = _asks(target, arrivals, arguments.seed)
        if arguments.concurrency is None:
            limit = arguments.max_in_flight
            await open_loop(asks, client.send, sink, clock=clock, max_in_flight=limit)
        else:
            await closed_loop(
                asks,
                client.send,
                sink,
                clock=clock,
                concurrency=arguments.concurrency,
                until=arguments.duration or math.inf,
            )


def _asks(target: Target, arrivals: Iterator[Arrival], seed: int) -> Iterator[Ask]:
    for i, arrival in enumerate(arrivals):
        rng = random.Random(f"prompt {seed} {i}")
        yield Ask(
            at=arrival.at_s,
            prompt_tokens=arrival.lengths.prompt,
            output_tokens=arrival.lengths.output,
            body=request_body(target, arrival.lengths, rng),
        )


def _settings(arguments: argparse.Namespace, model: str) -> dict[str, object]:
    """What the run was asked to do, defaults filled in; for the report."""
    settings: dict[str, object] = {"url": arguments.url, "model": model, "chat": arguments.chat}
    if arguments.trace is not None:
        settings |= {
            "loop": "open",
            "trace": str(arguments.trace),
            "length_scale": arguments.length_scale or 1.0,
            "time_scale": arguments.time_scale or 1.0,
        }
    else:
        settings |= {
            "prompt_lengths": arguments.prompt_lengths or _PROMPT_LENGTHS,
            "output_lengths": arguments.output_lengths or _OUTPUT_LENGTHS,
        }
    if arguments.rate is not None:
        arrivals = arguments.arrivals or "poisson"
        settings |= {"loop": "open", "rate": arguments.rate, "arrivals": arrivals}
    if arguments.concurrency is not None:
        settings |= {"loop": "closed", "concurrency": arguments.concurrency}
    names = ("requests", "duration", "ignore_eos", "timeout", "max_in_flight", "seed")
    return settings | {name: getattr(arguments, name) for name in names}
