import json
from dataclasses import replace

from chairlift.cluster.grammar import json_grammar
from chairlift.cluster.protocol import Controls, FinishReason
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.grammar_masks import GrammarMasks, NoMasks
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Slice, Status, StepPlan
from support.engines import replica_info, sequence, submission
from support.grammars import END, byte_grammars, following_runner

GRAMMARS = byte_grammars()
GRAMMAR = json_grammar(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "colour": {"enum": ["red", "grün"]},
            "list": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
        },
        "required": ["name", "colour", "list"],
        "additionalProperties": False,
    }
)


def plan(*sequences):
    return StepPlan(tuple(Slice(each, 0, each.num_tokens, samples=True) for each in sequences))


def outputs(*submissions, num_blocks=1024, seats=4):
    """Handle → (tokens, finish), of an engine whose model follows grammars."""
    facts = replica_info(
        vocab_size=END + 1,
        max_sequences=seats,
        max_waiting=64,
        blocks_total=num_blocks,
        max_sequence_tokens=num_blocks * 4,
    )
    told: dict[int, tuple[list[int], FinishReason | None]] = {}

    def sink(output):
        for delta in (delta for deltas in output.deltas.values() for delta in deltas):
            tokens, _ = told.get(delta.handle, ([], None))
            told[delta.handle] = (tokens + list(delta.tokens), delta.finish)

    intake = Intake(facts, grammars=GRAMMARS)
    scheduler = Scheduler(
        BlockPool(num_blocks, facts.block_size), Controls(max_sequences=seats), (END,)
    )
    engine = Engine(scheduler, following_runner(GRAMMARS, facts.vocab_size), intake, sink)
    for each in submissions:
        assert intake.submit(1, each).refusal is None
    while engine.step():
        pass
    return told, engine.load


def asking(handle, **fields):
    fields = {"max_tokens": 300, "seed": handle, "grammar": GRAMMAR} | fields
    return submission(handle, range(1, 4 + handle % 5), **fields)


def test_who_has_no_grammar_has_no_mask():
    masks = GrammarMasks(GRAMMARS)
    assert masks.begin(plan(sequence(1)))() == NoMasks().begin(plan())() == {}


def test_masks_go_by_index_among_those_that_sample():
    first, second = sequence(1, grammar=GRAMMAR), sequence(2, grammar=GRAMMAR, output=b"{")
    slices = (Slice(sequence(3), 0, 2, samples=False), *plan(sequence(4), first, second).slices)
    found = GrammarMasks(GRAMMARS).begin(StepPlan(slices))()
    follower = GRAMMARS.follow(GRAMMAR)
    assert found[1] == follower.mask()
    follower.take(b"{")
    assert found == {1: found[1], 2: follower.mask()}


def test_a_mask_is_a_function_of_the_output_alone():
    """Steps that were missed, or were taken elsewhere, make no difference."""
    text = b'{"name": "x", "colour": "red"'
    followed, resumed = sequence(1, grammar=GRAMMAR), sequence(2, grammar=GRAMMAR, output=text)
    masks = GrammarMasks(GRAMMARS)
    for byte in text:
        masks.begin(plan(followed))()
        followed.tokens.append(byte)
    both = masks.begin(plan(followed, resumed))()
    assert both[0] == both[1] == GrammarMasks(GRAMMARS).begin(plan(followed))()[0]


def test_nothing_is_kept_of_sequences_that_have_ended():
    ended, masks = sequence(1, grammar=GRAMMAR), GrammarMasks(GRAMMARS)
    masks.begin(plan(ended))()
    ended.status = Status.FINISHED
    masks.begin(plan(sequence(2, grammar=GRAMMAR)))()
    assert ended not in masks._followers


def test_every_output_fits_under_pressure_and_is_what_it_is_alone():
    """64 at once in a cache for a few: they are preempted, and told as if they had not been."""
    crowd = [asking(handle) for handle in range(64)]
    together, load = outputs(*crowd, num_blocks=250, seats=16)
    assert load.preemptions > 10
    for tokens, finish in together.values():
        if finish is FinishReason.STOP:
            assert tokens[-1] == END
            json.loads(bytes(tokens[:-1]))
    ended = sum(finish is FinishReason.STOP for _, finish in together.values())
    assert ended > 32
    for each in crowd[::9]:
        assert outputs(each)[0][each.handle] == together[each.handle]


def test_an_output_goes_on_where_another_replica_left_it():
    whole, finish = outputs(asking(3))[0][3]
    for cut in (1, len(whole) // 2, len(whole) - 1):
        moved = replace(asking(3), output=tuple(whole[:cut]))
        assert outputs(moved)[0][3] == (whole[cut:], finish)


def test_choices_of_a_request_differ_and_all_fit():
    told, _ = outputs(asking(0, n=4))
    texts = [bytes(tokens[:-1]) for tokens, _ in told.values()]
    assert len(set(texts)) == 4
    for text in texts:
        json.loads(text)


def test_an_output_that_does_not_follow_its_grammar_fails_and_nobody_else():
    broken = replace(asking(1), output=tuple(b"no json"))
    told, _ = outputs(broken, asking(2))
    assert told[1] == ([], FinishReason.FAILED)
    assert told[2][1] is FinishReason.STOP


def test_a_grammar_that_is_longer_than_the_output_may_be_ends_for_its_length():
    tokens, finish = outputs(asking(2, max_tokens=5))[0][2]
    assert (len(tokens), finish) == (5, FinishReason.LENGTH)
