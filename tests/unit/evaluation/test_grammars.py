import json

import pytest

from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation import grammars as evaluation
from chairlift.evaluation.grammar_schemas import schemas
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.grammars import Grammars


@pytest.fixture(scope="module")
def model():
    path = resolve_model("smollm2")
    spec, tokenizer = read_spec(path), Tokenizer.load(path)
    return tokenizer, Grammars(tokenizer.vocabulary, spec.vocab_size, spec.eos_token_ids)


def test_the_same_seed_gives_the_same_schemas():
    assert schemas(80, 3) == schemas(80, 3) != schemas(80, 4)
    assert len(schemas(300, 1)) == 300
    assert len({json.dumps(each, sort_keys=True) for each in schemas(300, 1)}) > 270


def test_every_text_that_ends_fits_its_schema(model):
    found = evaluation.examine(schemas(60, seed=2), *model, seed=2)
    assert found.broken == []
    assert (found.schemas, found.offered, sum(found.refused.values())) == (60, 50, 10)
    assert found.finished > 0.6 * found.texts
    assert len(found.compile_us) == found.offered


def test_forced_text_is_spelt_as_the_tokenizer_spells_it(model):
    tokenizer, grammars = model
    text = 'start: "The answer is given below: "'
    follower, tokens = grammars.follow(text), []
    while (mask := int.from_bytes(follower.mask(), "little")) not in (0, 1 << 0 | 1 << 2):
        tokens.append((mask & -mask).bit_length() - 1)
        follower.take(tokens[-1:])
    assert tokens == tokenizer.encode("The answer is given below: ", add_special=False)
