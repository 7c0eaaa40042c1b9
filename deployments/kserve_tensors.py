"""Text in the tensors of the open inference protocol, and its parameters as fields of a body.

Owns the form of requests and answers: one BYTES element in, one out. What the fields mean is
decided where HTTP's are.
"""

from __future__ import annotations

import struct
from typing import Any

from chairlift.cluster.errors import InvalidRequest, UnsupportedParameter
from chairlift.deployments.proto import kserve_pb2 as pb

__all__ = ["INPUT", "OUTPUT", "field_path", "read_fields", "write_text"]

INPUT = "text_input"
OUTPUT = "text_output"

_LENGTH = struct.Struct("<I")
_NOT_FIELDS = frozenset({"messages", "model", "prompt", "stream", "stream_options"})
"""What a body has by another name here, or what has no meaning."""
_ONE_OUTPUT = {"best_of": (1,), "logprobs": (False,), "n": (1,)}
"""The values that one output has room for."""
_OF_THE_PROTOCOL = ("sequence_", "triton_", "binary_data")
"""Begins of names that say nothing of the text."""


def read_fields(request: pb.ModelInferRequest) -> dict[str, Any]:
    """The body of a completion that asks for the same.

    Raises:
        InvalidRequest: there is not exactly one text in, or something else is asked for than one
            text out.
        UnsupportedParameter: a parameter asks for more than one output can hold.
    """
    for index, output in enumerate(request.outputs):
        if output.name != OUTPUT:
            place = f"outputs[{index}].name"
            raise InvalidRequest(f"{place}: the only output is {OUTPUT}", param=place)
    fields: dict[str, Any] = {"prompt": _read_text(request)}
    for name, parameter in request.parameters.items():
        if name in _NOT_FIELDS or name.startswith(_OF_THE_PROTOCOL):
            continue
        kind = parameter.WhichOneof("parameter_choice")
        value = None if kind is None else getattr(parameter, kind)
        if value not in _ONE_OUTPUT.get(name, (value,)):
            raise UnsupportedParameter(f"{name}: not offered by this service", param=name)
        fields[name] = value
    return fields


def field_path(param: str) -> str:
    """Where a body's field stands in a request."""
    if param.startswith("prompt"):
        return f"inputs[{INPUT}]"
    if param == "model":
        return "model_name"
    if param.startswith(("inputs", "outputs", "raw_input_contents", "model_")):
        return param
    return f"parameters[{param}]"


def write_text(
    request: pb.ModelInferRequest, text: str, parameters: dict[str, pb.InferParameter]
) -> pb.ModelInferResponse:
    """An answer to ``request``, in its form."""
    output = pb.ModelInferResponse.InferOutputTensor(name=OUTPUT, datatype="BYTES", shape=[1])
    data = text.encode()
    raw = []
    if request.raw_input_contents:
        raw.append(_LENGTH.pack(len(data)) + data)
    else:
        output.contents.bytes_contents.append(data)
    return pb.ModelInferResponse(
        model_name=request.model_name,
        model_version=request.model_version or "1",
        id=request.id,
        parameters=parameters,
        outputs=[output],
        raw_output_contents=raw,
    )


def _read_text(request: pb.ModelInferRequest) -> str:
    if [tensor.name for tensor in request.inputs] != [INPUT]:
        raise InvalidRequest(f"inputs: must be {INPUT} alone", param="inputs")
    place = f"inputs[{INPUT}]"
    tensor = request.inputs[0]
    if tensor.datatype != "BYTES":
        raise InvalidRequest(f"{place}.datatype: must be BYTES", param=f"{place}.datatype")
    if any(size != 1 for size in tensor.shape):
        raise InvalidRequest(f"{place}.shape: must be [1]", param=f"{place}.shape")
    if request.raw_input_contents:
        elements = _unpack(request.raw_input_contents)
    else:
        elements = list(tensor.contents.bytes_contents)
    if len(elements) != 1:
        raise InvalidRequest(f"{place}: must have one element", param=place)
    try:
        return elements[0].decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{place}: must be UTF-8", param=place) from None


def _unpack(contents: Any) -> list[bytes]:
    """The elements of a BYTES tensor; none where it is not one whole element."""
    if len(contents) != 1 or len(contents[0]) < _LENGTH.size:
        return []
    (length,) = _LENGTH.unpack_from(contents[0])
    data = contents[0][_LENGTH.size :]
    return [data] if len(data) == length else []
