import asyncio

from chairlift.cluster.grammar import json_grammar
from chairlift.cluster.protocol import Answer, Refusal
from chairlift.workers.intake import Intake
from chairlift.workers.submitting import Submitting
from support.asgi_client import until
from support.engines import replica_info, submission
from support.grammars import byte_grammars

GRAMMAR = json_grammar({"type": "integer"})


class Stream:
    def __init__(self, grammars=True):
        self.intake = Intake(replica_info(), grammars=byte_grammars() if grammars else None)
        self.answers: list[Answer] = []
        self.submitting = Submitting(self.intake, 1, self.answers.append)

    async def answered(self, number):
        await until(lambda: len(self.answers) == number)
        return self.answers


def test_nothing_waits_for_the_grammar_of_another():
    async def main():
        stream = Stream()
        stream.submitting.submit(submission(1, grammar=GRAMMAR))
        stream.submitting.submit(submission(2))
        assert stream.answers == [Answer(2)]
        assert await stream.answered(2) == [Answer(2), Answer(1)]
        arrived = [sequence.key.handle for sequence in stream.intake.drain().arrivals]
        assert arrived == [2, 1]

    asyncio.run(main())


def test_who_is_cancelled_before_its_grammar_is_ready_is_cancelled_then():
    async def main():
        stream = Stream()
        stream.submitting.submit(submission(4, grammar=GRAMMAR, n=2))
        stream.submitting.cancel([5, 9])
        await stream.answered(1)
        drained = stream.intake.drain()
        assert [sequence.key.handle for sequence in drained.arrivals] == [4, 5]
        assert [key.handle for key in drained.cancelled] == [5]

    asyncio.run(main())


def test_what_was_cancelled_meanwhile_is_forgotten_when_nobody_waits_any_more():
    async def main():
        stream = Stream()
        stream.submitting.submit(submission(4, grammar=GRAMMAR))
        stream.submitting.cancel([9])
        await stream.answered(1)
        await asyncio.sleep(0)  # the task's callbacks
        stream.submitting.submit(submission(9, grammar=json_grammar({"type": "null"})))
        await stream.answered(2)
        drained = stream.intake.drain()
        assert [sequence.key.handle for sequence in drained.arrivals] == [4, 9]
        assert not drained.cancelled

    asyncio.run(main())


def test_what_cannot_be_followed_is_refused_with_its_reason():
    async def main():
        stream, without = Stream(), Stream(grammars=False)
        stream.submitting.submit(submission(1, grammar=json_grammar({"$ref": "#"})))
        (answer,) = await stream.answered(1)
        assert (answer.refusal, answer.detail) == (
            Refusal.INVALID,
            "grammar: there is no text that fits",
        )
        for one, fields in ((without, {}), (stream, {"ignore_eos": True})):
            one.submitting.submit(submission(2, grammar=GRAMMAR, **fields))
            await until(lambda one=one: one.answers and one.answers[-1].handle == 2)
            assert one.answers[-1].refusal is Refusal.INVALID
            assert one.answers[-1].detail.startswith("grammar: ")
        assert stream.intake.num_open == without.intake.num_open == 0

    asyncio.run(main())


def test_nothing_of_a_stream_that_has_gone_goes_in():
    async def main():
        stream = Stream()
        stream.submitting.submit(submission(1, grammar=GRAMMAR))
        stream.submitting.leave()
        assert stream.intake.grammars is not None
        await asyncio.to_thread(stream.intake.grammars.compiled(GRAMMAR).result)
        await asyncio.sleep(0)
        assert (stream.answers, stream.intake.num_open) == ([], 0)

    asyncio.run(main())
