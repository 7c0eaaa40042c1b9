"""NVIDIA's client for Triton against a running service's gRPC port.

    python -m venv /tmp/triton && /tmp/triton/bin/pip install 'tritonclient[grpc]'
    /tmp/triton/bin/python tests/clients/kserve_triton.py localhost:9000

A process of its own, for the client's stubs and Chairlift's have the same names. Says what came,
one line a question; fails if any of it is not as the protocol promises.
"""

import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton

PROMPT = b"The capital of France is"


def text_input(text: bytes = PROMPT) -> Any:
    given = triton.InferInput("text_input", [1], "BYTES")
    given.set_data_from_numpy(np.array([text], dtype=object))
    return given


def text_of(answer: Any) -> str:
    return str(answer.as_numpy("text_output")[0].decode())


def main() -> None:
    client = triton.InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:9000")
    assert client.is_server_live()
    assert client.is_server_ready()
    server = client.get_server_metadata()
    print(f"ok    server: {server.name} {server.version}")

    model = sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m-instruct"
    assert client.is_model_ready(model)
    metadata = client.get_model_metadata(model, as_json=True)
    assert [each["name"] for each in metadata["inputs"]] == ["text_input"]
    assert [each["name"] for each in metadata["outputs"]] == ["text_output"]
    print(f"ok    model: {metadata['name']} on {metadata['platform']}")

    terms = {"max_tokens": 8, "temperature": 0.0, "seed": 1}
    whole = client.infer(model, [text_input()], parameters=terms, request_id="whole")
    told = whole.get_response()
    assert told.id == "whole"
    assert told.parameters["completion_tokens"].int64_param == 8
    print(f"ok    infer: {text_of(whole)!r}")

    pieces: dict[str, list[str]] = {"one": [], "two": []}
    ended: queue.Queue[Any] = queue.Queue()

    def take(result: Any, error: Any) -> None:
        if error is not None:
            ended.put(error)
            return
        response = result.get_response()
        pieces[response.id].append(text_of(result))
        if response.parameters["triton_final_response"].bool_param:
            ended.put(response.id)

    client.start_stream(take)
    for name in pieces:
        client.async_stream_infer(model, [text_input()], request_id=name, parameters=terms)
    assert {ended.get(timeout=60) for _ in pieces} == set(pieces)
    assert {"".join(each) for each in pieces.values()} == {text_of(whole)}
    print(f"ok    stream: two requests, {[len(each) for each in pieces.values()]} pieces")
    client.async_stream_infer(model, [text_input()], parameters={"temperature": -1.0})
    wrong = ended.get(timeout=60)
    assert isinstance(wrong, triton.InferenceServerException)
    client.stop_stream()
    print(f"ok    fault in a stream: {wrong.message()}")

    for name, given, parameters in (
        (model, [text_input()], {"top_p": 3.0}),
        ("other", [text_input()], {}),
        (model, [triton.InferInput("other", [1], "BYTES")], {}),
    ):
        try:
            client.infer(name, given, parameters=parameters)
        except triton.InferenceServerException as error:
            print(f"ok    fault: {error.status()}: {error.message()}")
        else:
            raise AssertionError("a wrong request was taken")
    client.close()


if __name__ == "__main__":
    main()
