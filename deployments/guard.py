"""``chairlift guard``: how the Guard of a running service stands, and orders by hand.

Owns the words of the command and how the view looks in a terminal. Who may give orders, and which
make sense, is the service's to say (``deployments.guard_door``).
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import orjson
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.protocol import ENDLESS
from chairlift.cluster.yaml_text import parse_yaml
from chairlift.deployments.chat import printable
from chairlift.evaluation.openai_stream import ServerFault, read_error, unusable
from chairlift.evaluation.target_server import Server, add_server_flags, named_server

__all__ = ["add_arguments", "run"]

ACTIONS = ("hold", "release", "set", "approve")
JSON = "application/json"
TIMEOUT_S = 5.0
PIPE_WIDTH = 120
MOVES_SHOWN = 10


class Refused(Exception):
    """The service is well, but does not do what it was asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift guard``."""
    parser.description = (
        "Without an action, say how the Guard stands. hold keeps the rung as it is; release lets "
        "it move by itself again and takes back what was set; approve enters the rung that waits "
        "for a person's word; set puts a rung or single controls in force, and holds them: "
        "set reserve, set 5, set batching=static token_budget=256."
    )
    parser.add_argument(
        "action", nargs="?", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS)
    )
    parser.add_argument("values", nargs="*", metavar="VALUE", help="of set: RUNG, NAME=VALUE")
    add_server_flags(parser)
    parser.add_argument(
        "--by", metavar="NAME", help="who acts; by default the login name, or whose key it is"
    )
    parser.add_argument("--json", action="store_true", help="print the view as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Act, if that is wanted, and print how the Guard then stands.

    Returns:
        0, or 1 when the service does not answer or refuses.

    Raises:
        ConfigError: the flags name no server, or the values are none.
    """
    server = named_server(arguments)
    order = _order(arguments)
    try:
        view = asyncio.run(_ask(server, arguments.action, order))
    except Refused as error:
        print(f"chairlift guard: {printable(str(error))}", file=sys.stderr)
        return 1
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        print(f"chairlift guard: {printable(unusable(server.root, error))}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(view))
    elif sys.stdout.isatty():
        Console(highlight=False).print(_screen(view, time.time()))
    else:
        plain = Console(width=PIPE_WIDTH, color_system=None, highlight=False)
        plain.print(_screen(view, time.time()))
    return 0


def _order(arguments: argparse.Namespace) -> dict[str, Any]:
    """The body of an order; raises ConfigError."""
    values: Sequence[str] = arguments.values
    rungs = [value for value in values if "=" not in value]
    if values and arguments.action != "set":
        raise ConfigError(f"{arguments.action or 'guard'} takes no values, only set does")
    if arguments.action == "set" and not values:
        raise ConfigError("set: say which rung, or which controls, such as token_budget=256")
    if len(rungs) > 1:
        raise ConfigError(f"set: one rung only, not {' and '.join(rungs)}")
    order: dict[str, Any] = {"by": arguments.by or _login_name()}
    if rungs:
        order["rung"] = int(rungs[0]) if rungs[0].isdecimal() else rungs[0].replace("-", "_")
    overrides = dict(value.split("=", 1) for value in values if "=" in value)
    if overrides:
        order["set"] = {name: _value(text) for name, text in overrides.items()}
    return order


def _value(text: str) -> object:
    """Numbers and true or false as such, all else as it is."""
    try:
        value = parse_yaml(text, "the value")
    except ConfigError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return ""


async def _ask(server: Server, action: str | None, order: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ServerFault, aiohttp.ClientError, OSError."""
    base = server.root
    async with server.session(TIMEOUT_S) as session:
        if action is None:
            call = session.get(f"{base}/guard")
        else:
            call = session.post(f"{base}/guard/{action}", json=order)
        async with call as response:
            if response.status == 404 and response.content_type != JSON:
                raise ServerFault("http_404", "it has no /guard; is it Chairlift?")
            if response.status != 200:
                fault = await read_error(response)
                raise Refused(fault.message) if response.content_type == JSON else fault
            try:
                view: dict[str, Any] = orjson.loads(await response.read())
                view["mode"]
            except (ValueError, LookupError, TypeError):
                raise ServerFault("bad_answer", "its /guard holds no view") from None
    return view


def _screen(view: Mapping[str, Any], now: float) -> Group:
    if "rung" not in view:
        return Group(Text("The Guard is off."))
    return Group(*_head(view, now), _signals(view["signals"]), *_moves(view["moves"], now))


def _head(view: Mapping[str, Any], now: float) -> list[Text]:
    since = "" if view["since"] is None else f" for {_time(now - view['since'])}"
    lines = [Text(f"Rung {view['rung_number']}, {view['rung']}{since}", style="bold")]
    if view["mode"] == "shadow":
        lines.append(Text("Shadow: it only says what it would do."))
    if view["held_by"]:
        lines.append(_line(f"Held by {view['held_by']}."))
    if view["waiting_for"]:
        lines.append(Text(f"{view['waiting_for']} waits for a person: chairlift guard approve"))
    if view["frozen"]:
        lines.append(Text("Frozen: telemetry contradicts itself."))
    if view["overrides"]:
        pairs = (f"{name}={value}" for name, value in view["overrides"].items())
        lines.append(_line(f"Set by hand: {', '.join(pairs)}"))
    controls = view["controls"]
    pairs = (f"{name}={value}" for name, value in controls.items() if name not in _UNSHOWN)
    return [*lines, _line(f"In force: {', '.join(pairs)}")]


_UNSHOWN = ("reason", "version", "by_person")


def _signals(signals: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("signal", "value", "threshold", "where", "owner", ""):
        table.add_column(f"\n{name}", justify="right" if name in ("value", "threshold") else "left")
    for name, each in signals.items():
        state = "ACTIVE" if each["active"] else ""
        numbers = (_number(each["value"]), _number(each["threshold"]))
        table.add_row(name, *numbers, _line(each["where"]), each["owner"], state)
    return table


def _moves(moves: Sequence[Mapping[str, Any]], now: float) -> list[Text]:
    if not moves:
        return []
    lines = (f"{_time(now - each['at']):>8} ago  {each['text']}" for each in moves[-MOVES_SHOWN:])
    return [Text("\nlast moves", style="dim"), *map(_line, lines)]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "∞" if value >= ENDLESS else f"{value:.4g}"


def _time(seconds: float) -> str:
    """Clocks of two machines may differ, so nothing is ever in the future."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def _line(text: str) -> Text:
    """As it is: neither markup nor control characters mean anything."""
    return Text(printable(text).replace("\n", " "))
