from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerRequest(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class LedgerPart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("hello", "submits", "cancels", "controls")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    controls: Controls
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ..., controls: _Optional[_Union[Controls, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("router_id", "protocol_version")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    protocol_version: int
    def __init__(self, router_id: _Optional[str] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("handle", "request_id", "tenant", "prompt", "sampling", "n", "cache_salt", "priority", "weight", "choice", "output", "traceparent")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    tenant: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    n: int
    cache_salt: str
    priority: int
    weight: float
    choice: int
    output: _containers.RepeatedScalarFieldContainer[int]
    traceparent: str
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., n: _Optional[int] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., weight: _Optional[float] = ..., choice: _Optional[int] = ..., output: _Optional[_Iterable[int]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "seed", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_tokens", "bias_values", "allowed_token_ids", "logprobs", "prompt_logprobs", "grammar")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_tokens: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_tokens: _containers.RepeatedScalarFieldContainer[int]
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    prompt_logprobs: int
    grammar: str
    def __init__(self, max_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_tokens: _Optional[_Iterable[int]] = ..., bias_values: _Optional[_Iterable[float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Controls(_message.Message):
    __slots__ = ("version", "batching", "token_budget", "max_sequences", "by_person", "fair", "reserve", "hedging", "affinity", "lowest", "demote_late", "admit", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BY_PERSON_FIELD_NUMBER: _ClassVar[int]
    FAIR_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    HEDGING_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    DEMOTE_LATE_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    batching: str
    token_budget: int
    max_sequences: int
    by_person: bool
    fair: bool
    reserve: bool
    hedging: bool
    affinity: bool
    lowest: int
    demote_late: bool
    admit: float
    reason: str
    def __init__(self, version: _Optional[int] = ..., batching: _Optional[str] = ..., token_budget: _Optional[int] = ..., max_sequences: _Optional[int] = ..., by_person: _Optional[bool] = ..., fair: _Optional[bool] = ..., reserve: _Optional[bool] = ..., hedging: _Optional[bool] = ..., affinity: _Optional[bool] = ..., lowest: _Optional[int] = ..., demote_late: _Optional[bool] = ..., admit: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("welcome", "answers", "frame")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    frame: Frame
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("replica_id", "model", "vocab_size", "max_sequence_tokens", "max_sequences", "max_waiting", "block_size", "blocks_total")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    model: str
    vocab_size: int
    max_sequence_tokens: int
    max_sequences: int
    max_waiting: int
    block_size: int
    blocks_total: int
    def __init__(self, replica_id: _Optional[str] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_waiting: _Optional[int] = ..., block_size: _Optional[int] = ..., blocks_total: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("handle", "refusal", "detail")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    refusal: int
    detail: str
    def __init__(self, handle: _Optional[int] = ..., refusal: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("handles", "counts", "tokens", "finishes", "load", "cached", "logprobs", "blocks")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finishes: _containers.RepeatedScalarFieldContainer[int]
    load: Load
    cached: _containers.RepeatedCompositeFieldContainer[Cached]
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    blocks: Blocks
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., finishes: _Optional[_Iterable[int]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., cached: _Optional[_Iterable[_Union[Cached, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("reset", "added", "removed")
    RESET_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    reset: bool
    added: _containers.RepeatedScalarFieldContainer[int]
    removed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reset: _Optional[bool] = ..., added: _Optional[_Iterable[int]] = ..., removed: _Optional[_Iterable[int]] = ...) -> None: ...

class Cached(_message.Message):
    __slots__ = ("row", "tokens")
    ROW_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    row: int
    tokens: int
    def __init__(self, row: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("row", "prompt", "chosen", "counts", "top_tokens", "top_values")
    ROW_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_VALUES_FIELD_NUMBER: _ClassVar[int]
    row: int
    prompt: bool
    chosen: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, row: _Optional[int] = ..., prompt: _Optional[bool] = ..., chosen: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_values: _Optional[_Iterable[float]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("step", "running", "waiting", "waiting_tokens", "blocks_used", "blocks_total", "preemptions", "tokens_computed", "tokens_generated", "cache_queries", "cache_hits", "stamp", "step_age_s", "routers", "draining", "freeing", "steps_saturated", "tokens_recomputed", "step_s", "predicted_s", "steps_left")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FREEING_FIELD_NUMBER: _ClassVar[int]
    STEPS_SATURATED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_LEFT_FIELD_NUMBER: _ClassVar[int]
    step: int
    running: int
    waiting: int
    waiting_tokens: int
    blocks_used: int
    blocks_total: int
    preemptions: int
    tokens_computed: int
    tokens_generated: int
    cache_queries: int
    cache_hits: int
    stamp: int
    step_age_s: float
    routers: int
    draining: bool
    freeing: int
    steps_saturated: int
    tokens_recomputed: int
    step_s: float
    predicted_s: float
    steps_left: int
    def __init__(self, step: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., blocks_used: _Optional[int] = ..., blocks_total: _Optional[int] = ..., preemptions: _Optional[int] = ..., tokens_computed: _Optional[int] = ..., tokens_generated: _Optional[int] = ..., cache_queries: _Optional[int] = ..., cache_hits: _Optional[int] = ..., stamp: _Optional[int] = ..., step_age_s: _Optional[float] = ..., routers: _Optional[int] = ..., draining: _Optional[bool] = ..., freeing: _Optional[int] = ..., steps_saturated: _Optional[int] = ..., tokens_recomputed: _Optional[int] = ..., step_s: _Optional[float] = ..., predicted_s: _Optional[float] = ..., steps_left: _Optional[int] = ...) -> None: ...
