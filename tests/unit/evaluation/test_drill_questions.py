from chairlift.evaluation.drill_client import Answer, Question, Said
from chairlift.evaluation.drill_questions import compare, mixed_questions, wants_stop, with_stop

QUESTIONS = mixed_questions("m", 500, seed=0, output_tokens=40)


def said(text: str, *, tokens: int = 4, finish: str = "length", **scores) -> Answer:
    return Answer({0: Said(text, finish, scores)}, (3, tokens))


def test_the_mix_is_the_same_each_time_and_has_every_kind():
    assert mixed_questions("m", 500, seed=0, output_tokens=40) == QUESTIONS
    kinds = {
        (
            question.path,
            "stream" in question.body,
            question.body.get("n", 1),
            bool(question.body.get("logprobs")),
            wants_stop(index),
        )
        for index, question in enumerate(QUESTIONS)
    }
    assert len(kinds) == 32
    assert all("seed" in question.body for question in QUESTIONS)


def test_a_stop_string_occurs_first_late_in_the_answer():
    text = "abcabcabcabc and then something new"
    (stop,) = with_stop(Question("completions", {"seed": 1}), said(text), 0).body["stop"]
    assert len(stop) == 4
    assert text.find(stop) >= 0.6 * len(text)
    assert text.count(stop) == 1


def test_no_stop_string_is_made_of_what_cannot_match():
    question = Question("completions", {})
    assert with_stop(question, said("\ufffd" * 100), 0) == question
    assert with_stop(question, said("ab" * 100), 0) == question
    assert with_stop(question, Answer(), 0) == question


def test_answers_are_compared_to_the_letter():
    expected = [said("a"), said("b"), said("c", token_logprobs=[-1.0]), said("d"), said("e")]
    same = compare(expected, expected)
    assert (same.lost, same.texts, same.finishes, same.logprobs, same.usages) == (0,) * 5
    lost = Answer(failure="connection refused")
    found = compare(
        expected,
        [
            said("a", finish="stop"),
            said("bb", tokens=5),
            said("c", token_logprobs=[-1.5]),
            lost,
            said("e"),
        ],
    )
    assert (found.lost, found.texts, found.finishes, found.logprobs) == (1, 1, 1, 1)
    assert (found.usages, found.tokens) == (1, 1)
    assert found.examples == ("connection refused",)
