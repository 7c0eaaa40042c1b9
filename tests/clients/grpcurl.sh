#!/bin/sh
# grpcurl, which learns all by reflection, against a running service's gRPC port:
#
#   tests/clients/grpcurl.sh localhost:9000
#
# Says what each call answered; the exit status is 1 as soon as one goes otherwise than it should.
set -eu
address=${1:-localhost:9000}
ask() {
    echo "== $1"
    data=${2:-{\}}
    grpcurl -plaintext -max-time 60 -d "$data" "$address" "$1" | tr -d '\n' | tr -s ' '
    echo
}
grpcurl -plaintext "$address" list
grpcurl -plaintext "$address" describe chairlift.v1.Chat
ask grpc.health.v1.Health/Check
ask chairlift.v1.Inference/GetModelInfo
ask chairlift.v1.Inference/Generate \
    '{"text": "The capital of France is", "sampling": {"maxTokens": 8, "temperature": 0}}'
ask chairlift.v1.Inference/Generate '{"sampling": {"maxTokens": 100, "seed": "1"}, "chat": {
    "messages": [{"role": "user", "content": "How many legs has a spider?"}],
    "responseFormat": {"jsonSchema": {"name": "n", "schema": "{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 99}"}}}}'
ask chairlift.v1.Inference/GenerateStream '{"sampling": {"maxTokens": 100, "seed": "1"}, "chat": {
    "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
    "tools": [{"function": {"name": "weather", "parameters": "{\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Paris\", \"Rome\"]}}, \"required\": [\"city\"], \"additionalProperties\": false}"}}],
    "toolChoice": {"mode": "TOOL_MODE_REQUIRED"}, "parallelToolCalls": false}}'
ask inference.GRPCInferenceService/ServerMetadata
echo "== a fault"
if fault=$(grpcurl -plaintext -d '{"text": "hi", "sampling": {"temperature": -1}}' "$address" \
    chairlift.v1.Inference/Generate 2>&1); then
    echo "a wrong request was taken"
    exit 1
fi
echo "$fault" | grep -m 2 -e "Code:" -e "Message:"
