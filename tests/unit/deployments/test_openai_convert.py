import orjson
import pytest

from chairlift.cluster import wire
from chairlift.cluster.errors import InvalidRequest, NotFound
from chairlift.cluster.protocol import SamplingParams, Submission
from chairlift.deployments.openai_convert import Converter, Generation
from chairlift.deployments.openai_response import Api
from chairlift.deployments.request_terms import Caller
from chairlift.router.chat_template import ChatTemplate
from support.fake_tokenizer import BOS, FakeTokenizer
from support.http_app import CHAT_TOKENS, TEMPLATE, USER

LIMIT = 100
VOCAB_SIZE = FakeTokenizer.vocab_size


def converter(template: str | None = TEMPLATE) -> Converter:
    return Converter(
        FakeTokenizer(),
        None if template is None else ChatTemplate(template),
        model_name="fake",
        max_choices=8,
    )


def completion(prompt: object = "hi", **fields) -> Generation:
    body = orjson.dumps({"prompt": prompt} | fields)
    return converter().completion(body, Caller("id"), LIMIT)


def chat(messages: object = (USER,), **fields) -> Generation:
    return converter().chat(orjson.dumps({"messages": messages} | fields), Caller("id"), LIMIT)


def refused(convert, *args, **fields) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        convert(*args, **fields)
    return caught.value.param, caught.value.code


def test_a_chat_is_rendered_for_the_model_without_further_special_tokens():
    generation = chat()
    (request,) = generation.requests
    assert bytes(request.prompt) == b"user: hi\nassistant:"
    assert (generation.api, request.id, request.n) == (Api.CHAT, "id", 1)


def test_developer_is_the_system_role_under_its_new_name():
    (request,) = chat([{"role": "developer", "content": "be brief"}, USER]).requests
    assert bytes(request.prompt).startswith(b"system: be brief\n")


def test_a_text_prompt_gets_the_special_tokens_and_ids_are_taken_as_they_are():
    assert completion("hi").requests[0].prompt == (BOS, *b"hi")
    assert completion([1, 2]).requests[0].prompt == (1, 2)


def test_each_prompt_of_a_list_becomes_a_request():
    prompts = [request.prompt for request in completion(["a", "b"], n=2).requests]
    assert prompts == [(BOS, *b"a"), (BOS, *b"b")]
    assert [request.prompt for request in completion([[1], [2, 3]]).requests] == [(1,), (2, 3)]
    assert completion(["a", "b"], n=2).num_choices == 4


def test_all_sampling_parameters_arrive():
    generation = completion(
        max_tokens=5,
        seed=-1,
        temperature=0.5,
        top_p=0.9,
        top_k=10,
        min_p=0.1,
        stop_token_ids=[7, 7, 8],
        ignore_eos=True,
        stop=["x", "y", "x"],
        min_tokens=4,
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias={"256": 100, "3": -0.5, "10": 0},
        allowed_token_ids=[9, 3, 9],
        logprobs=20,
        echo=True,
        cache_salt="mine",
    )
    assert generation.requests[0].sampling == SamplingParams(
        max_tokens=5,
        seed=2**64 - 1,
        temperature=0.5,
        top_p=0.9,
        top_k=10,
        min_p=0.1,
        stop_token_ids=(7, 8),
        ignore_eos=True,
        min_tokens=4,
        presence_penalty=-2.0,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias=((3, -0.5), (256, 100.0)),
        allowed_token_ids=(3, 9),
        logprobs=20,
        prompt_logprobs=20,
    )
    assert generation.stop == ("x", "y")
    assert generation.requests[0].cache_salt == "=mine"


def test_one_stop_string_needs_no_list():
    assert completion(stop="END").stop == ("END",)
    assert completion().stop == ()


def test_without_a_seed_each_prompt_gets_one_of_its_own():
    seeds = {request.sampling.seed for _ in range(5) for request in completion(["a", "a"]).requests}
    assert len(seeds) == 10
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_drawn_seed_survives_every_json_reader_and_a_given_one_is_every_prompts():
    generation = completion(["a", "a"])
    assert generation.seeds == tuple(request.sampling.seed for request in generation.requests)
    for seed in generation.seeds:
        assert int(float(seed)) == seed < 2**53
        assert completion("a", seed=seed).seeds == (seed,)
    assert completion(["a", "b"], seed=-1).seeds == (2**64 - 1,) * 2


