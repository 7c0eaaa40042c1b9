"""The examples of docs/grpc.md, run as they stand but for the address."""

import asyncio
import re
import sys
from pathlib import Path

import grpc

from chairlift.cluster import errors
from support.chain import running_chain
from support.grammars import byte_grammars
from support.grpc_front import grpc_front, serving_port
from support.grpcurl import Reflected

TEXT = Path(__file__).parents[3].joinpath("docs", "grpc.md").read_text(encoding="utf-8")
ADDRESS = "localhost:9000"
MODEL = "smollm2-135m-instruct"


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert found
    return [str(block) for block in found]


def commands() -> list[str]:
    """Those of all shell blocks, each on one line."""
    text = "".join(blocks("sh")).replace("\\\n", " ")
    return [each.strip() for each in re.split(r"^(?=grpcurl )", text, flags=re.MULTILINE) if each]


def test_every_command_says_something():
    async def main() -> dict[str, list[object]]:
        async with grpc_front(model_name=MODEL) as channel:
            reflected = Reflected(channel)
            return {command: await reflected.run(command) for command in commands()}

    said = asyncio.run(main())
    by_method = {command.rpartition("/")[2]: answer for command, answer in said.items()}
    assert len(said) == 9
    assert all(said.values())
    (generated,) = by_method["Generate"]
    assert generated["choices"][0]["text"] == "Hello world"
    assert len(by_method["GenerateStream"][0]["choices"]) == 2
    assert by_method["Check"] == [{"status": "SERVING"}]
    assert by_method["Detokenize"] == [{"text": "Hi"}]
    (inferred,) = by_method["ModelInfer"]
    assert inferred["outputs"][0]["contents"] == {"bytesContents": ["SGVsbG8gd29ybGQ="]}


def test_the_programs_print_what_they_promise():
    async def run(program: str, port: int) -> str:
        assert ADDRESS in program
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program.replace(ADDRESS, f"127.0.0.1:{port}")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def main() -> list[str]:
        streaming, calling, failing = blocks("python")
        async with (
            serving_port(model_name=MODEL) as port,
            running_chain(grammars=byte_grammars()) as chain,
            serving_port(chain.router, context_length=1024) as following,
        ):
            return [
                await run(streaming, port),
                await run(calling, following),
                await run(failing, port),
            ]

    streamed, called, failed = asyncio.run(main())
    assert called in {f"weather {{'city': '{city}'}}\n" for city in ("Paris", "Rome")}
    assert streamed == "Hello world\ntokens: 5\n"
    assert "StatusCode.INVALID_ARGUMENT sampling.temperature: " in failed
    assert "field: sampling.temperature" in failed


def test_the_table_of_statuses_is_that_of_the_errors():
    rows = re.findall(r"^\| ([0-9, ]+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    told = {int(number): status for numbers, status in rows for number in numbers.split(",")}
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in kinds:
        if issubclass(kind, errors.RequestError) and kind.http_status in told:
            assert (
                told[kind.http_status] == kind.grpc_status == grpc.StatusCode[kind.grpc_status].name
            )
    assert len(told) == 9