def test_what_changes_nothing_is_left_off():
    nothing = completion(
        presence_penalty=-0.0,
        frequency_penalty=-0.0,
        repetition_penalty=1,
        logit_bias={"5": 0, "6": -0.0},
        min_tokens=0,
        seed=1,
    )
    assert repr(nothing.requests[0].sampling) == repr(completion(seed=1).requests[0].sampling)
    assert completion().requests[0].cache_salt == ""


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_a_chat_asks_for_log_probabilities_with_two_fields(fields, logprobs):
    generation = chat(**fields)
    sampling = generation.requests[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (logprobs, None)
    assert generation.with_logprobs == (logprobs is not None)


@pytest.mark.parametrize(
    ("fields", "logprobs", "of_prompt"),
    [
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5.0}, 5, None),
        ({"logprobs": None, "echo": True}, None, None),
        ({"logprobs": False, "echo": True}, None, None),
        ({"logprobs": 0, "echo": True}, 0, 0),
    ],
)
def test_a_completion_asks_for_log_probabilities_with_one(fields, logprobs, of_prompt):
    sampling = completion(**fields).requests[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (logprobs, of_prompt)


def test_an_echo_has_each_prompt_and_where_its_tokens_stand_if_they_are_scored():
    assert completion().echo == ()
    echo = completion(["aé", "b"], echo=True).echo
    assert [(each.text, each.offsets) for each in echo] == [("aé", ()), ("b", ())]
    (echo,) = completion("aéb", echo=True, logprobs=0).echo
    assert (echo.text, echo.offsets) == ("aéb", (0, 0, 1, 1, 2))


def test_who_asks_for_no_tokens_gets_one_generated_and_not_told():
    generation = completion([1] * 99, max_tokens=0, echo=True)
    assert generation.scores_only
    assert generation.requests[0].sampling.max_tokens == 1
    assert not completion([1], max_tokens=1, echo=True).scores_only
    assert refused(completion, [1] * 100, max_tokens=0, echo=True)[0] == "prompt"


def test_min_tokens_may_be_all_that_are_generated_and_no_more():
    assert completion(max_tokens=5, min_tokens=5).requests[0].sampling.min_tokens == 5
    assert refused(completion, max_tokens=5, min_tokens=6)[0] == "min_tokens"
    assert refused(completion, min_tokens=17)[0] == "min_tokens"
    assert refused(completion, [[1], [1] * 95], min_tokens=6)[0] == "min_tokens"
    assert chat(min_tokens=LIMIT - CHAT_TOKENS).requests
    assert refused(chat, min_tokens=LIMIT - CHAT_TOKENS + 1)[0] == "min_tokens"
    assert refused(chat, max_completion_tokens=3, min_tokens=4)[0] == "min_tokens"


@pytest.mark.parametrize("top_k", [-1, 0, VOCAB_SIZE, 10**9, 2**53])
def test_a_top_k_that_keeps_every_token_is_off(top_k):
    assert completion(top_k=top_k).requests[0].sampling.top_k == 0


def test_values_that_float32_would_lose_keep_their_meaning():
    tiny = {"temperature": 1e-300, "top_p": 1e-300, "repetition_penalty": 5e-324}
    sampling = completion(**tiny, presence_penalty=5e-324).requests[0].sampling
    assert sampling.temperature == 0.0
    assert 0 < sampling.top_p < 1 / VOCAB_SIZE
    sent = wire.submission_to_wire(Submission(1, completion(**tiny).requests[0]))
    assert wire.submission_from_wire(sent).request.sampling.repetition_penalty > 0


def test_what_is_generated_by_default_is_16_for_completions_and_all_that_fits_for_chats():
    assert completion().requests[0].sampling.max_tokens == 16
    assert completion([1] * 95).requests[0].sampling.max_tokens == 5
    assert chat().requests[0].sampling.max_tokens == LIMIT - CHAT_TOKENS


def test_max_completion_tokens_goes_before_max_tokens():
    (request,) = chat(max_tokens=5, max_completion_tokens=6).requests
    assert request.sampling.max_tokens == 6
    assert chat(max_tokens=5).requests[0].sampling.max_tokens == 5


def test_prompt_and_answer_fill_the_context_to_the_last_token_and_no_further():
    too_long = "context_length_exceeded"
    assert completion([1] * 99, max_tokens=1).requests[0].sampling.max_tokens == 1
    assert refused(completion, [1] * 99, max_tokens=2) == ("max_tokens", too_long)
    assert refused(completion, [1] * 100, max_tokens=1) == ("prompt", too_long)
    assert refused(completion, [1] * 101) == ("prompt", too_long)
    assert refused(completion, [[1], [1] * 100]) == ("prompt[1]", too_long)
    assert refused(completion, max_tokens=10**9) == ("max_tokens", too_long)
    assert refused(chat, max_tokens=100) == ("max_tokens", too_long)
    assert refused(chat, max_completion_tokens=100) == ("max_completion_tokens", too_long)
    assert refused(chat, [{"role": "user", "content": "x" * 100}]) == ("messages", too_long)


class Wary(FakeTokenizer):
    """Has one token of ``longest`` bytes, and refuses to read more than ``most`` characters."""

    def __init__(self, longest: int, most: int) -> None:
        self._longest = longest
        self._most = most

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        assert len(text) <= self._most, "more was tokenised than it takes to refuse"
        return super().encode(text, add_special=add_special)

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes:
        return b" " * self._longest if id_ == 0 else super().token_bytes(id_)


@pytest.mark.parametrize(
    "tokenizer",
    [Wary(longest=1, most=0), Wary(longest=2**20, most=16 * LIMIT)],
    ids=["by its length", "by its beginning"],
)
def test_megabytes_that_cannot_fit_are_refused_without_tokenising_them(tokenizer):
    wary = Converter(tokenizer, ChatTemplate(TEMPLATE), model_name="fake", max_choices=8)
    text = "x" * 2**20
    for convert, body in (
        (wary.completion, {"prompt": text}),
        (wary.chat, {"messages": [{"role": "user", "content": text}]}),
    ):
        with pytest.raises(InvalidRequest) as caught:
            convert(orjson.dumps(body), Caller("id"), LIMIT)
        assert caught.value.code == "context_length_exceeded"
        assert len(caught.value.message) < 500


def test_a_long_text_of_long_tokens_is_accepted():
    class Spaces(FakeTokenizer):
        """A token is 50 characters."""

        def encode(self, text: str, *, add_special: bool) -> list[int]:
            return [1] * (len(text) // 50)

        def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes:
            return b" " * 50

    spaces = Converter(Spaces(), None, model_name="fake", max_choices=8)
    body = orjson.dumps({"prompt": " " * 50 * 99})
    assert len(spaces.completion(body, Caller("id"), LIMIT).requests[0].prompt) == 99


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([VOCAB_SIZE], "prompt[0]"),
        ([0, VOCAB_SIZE - 1, -1], "prompt[2]"),
        ([[1], [2, 2**63]], "prompt[1][1]"),
    ],
)
def test_empty_prompts_and_ids_outside_the_vocabulary_are_refused_by_their_place(prompt, param):
    assert refused(completion, prompt) == (param, "invalid_value")


def test_stop_token_ids_outside_the_vocabulary_are_refused():
    assert refused(completion, stop_token_ids=[1, -1])[0] == "stop_token_ids[1]"
    assert refused(chat, stop_token_ids=[VOCAB_SIZE])[0] == "stop_token_ids[0]"


def test_tokens_to_choose_from_are_in_the_vocabulary_and_not_more_than_it_has():
    every = list(range(VOCAB_SIZE))
    assert completion(allowed_token_ids=every[::-1]).requests[0].sampling.allowed_token_ids == (
        tuple(every)
    )
    assert refused(completion, allowed_token_ids=[1, VOCAB_SIZE])[0] == "allowed_token_ids[1]"
    assert refused(chat, allowed_token_ids=[0, 1, -1])[0] == "allowed_token_ids[2]"
    assert refused(completion, allowed_token_ids=[1] * (VOCAB_SIZE + 1))[0] == "allowed_token_ids"


@pytest.mark.parametrize("token", ["257", "99999999", "9999999999"])
def test_biases_of_what_is_no_token_are_refused(token):
    with pytest.raises(InvalidRequest, match=token) as caught:
        completion(logit_bias={"1": 1, token: 1})
    assert caught.value.param == "logit_bias"


def test_prompts_times_n_is_bounded():
    assert completion(["a"] * 4, n=2).num_choices == 8
    assert refused(completion, ["a"] * 4, n=3)[0] == "n"
    assert refused(completion, ["a"] * 9)[0] == "prompt"
    assert refused(completion, [""] * 5000)[0] == "prompt"
    assert refused(completion, n=5_000_000)[0] == "n"
    assert refused(chat, n=9)[0] == "n"


def test_what_the_template_refuses_is_refused_as_messages():
    picky = converter("{{ raise_exception('alternate the roles') }}")
    with pytest.raises(InvalidRequest, match="alternate the roles") as caught:
        picky.chat(orjson.dumps({"messages": [USER]}), Caller("id"), LIMIT)
    assert caught.value.param == "messages"


def test_a_model_without_a_template_cannot_chat():
    with pytest.raises(InvalidRequest, match="/v1/completions") as caught:
        converter(None).chat(orjson.dumps({"messages": [USER]}), Caller("id"), LIMIT)
    assert caught.value.param == "messages"


def test_the_model_may_be_left_out_but_not_be_another():
    assert completion(model="fake").requests
    with pytest.raises(NotFound) as caught:
        chat(model="gpt-4")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_how_to_answer_is_passed_on():
    assert not completion().stream
    generation = completion(stream=True, stream_options={"include_usage": True})
    assert generation.stream
    assert generation.include_usage
    assert not completion(stream=True).include_usage
